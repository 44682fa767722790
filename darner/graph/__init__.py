"""Graphs, nodes, shapes, element types, errors, and how they print and save."""
