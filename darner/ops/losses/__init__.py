"""Softmax and the losses, most of which are made of it. Begin with ``softmax``."""
