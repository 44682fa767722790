"""Where values come from: inputs, parameters, states and constants (``leaves``), and tensors made from a rule (``filling``). Begin with ``leaves``."""

from . import filling as filling
from . import leaves as leaves
