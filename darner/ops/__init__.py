"""All of darner's ops. A module is imported when a name of it is asked for: ``g.fft`` imports ``fourier.transforms``.

A room a family, each of which says where to begin. Rooms import from rooms before them only, as in this order:

    complex_numbers, shapes, elementwise, reductions   what all others are made of
    indexing, linalg, spatial, fourier
    norms, losses, layers, attention, random
    creation, quantised                                where values come from, and stored weights
    custom, loops                                      graphs inside of ops
    state_space, splats

Beside them stand what declarations are written with: ``declare`` (an element-wise op in one call), ``samples`` (typical calls), ``axes`` (what rules of
batches and gradients do to axes) and ``faults`` (what only data can make wrong). Begin with ``declare`` and ``elementwise.functions``.
"""
