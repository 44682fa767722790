"""Cumulative sums, products, maxima and minima on the CPU: ``template``."""
