"""Graph to graph: what a graph becomes."""

# Adds the rules of `custom_fn`, which transform its bodies, to its record.
from . import custom_rules as custom_rules
