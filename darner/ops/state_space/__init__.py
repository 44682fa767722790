"""Recurrences over a state that models know by name: Mamba's (``selective_scan``) and the gated delta rule (``delta_net``). Begin with ``selective_scan``."""
