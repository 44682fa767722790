"""Integers in place of floats.

Values first: ``quantise`` has quantised tensors and their products. Then stored weights: ``scheme`` names a format, ``block_formats`` says how its bytes become
values, ``quantiser`` makes them, ``packed`` reads them inside products, ``packed_products`` are the products as
users call them, and ``stored`` is how parameters keep such weights. Begin with ``packed``.
"""
