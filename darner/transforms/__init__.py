"""Graph to graph: what a graph becomes."""
