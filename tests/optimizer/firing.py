"""Which rules find something in a graph."""

from collections import Counter

from darner.optimizer.declare import RULES
from darner.optimizer.engine import Engine
from darner.optimizer.region import ingest, whole
from darner.optimizer.saturate import USUAL, EGraph


def saturated(graph, names=None, budget=USUAL) -> EGraph:
    """The whole graph, saturated with all rules (or those named)."""
    engine = Engine([RULES[name] for name in (RULES if names is None else names)])
    egraph, _ = ingest(engine, graph, whole(graph))
    egraph.saturate(budget)
    return egraph


def fired(graph, names=None, budget=USUAL) -> Counter:
    """How often each rule found something new in a graph."""
    return saturated(graph, names, budget).applied()


def table():
    """An empty table, from a rule's name to functions of (graph, draws) that give an output, and what adds to it.

    The second is a decorator: it puts a function under the rules that it makes fire.
    """
    found = {}

    def fires(*names):
        def register(function):
            for name in names:
                found.setdefault(name, []).append(function)
            return function

        return register

    return found, fires
