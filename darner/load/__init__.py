"""Reading and writing HuggingFace model folders."""
