"""Fourier transforms (``transforms``), and what is made of them: power densities, short-time transforms, convolutions (``spectra``). Begin with ``transforms``."""
