"""Whole layers as ops.

``linear`` has linear layers, gated feed-forward blocks and low-rank adapters as users call them; ``fused`` has what the optimizer makes: contractions with
what precedes or follows them. Begin with ``linear``.
"""
