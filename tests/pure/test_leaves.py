"""Where values come from: inputs, parameters, states, constants, and projections."""

import numpy as np
import pytest

import darner
from darner import (
    ArgumentError,
    DType,
    DTypeError,
    Graph,
    NameTakenError,
    Shape,
    ShapeError,
    symbol,
)

# --------------------------------------------------------------------------- leaves


@pytest.mark.parametrize("kind", ["input", "parameter", "state"])
def test_leaves_have_a_name_a_shape_and_a_type(kind):
    g = Graph()
    make = getattr(g, kind)
    assert str(make("a", (2, 3)).type) == "f32[2, 3]"
    assert str(make("b", 4, "i8").type) == "i8[4]"
    assert str(make("c", (), np.float64).type) == "f64[]"
    assert str(make("d", ("n", "2*n"), dtype="bf16").type) == "bf16[n, 2*n]"
    assert str(make("e", [np.int64(2), symbol("n")], DType.Bool).type) == "bool[2, n]"
    assert str(make("f", Shape.new([4, 15], DType.F16)).type) == "f16[4, 15]"
    assert str(make(name="g", shape=(2,), dtype=int).type) == "i32[2]"
    node = make("label", (2,), label="shown")
    assert (node.name, node.label, node.op.name, node.inputs) == ("label", "shown", kind, ())
    g.verify()


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda g: g.input("x", (-2,)), ShapeError, "input: shape: size -2 is negative"),
        (lambda g: g.input("x", (1.5,)), ShapeError, "size 1.5 is not an integer"),
        (lambda g: g.input("x", None), ArgumentError, "'shape' is missing"),
        (lambda g: g.input("x"), ArgumentError, "missing 1 required positional argument: 'shape'"),
        (
            lambda g: g.input("x", (2,), "f32", 3, 4),
            ArgumentError,
            "takes 3 arguments by position, got 5; the call is input(name, shape, dtype=f32)",
        ),
        (lambda g: g.constant(), ArgumentError, "missing 1 required positional argument: 'values'"),
        (lambda g: g.scalar(1.0, speed=2), ArgumentError, "scalar: has no argument 'speed'"),
        (lambda g: g.input("", (2,)), ArgumentError, "a name must be non-empty text"),
        (lambda g: g.input(5, (2,)), ArgumentError, "a name must be text, got 5"),
        (lambda g: g.input("x", (2,), "f33"), DTypeError, "'f33' is not an element type"),
        (
            lambda g: g.input("x", Shape.new((2,), "f16"), "f32"),
            DTypeError,
            "the type says f16 but dtype=f32 was given",
        ),
        (lambda g: g.input("w", (2,)), NameTakenError, "the name 'w' is taken by the parameter %0"),
        (lambda g: g.input("x", (2,), init=1.0), ArgumentError, "has no argument 'init'"),
        (lambda g: g.state("x", (2,), init="a"), ArgumentError, "init: expected a number, got 'a'"),
        (lambda g: g.parameter("x", (2,), storage="q3"), ArgumentError, "expected one of 'dense'"),
        (
            lambda g: g.parameter("x", (32,), storage="q4"),
            ShapeError,
            "q4 storage needs a float matrix, got f32(32,)",
        ),
        (
            lambda g: g.parameter("x", (32, 4), "i8", storage="q8"),
            ShapeError,
            "q8 storage needs a float matrix",
        ),
        (
            lambda g: g.parameter("x", (33, 4), storage="q8"),
            ShapeError,
            "q8 storage needs rows in blocks of 32, got 33",
        ),
        (lambda g: g.parameter_q4("x", (31, 4)), ShapeError, "blocks of 32, got 31"),
    ],
)
def test_wrong_leaves_are_refused(call, kind, text):
    g = Graph()
    g.parameter("w", (2,))
    with pytest.raises(kind) as caught:
        call(g)
    assert text in str(caught.value)
    assert len(g) == 1


