"""Reductions and what is element-wise around them on the CPU, row by row.

``program`` decides passes, pieces and what is kept between passes; ``template`` writes them.
"""
