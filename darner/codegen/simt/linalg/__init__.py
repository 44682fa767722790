"""Solve, triangular solve, Cholesky and slogdet on a GPU, a workgroup for each matrix: ``template``."""
