"""Ops of which only a function of NumPy arrays is known: no code; the program calls them between its native parts (``backends/base/host_kernels.py``)."""
