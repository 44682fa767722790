"""Integers in calls: numbers beside a node, ids where every operand is one."""

import numpy as np
import pytest

import darner
from darner import ArgumentError, DarnerError, Graph
from darner.graph.op import OPS
from darner.ops.samples import Spec

SEVERAL = [
    pytest.param(op, id=op.name)
    for op in OPS.values()
    if op.builtin and op.samples and (len(op.operands) > 1 or any(p.variadic for p in op.operands))
]


def leaf(g, name, wanted):
    dtype = wanted.dtype or {"int": "i32", "bool": "bool"}.get(wanted.kind, "f32")
    return g.input(name, wanted.shape, dtype)


def filled(g, sample):
    """The sample's arguments with inputs for its tensors."""
    count = iter(range(100))

    def settle(value):
        if isinstance(value, Spec):
            return leaf(g, f"x{next(count)}", value)
        if isinstance(value, list) and any(isinstance(item, Spec) for item in value):
            return [settle(item) for item in value]
        return value

    args = [settle(value) for value in sample.args]
    return args, {name: settle(value) for name, value in sample.kwargs.items()}


def nodes_as(change, args, kwargs):
    """The arguments with ``change(node, number of node)`` in place of every node."""
    count = iter(range(100))

    def settle(value):
        if isinstance(value, darner.Node):
            return change(value, next(count))
        if isinstance(value, list) and any(isinstance(item, darner.Node) for item in value):
            return [settle(item) for item in value]
        return value

    return [settle(v) for v in args], {name: settle(v) for name, v in kwargs.items()}


def outcome(call):
    """The graph that a call of a fresh graph's op makes, or the error's class and rule."""
    g = Graph()
    try:
        call(g)
    except DarnerError as error:
        return type(error), error.rule, str(g)
    return str(g)


@pytest.mark.parametrize("op", SEVERAL)
def test_an_integer_beside_a_node_is_a_number_in_every_op(op):
    """The method of a graph does what the op itself does, which knows no ids."""
    sample = op.samples[0]
    count = sum(isinstance(v, darner.Node) for v in flat(filled(Graph(), sample)))
    for place in range(count if count > 1 else 0):
        for number in (0, 1):

            def by(call, place=place, number=number):
                def build(g):
                    args, kwargs = filled(g, sample)
                    args, kwargs = nodes_as(
                        lambda node, i: number if i == place else node, args, kwargs
                    )
                    return call(g)(*args, **kwargs)

                return build

            assert outcome(by(lambda g: getattr(g, op.name))) == outcome(by(lambda g: op))


def has_numbers(op):
    """Whether the sample gives an operand by its values, as the limits of ``clip``: beside them an integer is not an id."""
    args, kwargs = op.samples[0].args, op.samples[0].kwargs
    given = {param.name: value for param, value in zip(op.params, args, strict=False)} | kwargs
    values = [given.get(param.name) for param in op.operands]
    return any(isinstance(value, float | int | np.ndarray) for value in values)


TENSORS_ONLY = [param for param in SEVERAL if not has_numbers(param.values[0])]


@pytest.mark.parametrize("op", TENSORS_ONLY)
def test_integers_are_ids_where_every_operand_is_one(op):
    def by(change):
        def build(g):
            args, kwargs = nodes_as(change, *filled(g, op.samples[0]))
            return getattr(g, op.name)(*args, **kwargs)

        return build

    assert outcome(by(lambda node, i: node.id)) == outcome(by(lambda node, i: node))


def flat(given):
    args, kwargs = given
    for value in (*args, *kwargs.values()):
        yield from value if isinstance(value, list) else [value]


