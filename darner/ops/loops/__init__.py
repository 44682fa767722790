"""Loops: one body, repeated over carried state.

``loop`` is the op; ``iterate`` writes it from a Python function; ``samples`` are typical loops. Their derivatives transform bodies, and stand in
``transforms.loops``. Begin with ``loop``.
"""
