"""Sorting, argsort and top-k on a GPU: ``template``."""
