"""Where values come from: inputs, parameters, states and constants (``leaves``), and tensors made from a rule (``filling``). Begin with ``leaves``."""
