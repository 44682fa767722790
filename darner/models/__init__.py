"""Architectures, built from their HuggingFace configurations."""
