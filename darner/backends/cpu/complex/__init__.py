"""Kernels of complex numbers on the CPU, as real kernels over pairs: ``template``."""
