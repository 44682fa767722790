"""Kernels of complex numbers on a GPU, as real kernels over pairs: ``template``."""
