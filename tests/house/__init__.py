"""Tests of the architecture: they read the package's source with ``ast`` and run none of it.

``layers.toml`` says who may import whom. ``rules.py`` has the rules, one function each. ``baseline/`` lists today's offenders, one a line, and
``ratchet.toml`` today's counts: both may only shrink. ``python -m tests.house.baseline`` rewrites them after a repair.
"""
