"""Names that users of PyTorch, JAX, NumPy and Keras bring along. ``hints`` finds what they are here; ``table`` and ``of_tensors`` are the rows. Begin with ``hints``."""
