"""GPU templates: the code of each kernel family for a workgroup of threads.

``builder`` is what they are written against, ``machine`` what they ask of a GPU, ``dispatch`` one dispatch while it is written, ``elements`` the walk over a body. One folder a
family, whose ``template`` module chooses among its forms; ``families`` has the list, and the first that fits a spec is taken.
"""
