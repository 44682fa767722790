"""What runs a graph."""
