"""Which rules find something in a graph."""

from collections import Counter

import darner.optimize.rules  # noqa: F401
from darner.optimize.declare import RULES
from darner.optimize.engine import Engine
from darner.optimize.region import ingest, whole
from darner.optimize.saturate import Budget, EGraph


def saturated(graph, names=None, budget=Budget()) -> EGraph:
    """The whole graph, saturated with all rules (or those named)."""
    engine = Engine([RULES[name] for name in (RULES if names is None else names)])
    egraph, _ = ingest(engine, graph, whole(graph))
    egraph.saturate(budget)
    return egraph


def fired(graph, names=None, budget=Budget()) -> Counter:
    """How often each rule found something new in a graph."""
    return saturated(graph, names, budget).applied()