def start():
    g = Graph()
    x = g.input("x", (3,))
    return g, x, {"x": np.array([-2.0, 0.5, 9.0], np.float32)}


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda g, x: g.maximum(x, 0), [0, 0.5, 9]),
        (lambda g, x: g.maximum(0, x), [0, 0.5, 9]),
        (lambda g, x: g.maximum(a=0, b=x), [0, 0.5, 9]),
        (lambda g, x: g.clip(x, 0, 6), [0, 0.5, 6]),
        (lambda g, x: g.clip(x, low=0, high=6), [0, 0.5, 6]),
        (lambda g, x: g.where(x > 0.0, x, 0), [0, 0.5, 9]),
        (lambda g, x: g.where(x > 0.0, 1, 0), [0, 1, 1]),
        (lambda g, x: g.binary("max", x, 0), [0, 0.5, 9]),
        (lambda g, x: g.compare("gt", 0, x), [True, False, False]),
        (lambda g, x: g.gather(x, 0), -2),
        (lambda g, x: g.take(x, 0), -2),
        (lambda g, x: g.masked_fill(x, x < 0.0, 0), [0, 0.5, 9]),
        (lambda g, x: g.add_node("maximum", [x, 0]), [0, 0.5, 9]),
        (lambda g, x: g.append_node("maximum", [0, x]), [0, 0.5, 9]),
        (lambda g, x: g.add_node("maximum", [0, 0]), [-2, 0.5, 9]),
        (lambda g, x: g.concat([x[:1], [0]]), [-2, 0]),
    ],
)
def test_values_of_calls_with_integers(call, expected):
    g, x, given = start()
    g.set_outputs([call(g, x)])
    np.testing.assert_array_equal(darner.run(g, given)[0], expected)


@pytest.mark.parametrize(
    ("call", "op"),
    [
        (lambda g: g.mul(0, 0.5), "mul"),
        (lambda g: g.where(np.array([True]), 1, 0), "where"),
        (lambda g: g.concat([0, np.ones(2, np.float32)]), "concat"),
        (lambda g: g.add_node("mul", [0, 0.5]), "add_node"),
    ],
)
def test_an_integer_that_could_be_either_is_refused(call, op):
    g, _, _ = start()
    with pytest.raises(
        ArgumentError, match=rf"^{op}: no operand is a node, and [01] may be"
    ) as caught:
        call(g)
    assert "g.node(" in str(caught.value)
    assert len(g) == 1


def test_tables_of_a_rope_are_ids_only_if_all_are():
    g = Graph()
    x, cos, sin = g.input("x", (5, 8)), g.input("cos", (5, 4)), g.input("sin", (5, 4))
    assert g.rope(0, 1, 2, 8).inputs == g.rope(x, cos, sin, 8).inputs
    with pytest.raises(ArgumentError, match="rope: takes 3 arguments, got 4"):
        g.rope(x, 1, 2, 8)


def test_flat_tensors_of_a_concat_are_ids_only_if_both_are():
    g = Graph()
    a, b = g.input("a", (12,)), g.input("b", (12,))
    geometry = (2, 3, 3, 2)
    assert g.concat(0, 1, *geometry).shape == g.concat(a, b, *geometry).shape == (24,)
    with pytest.raises(ArgumentError, match="concat: 'b' must be a node, got int"):
        g.concat(a, 1, *geometry)


@pytest.mark.parametrize(
    "call",
    [
        lambda g, x: g.unsqueeze(1.5, 0),
        lambda g, x: g.causal_attention(x, 0, x, 1, 1, 3),
        lambda g, x: g.softmin([1.0, 2.0]),
        lambda g, x: g.dot("x", x),
    ],
)
def test_what_a_builder_cannot_take_for_a_node_is_named(call):
    g, x, _ = start()
    with pytest.raises(
        ArgumentError, match=r"'.*' must be a node or an array, got (int|float|list|str)"
    ):
        call(g, x)


def test_builders_take_arrays_as_ops_do():
    g, x, given = start()
    g.set_outputs([g.dot(x, np.ones(3, np.float32)), g.unsqueeze(np.arange(2, dtype=np.int32), 0)])
    dot, row = darner.run(g, given)
    assert dot == 7.5
    assert row.tolist() == [[0, 1]]
