"""Reductions and what is element-wise around them, on a GPU: passes over rows.

``template`` writes the dispatches, ``layout`` chooses threads a row, ``stage`` is one dispatch; ``online`` is the one-pass softmax.
"""
