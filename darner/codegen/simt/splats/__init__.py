"""Splats in tiles on GPUs, in f32: the lists of tiles (``lists``), what splats add up to in each pixel, a thread each (``pixels``), and the gradient of that (``gradient``).

``template`` says which op has which form: there is one of each. In f64, and where a gradient would keep too much, a picture is computed with all entries beside all pixels.
"""
