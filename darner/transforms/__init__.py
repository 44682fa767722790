"""Graph to graph: what a graph becomes."""

# Add the rules of `custom_fn` and `loop`, which transform bodies, to their records.
from . import custom_rules as custom_rules
from . import loops as loops
