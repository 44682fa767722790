"""Loops on a GPU: ``elements`` is one dispatch, in which a thread takes an element through all steps; ``template`` has the dispatches of a step as often as there are steps.

The second is for any body that no data can make fail. ``codegen/problems/loops.py`` says which loops go by elements.
"""
