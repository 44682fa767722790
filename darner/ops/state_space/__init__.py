"""Recurrences over a state that models know by name: Mamba's (``selective_scan``) and the gated delta rule (``delta_net``). Begin with ``selective_scan``."""

from . import delta_net as delta_net
from . import selective_scan as selective_scan
