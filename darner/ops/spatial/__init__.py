"""Images and signals: convolution, pooling, resampling.

``conv`` and ``pool`` have the primitives and their gradients over any number of axes; ``conv_forms``, ``conv_flat`` and ``pool_forms`` are how users write them.
``resize`` resamples. ``windows`` has what all share: padding, and windows that must fit. Begin with ``windows``, then ``conv``.
"""
