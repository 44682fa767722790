"""Plans in NumPy, one kernel after another, by the interpreter that defines what ops mean (``darner/interpreter.py``): slow, and right.

backend   the row of the registry
program   a plan with memory, as sessions run it
plan      a plan run once, for tests: whoever reads what was not written gets NaN
"""
