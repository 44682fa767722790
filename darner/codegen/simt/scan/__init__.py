"""Cumulative sums, products, maxima and minima on a GPU: ``template``."""
