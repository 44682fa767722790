"""From an optimised graph to a plan: what is computed together, where values lie, in which order."""
