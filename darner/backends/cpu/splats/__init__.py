"""Splats in tiles: the lists of tiles, what they add up to in each pixel, and the gradient of that, in f32.

``template`` says which op has which form: there is one of each. ``lists`` counts and places the splats of each row of tiles, ``pixels`` has what a vector of pixels
takes of a splat, ``forward`` and ``backward`` go through lists with it. Begin with ``forward``.
"""
