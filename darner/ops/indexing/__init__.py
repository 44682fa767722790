"""Reading and writing by indices that are data, and sorting.

``index`` has the primitives that read and add by index. ``reading`` is indexing as Python writes it, ``scatter`` writes, and ``ordering`` sorts and finds the
largest few. Begin with ``index``: it says when an index is checked.
"""
