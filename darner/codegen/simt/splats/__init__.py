"""Splats in tiles on GPUs: the lists of tiles (``lists``), and what splats add up to in each pixel, a thread each (``pixels``).

``template`` says which op has which form. In f32 only: in f64 a picture is computed with all entries beside all pixels.
"""
