"""Convolutions and both gradients on the CPU.

``template`` asks the cost of each form and takes the cheapest: ``driver`` packs patches, ``direct`` reads images in place, ``channel_lanes`` has channels in lanes,
``depthwise`` is for one channel a group, ``weight_gradient`` and ``dots`` towards the weight, and ``winograd`` for 3x3. ``plan`` has the costs they share.
"""
