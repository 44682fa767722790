"""A kernel's body as code: what the element of a node at an index is, from the elements of its operands.

Begin with ``elements.py``. ``sums`` and ``argmax`` are loops within an element, ``collapse`` merges axes before code is written, and
``complex_pairs`` rewrites complex bodies as real ones.
"""
