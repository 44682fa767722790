"""GPU templates: the code of each kernel family for a workgroup of threads.

One folder a family, its ``template`` module chooses among the forms. ``shader`` is one dispatch while it is written, ``elements`` the walk over a body.
"""
