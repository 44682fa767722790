"""Code generation that knows no device: what every compiled backend shares.

``ir`` is the layer that code is written with, ``elements`` emits a kernel's values element by element, ``problems`` turns a kernel's spec into a typed
problem (what is multiplied, pooled, attended to), and ``simt`` has the GPU templates. Begin with ``ir/index.py`` and ``elements/elements.py``.
"""
