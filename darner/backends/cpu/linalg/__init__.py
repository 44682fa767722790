"""Solve, triangular solve, Cholesky and slogdet on the CPU: ``template``."""
