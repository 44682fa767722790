"""Every rewrite rule is proved: on instances of its pattern, and in graphs that users write."""

import dataclasses
import importlib
import pkgutil
from functools import cache

import pytest

import darner.optimizer.rules  # noqa: F401
import tests.optimizer
from darner import Graph
from darner.optimizer.declare import RULES, Condition, Rule, is_float, same_type
from darner.optimizer.engine import Engine
from darner.optimizer.match import match_node
from darner.optimizer.pattern import T, variables
from darner.optimizer.region import ingest, whole
from darner.optimizer.saturate import Budget
from tests import conformance
from tests.optimizer.draws import Draws
from tests.optimizer.prove import Refuted, Tally, prove, prove_match

SEEDS = 12
"""Draws of each written graph; the quick tier has the first alone."""

MATCHES = 3
"""Matches of one rule that are proved in each saturated graph."""


def _tables():
    """The FIRES of every module of graphs, joined."""
    joined = {}
    for module in pkgutil.iter_modules(tests.optimizer.__path__):
        if module.name.startswith("graphs_"):
            table = importlib.import_module(f"tests.optimizer.{module.name}").FIRES
            for name, functions in table.items():
                joined.setdefault(name, []).extend(functions)
    return joined


FIRES = _tables()


# --------------------------------------------------------------------------- graphs that users write

_matches = {}
"""What each rule matched in the saturation that runs now."""


def _recording(rule):
    """The same rule, which notes the matches to which it applies."""

    def produce(match):
        result = rule.produce(match)
        if result is not None:
            _matches.setdefault(rule.name, []).append(match)
        return result

    return dataclasses.replace(rule, when=None, result=produce)


@cache
def _recorders():
    return [_recording(rule) for rule in RULES.values()]


def _written(function, seed):
    graph = Graph("written")
    made = function(graph, Draws(seed))
    graph.set_outputs(list(made) if isinstance(made, list | tuple) else [made])
    return graph


@cache
def _saturated(function, seed):
    """How often each rule found something new in a written graph, and the first matches of each."""
    graph = _written(function, seed)
    _matches.clear()
    egraph, _ = ingest(Engine(_recorders()), graph, whole(graph))
    egraph.saturate(Budget(nodes=3000, iterations=8))
    return egraph.applied(), {name: found[:MATCHES] for name, found in _matches.items()}


def prove_written(rule, seeds=SEEDS):
    """Prove a rule in the graphs written for it; it must fire in the plain one."""
    tally = Tally()
    for function in FIRES.get(rule.name, []):
        for seed in range(seeds):
            direct = _prove_nodes(rule, _written(function, seed), seed)
            tally += direct
            if seed == 0:
                applied, matches = _saturated(function, seed)
                simplified = rule.simplify and direct.produced
                assert applied[rule.name] or simplified, (
                    f"rule '{rule.name}' does not fire in the graph of {function.__module__}, "
                    f"line {function.__code__.co_firstlineno}:\n{_written(function, 0).to_text()}"
                )
                for match in matches.get(rule.name, []):
                    tally += prove_match(rule, match)
    return tally


def _prove_nodes(rule, graph, seed):
    tally = Tally(tried=1)
    for node in list(graph.nodes):
        if node.op is rule.pattern.op:
            for match in match_node(rule.pattern, node):
                tally += prove_match(rule, match, seed)
    return tally


@pytest.mark.parametrize("name", RULES)
def test_both_sides_of_a_rule_have_one_type_and_one_value(name):
    rule = RULES[name]
    quick = conformance.QUICK
    tally = prove(rule, *((30, 3) if quick else (200, 16)))
    assert FIRES.get(name), f"no graph in tests/optimizer/graphs_*.py says where '{name}' fires"
    tally += prove_written(rule, 1 if quick else SEEDS)
    assert tally.proved, f"'{name}' was never proved: {tally.produced} instances, none with values"


def test_graphs_are_written_for_rules_that_exist():
    assert [name for name in FIRES if name not in RULES] == []


# --------------------------------------------------------------------------- what is wrong is refuted

a, b, c, x, y, p, q, axis, axes = variables("a b c x y p q axis axes")

MISTAKES = {
    "wrong constant": Rule("x + x", x + x, x * 2.001),
    "slightly wrong constant": Rule("x + x", x + x, x * (2 + 1e-9)),
    "wrong sign": Rule("neg of sub", -(x - y), x - y),
    "swapped operands": Rule("a - b", T.sub(x, y), T.sub(y, x)),
    "swapped factors": Rule("matmul", T.matmul(a, b), T.matmul(b, a)),
    "wrong op": Rule("silu", x * T.sigmoid(x), T.tanh(x)),
    "swapped roles": Rule("swiglu", T.silu(x) * y, T.swiglu(y, x), same_type(x, y) & is_float(x)),
    "no guard for the shape": Rule("swiglu", T.silu(x) * y, T.swiglu(x, y)),
    "no guard for a broadcast": Rule("x + y - y", (x + y) - y, x),
    "no guard for the element type": Rule(
        "cast of cast", T.cast(T.cast(x, to=p), to=q), T.cast(x, to=q)
    ),
    "no guard for the sign": Rule("exp of log", T.log(T.square(x)), T.log(x) * 2.0),
    "no guard for a zero": Rule("x + y", x + y, x * (y / x + 1.0), same_type(x, y) & is_float(x)),
    "an overflow that was not there": Rule(
        "sigmoid", T.sigmoid(x), T.exp(x) / (T.exp(x) + 1.0), is_float(x)
    ),
    "a cancellation that was not there": Rule(
        "x", T.square(x - y), (T.square(x) - x * y * 2.0) + T.square(y), is_float(x)
    ),
    "wrong permutation": Rule(
        "transposes",
        T.transpose(T.transpose(x, perm=p), perm=q),
        lambda m: T.transpose(m.x, perm=[m.q[i] for i in m.p]),
    ),
    "wrong axis": Rule("softmax", T.softmax(x, axis=axis), T.softmax(x, axis=0)),
    "lost axes": Rule("sum of neg", -T.sum(x, axes=axes), T.sum(-x, axes=None)),
    "symbolic sizes taken for numbers": Rule(
        "mean", T.mean(x, axes=axes), lambda m: T.sum(m.x, axes=m.axes) * (1.0 / 3.0)
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_rule_with_a_mistake_is_refuted(mistake):
    with pytest.raises(Refuted):
        prove(MISTAKES[mistake], 400, 60)


MATRICES = Condition("all are matrices", lambda m: m.a.rank == m.b.rank == m.c.rank == 2)

SOUND = {
    "a sum in another order": Rule("assoc", (x + y) + c, x + (y + c), same_type(x, y, c)),
    "a factor taken out": Rule("factor", x * c + y * c, (x + y) * c, same_type(x, y, c)),
    "more precise than its left side": Rule(
        "log of a sum", T.log(T.exp(x) + 1.0), T.softplus(x), is_float(x)
    ),
    "a product of matrices in another order": Rule(
        "matmuls", (a @ b) @ c, a @ (b @ c), is_float(a) & MATRICES
    ),
}


@pytest.mark.parametrize("name", SOUND)
def test_rounding_is_not_taken_for_a_mistake(name):
    assert prove(SOUND[name], 400, 60).proved >= 20


def test_a_proof_is_the_same_every_time():
    assert prove(RULES["silu"]) == prove(RULES["silu"])


def test_a_refutation_shows_the_rule_and_the_instance():
    with pytest.raises(Refuted, match=r"(?s)rule 'x \+ x'.*differ by.*add\("):
        prove(MISTAKES["wrong constant"])