def test_seed_spellings_make_the_same_leaves():
    g = Graph()
    with g.scope("s"):
        assert g.param("w", (2, 3), "f16").name == "s.w"
        assert str(g.input_u32("ids", (4,)).type) == "u32[4]"
        assert str(g.parameter_f16("h", (4,)).type) == "f16[4]"
        assert g.parameter_q4("q", (32, 2)).attrs["storage"] == "q4"
        assert g.parameter_q8("p", (64, 2)).attrs["storage"] == "q8"
        assert g.scalar(2.5).shape == (1,)
    assert list(g.parameters) == ["s.w", "s.h", "s.q", "s.p"]


def test_quantised_storage_may_have_a_symbolic_number_of_blocks():
    g = Graph()
    assert g.parameter("w", ("32*n", 4), storage="q8").shape == (32 * symbol("n"), 4)
    with pytest.raises(ShapeError, match="not known until 'n' is bound"):
        g.parameter("v", ("n", 4), storage="q8")


def test_printing_leaves_out_what_is_the_default():
    g = Graph("g")
    g.parameter("w", (32, 2))
    g.parameter("q", (32, 2), storage="q4")
    g.state("s", ())
    g.state("t", (), init=-0.0)
    g.state("u", (), init=float("nan"))
    assert str(g).splitlines()[1:-1] == [
        '  %0 = parameter(name="w") : f32[32, 2]',
        '  %1 = parameter(name="q", storage="q4") : f32[32, 2]',
        '  %2 = state(name="s") : f32[]',
        '  %3 = state(name="t", init=-0.0) : f32[]',
        '  %4 = state(name="u", init="nan") : f32[]',
    ]
    g.verify()
    assert Graph.from_text(g.to_text()) == g
    assert Graph.from_json(g.to_json()) == g


# --------------------------------------------------------------------------- constants


@pytest.mark.parametrize(
    ("args", "type_", "values"),
    [
        (([1.0, 2.0],), "f32[2]", [1.0, 2.0]),
        ((3,), "i32[]", 3),
        ((True,), "bool[]", True),
        (([[1, 2], [3, 4]], None, "f16"), "f16[2, 2]", [[1, 2], [3, 4]]),
        (([1, 2, 3, 4], (2, 2)), "i32[2, 2]", [[1, 2], [3, 4]]),
        ((np.arange(3, dtype=np.uint8),), "u8[3]", [0, 1, 2]),
        (([], (0, 3), "i8"), "i8[0, 3]", np.zeros((0, 3))),
        (([1.0, 2.0], Shape.new((2, 1))), "f32[2, 1]", [[1.0], [2.0]]),
    ],
)
def test_constants_hold_their_values(args, type_, values):
    g = Graph()
    node = g.constant(*args)
    assert str(node.type) == type_
    g.set_outputs([node])
    np.testing.assert_array_equal(darner.run(g)[0], values)


def test_written_constants_are_not_shared_but_numbers_are():
    g = Graph()
    x = g.input("x", ())
    a, b = g.constant(2.0), g.constant(2.0, label="two")
    assert a is not b
    assert (x + 2.0).operands[1] is (x * 2.0).operands[1]
    assert (x + 2.0).operands[1] not in (a.graph.nodes[a.id : b.id + 1])


def test_a_constant_does_not_follow_its_source():
    values = np.ones(3, np.float32)
    g = Graph()
    g.set_outputs([g.constant(values) + 0.0])
    values[:] = 5.0
    np.testing.assert_array_equal(darner.run(g)[0], [1.0, 1.0, 1.0])


# --------------------------------------------------------------------------- projections


def test_several_results_come_as_projections():
    g = Graph("g")
    x = g.input("x", (5,))
    values, indices = x.top_k(2)
    assert [node.op.name for node in g.nodes] == ["input", "top_k", "project", "project"]
    assert values.operands[0] is indices.operands[0]
    assert (values.attrs, indices.attrs) == ({"index": 0}, {"index": 1})
    both = values.operands[0]
    assert both.project(1).type == indices.type
    with pytest.raises(ArgumentError, match=r"project: .*index 2 is outside 0..1"):
        both.project(2)
    with pytest.raises(ArgumentError, match="must be a node with several results, not f32"):
        x.project(0)
    g.set_outputs([values, indices])
    found = darner.run(g, {"x": np.float32([3, 1, 4, 1, 5])})
    np.testing.assert_array_equal(found[0], [5, 4])
    np.testing.assert_array_equal(found[1], [4, 2])
