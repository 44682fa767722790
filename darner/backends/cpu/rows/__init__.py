"""Reductions and what is element-wise around them on the CPU, row by row.

``codegen/problems/rows.py`` finds the passes; ``program`` decides pieces and what is kept between passes; ``template`` writes them, with
sums over rows (``columns``) and results of rows that are cut in pieces (``partials``).
"""
