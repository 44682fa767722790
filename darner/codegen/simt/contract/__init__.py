"""Matrix products on a GPU.

``plan`` chooses the form by shape: ``tiles`` through workgroup memory, ``vector`` for a few rows, ``thread`` for small matrices and short sums.
``load`` reads operands, ``epilogue`` writes results.
"""
