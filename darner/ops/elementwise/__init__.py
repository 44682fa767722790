"""Ops element by element: one declaration each, with NumPy function, derivative and scalar code.

``functions`` has those of one operand, ``arithmetic`` those of two, selection and casts, ``comparison`` comparisons, logic and bits. ``activations`` are made of
them, and ``activation_gradients`` has their derivatives as ops. Begin with ``functions``: most ops there are one call of ``declare``.
"""
