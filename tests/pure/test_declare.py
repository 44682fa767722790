"""Declaring ops: one declaration gives inference, methods, a reference, printing, saving and documentation."""

from typing import Literal

import numpy as np
import pytest

import darner
from darner import (
    ArgumentError,
    DTypeError,
    Graph,
    InternalError,
    NameTakenError,
    RunError,
    ShapeError,
)
from darner.graph import dtypes
from darner.graph.attributes import (
    Axes,
    Axis,
    Float,
    Free,
    Index,
    Ints,
    Number,
    Pairs,
    Size,
    Sizes,
    Tensor,
)
from darner.graph.node import Node
from darner.graph.op import BUILDERS, OPS, Cost, resolved, unregister
from darner.graph.types import TensorType
from darner.ops.samples import sample, spec
from darner.testing import assert_close, make_case


@pytest.fixture(autouse=True)
def registry():
    """Whatever a test declares is gone after it."""
    ops, builders = set(OPS), set(BUILDERS)
    yield
    for name in (OPS.keys() - ops) | (BUILDERS.keys() - builders):
        unregister(name)


def round_trip(graph):
    graph.verify()
    assert Graph.from_text(graph.to_text()).to_text() == graph.to_text()
    assert Graph.from_json(graph.to_json()).to_json() == graph.to_json()
    assert Graph.from_text(graph.to_text()) == Graph.from_json(graph.to_json()) == graph


# --------------------------------------------------------------------------- element-wise


def test_an_elementwise_op_is_one_declaration():
    softstep = darner.unary("softstep", "x / (1 + x * x).", lambda x: x / (1 + x * x))
    values = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
    g = Graph("g")
    x = g.input("x", (2, 3))
    by_graph, by_node, by_call = g.softstep(x), x.softstep(label="step"), softstep(x)
    g.set_outputs([by_graph, by_node, by_call])
    assert str(by_node.type) == "f32[2, 3]"
    for found in darner.run(g, {"x": values}):
        np.testing.assert_allclose(found, values / (1 + values**2), rtol=1e-6)
    assert '%2 = softstep(%0) : f32[2, 3] "step"' in str(g)
    round_trip(g)
    assert softstep.signature == "softstep(x)"
    assert softstep.doc == "x / (1 + x * x)."
    assert softstep.family == "element-wise"
    assert "x / (1 + x * x)." in g.softstep.__doc__
    assert "softstep" in dir(g)
    assert "softstep" in dir(x)
    assert repr(softstep) == "<op softstep(x)>"
    assert "elementwise" in softstep.traits
    assert not softstep.builtin


def test_a_declared_op_promotes_casts_and_computes_halves_in_f32():
    darner.unary("softstep", "x / (1 + x * x).", lambda x: x / (1 + x * x))
    g = Graph()
    assert g.input("n", (2,), "i32").softstep().dtype is dtypes.f32
    h = g.input("h", (2,), "f16")
    assert h.softstep().dtype is dtypes.f16
    with pytest.raises(AttributeError, match="softstep_"):
        g.softstep_(h)


def test_a_declared_op_has_samples_that_can_be_tested():
    softstep = darner.unary("softstep", "x / (1 + x * x).", lambda x: x / (1 + x * x))
    assert len(softstep.samples) == 7
    for i in range(len(softstep.samples)):
        case = make_case(softstep, i, "f64")
        x = case.arrays["arg0"]
        assert_close(case.run()[0], x / (1 + x * x), "f64")


def test_a_binary_op_broadcasts_and_may_give_bool():
    darner.binary("hypotenuse", "sqrt(a*a + b*b).", np.hypot, kind=Float, commutative=True)
    darner.binary("close", "|a - b| < 1.", lambda a, b: np.abs(a - b) < 1, result=dtypes.bool_)
    g = Graph()
    x, y = g.input("x", (2, 1)), g.input("y", (3,))
    g.set_outputs([x.hypotenuse(y), g.close(x, 2.0)])
    a, b = np.float32([[3], [5]]), np.float32([4, 12, 0])
    found = darner.run(g, {"x": a, "y": b})
    np.testing.assert_allclose(found[0], np.hypot(a, b), rtol=1e-6)
    np.testing.assert_array_equal(found[1], np.abs(a - 2) < 1)
    assert found[1].dtype == np.bool_
    assert "commutative" in OPS["hypotenuse"].traits
    round_trip(g)
    with pytest.raises(ShapeError, match=r"hypotenuse: a is f32.* do not broadcast"):
        x.hypotenuse(g.input("z", (4, 3)))


# --------------------------------------------------------------------------- primitives


def declare_window():
    @darner.primitive(
        family="test", samples=[sample(spec(6), size=3), sample(spec(2, 5), size=2, mode="max")]
    )
    def window(
        x: Number,
        size: Size,
        step: int = 1,
        mode: Literal["mean", "max"] = "mean",
        *,
        scale: float = 1.0,
        axis: Axis = -1,
    ) -> TensorType:
        """The mean or maximum of each run of ``size`` along an axis."""
        if not 0 < size <= x.shape[axis]:
            raise ShapeError(
                f"a window of {size} does not fit in {x.shape[axis]}", hint="shrink it"
            )
        count = (x.shape[axis] - size) // step + 1
        return x.with_shape((*x.shape[:axis], count, *x.shape[axis + 1 :]))

    @window.reference
    def _(x, size, step, mode, scale, axis):
        runs = np.lib.stride_tricks.sliding_window_view(x, size, axis)
        chosen = np.take(runs, range(0, runs.shape[axis], step), axis)
        return scale * getattr(np, mode)(chosen, -1)

    return window


def test_a_primitive_with_attributes_checks_prints_and_runs():
    window = declare_window()
    assert window.signature == "window(x, size, step=1, mode='mean', *, scale=1.0, axis=-1)"
    g = Graph("g")
    x = g.input("x", (7,))
    y = g.window(x, 3, 2, scale=2)
    z = x.window(size=2, mode="max")
    assert (y.shape, z.shape) == ((3,), (6,))
    assert y.attrs == {"size": 3, "step": 2, "mode": "mean", "scale": 2.0, "axis": 0}
    assert "window(%0, size=3, step=2, scale=2.0, axis=0) : f32[3]" in str(g)
    g.set_outputs([y, z])
    round_trip(g)
    values = np.arange(7, dtype=np.float32) ** 2
    found = darner.run(g, {"x": values})
    np.testing.assert_allclose(
        found[0], [2 * values[i : i + 3].mean() for i in (0, 2, 4)], rtol=1e-6
    )
    np.testing.assert_array_equal(found[1], np.maximum(values[:-1], values[1:]))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x: x.window(), "argument 'size' is missing; the call is window(x, size, step=1"),
        (lambda x: x.window(9), "window: x is f32[7]: a window of 9 does not fit in 7; shrink it"),
        (lambda x: x.window("a b"), "size: 'a b' is not a size"),
        (lambda x: x.window(1.5), "size: expected an integer, got 1.5"),
        (lambda x: x.window(2, 1.5), "step: expected an integer, got 1.5"),
        (lambda x: x.window(2, None), "argument 'step' is missing"),
        (lambda x: x.window(2, x), "'step' must be a fixed value (int), not a node"),
        (lambda x: x.window(2, mode="min"), "mode: expected one of 'mean', 'max', got 'min'"),
        (lambda x: x.window(2, mode=3), "mode: it must be text, got 3"),
        (lambda x: x.window(2, scale="big"), "scale: expected a number, got 'big'"),
        (lambda x: x.window(2, scale=10**400), "scale: expected a number, got 1000"),
        (lambda x: x.window(2, scale=np.ones(2)), "scale: expected a number, got array"),
        (lambda x: x.window(2, axis=3), "axis 3 is outside -1..0"),
        (lambda x: x.window(2, 1, "mean", 1.0), "takes 4 arguments, got 5"),
        (lambda x: x.window(2, width=3), "has no argument 'width'; the call is window("),
        (lambda x: x.window(2, scalee=3), "has no argument 'scalee'; did you mean 'scale'?"),
        (lambda x: x.window(2, size=2), "argument 'size' is given twice"),
        (lambda x: x.window(2, shape=(5,)), "the result is (6,), but (5,) was stated"),
    ],
)
def test_wrong_arguments_of_a_declared_op_are_refused(call, text):
    declare_window()
    g = Graph()
    x = g.input("x", (7,))
    with pytest.raises(darner.DarnerError) as caught:
        call(x)
    assert text in str(caught.value)
    assert "(test_declare.py:" in str(caught.value)
    assert len(g) == 1


def test_attributes_of_every_kind_are_canonical_and_survive():
    @darner.primitive(family="test")
    def everything(
        x: Free,
        flag: bool = False,
        whole: int = 0,
        real: float = 0.5,
        word: str = "w",
        dtype: darner.DType = dtypes.f32,
        ints: Ints = (1,),
        pairs: Pairs = (0,),
        size: Size = 1,
        sizes: Sizes = (1, 2),
        axes: Axes | None = None,
        maybe: int | None = None,
    ) -> TensorType:
        """x, with one attribute of each kind."""
        return TensorType(tuple(s for s in sizes if s != -1), dtype)

    g = Graph("g")
    x = g.input("x", (2, 3))
    n = darner.symbol("n")
    y = x.everything(
        np.True_,
        np.int8(3),
        np.float32(0.25),
        'quote " and\nline',
        "bfloat16",
        np.array([4, 5]),
        ((1, 2), 3),
        2 * n,
        ("n", 4),
        axes=-1,
        maybe=7,
    )
    assert y.attrs == {
        "flag": True,
        "whole": 3,
        "real": 0.25,
        "word": 'quote " and\nline',
        "dtype": dtypes.bf16,
        "ints": (4, 5),
        "pairs": ((1, 2), (3, 3)),
        "size": 2 * n,
        "sizes": (n, 4),
        "axes": (1,),
        "maybe": 7,
    }
    assert [type(value) for value in y.attrs.values()][:3] == [bool, int, float]
    plain = x.everything()
    assert plain.attrs["axes"] == (0, 1)
    assert plain.attrs["pairs"] == ((0, 0),)
    x.everything(real=float("nan"), ints=3, sizes=-1, pairs=2, whole=-(2**70))
    x.everything(real=-0.0)
    round_trip(g)
    bound = g.bind(n=5)
    assert bound.node(y.id).attrs["size"] == 10
    assert bound.node(y.id).attrs["sizes"] == (5, 4)
    assert str(bound.node(y.id).type) == "bf16[5, 4]"


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({"flag": 1}, "flag: expected True or False, got 1"),
        ({"ints": 1.5}, "ints: expected an integer, got 1.5"),
        ({"ints": "ab"}, "ints: expected an integer, got 'ab'"),
        ({"ints": [1, "a"]}, "ints: expected an integer, got 'a'"),
        ({"pairs": 1.5}, "pairs: expected an integer, got 1.5"),
        ({"pairs": [(1, 2, 3)]}, "pairs: expected (low, high) pairs"),
        ({"sizes": 1.5}, "sizes: expected an integer, got 1.5"),
        ({"sizes": [None]}, "sizes: expected an integer, got None"),
        ({"dtype": "f33"}, "dtype: 'f33' is not an element type"),
        ({"word": "\ud800"}, "word: it cannot be '\\ud800': surrogates not allowed"),
    ],
)
def test_values_of_the_wrong_kind_name_their_parameter(kwargs, text):
    @darner.primitive(family="test")
    def attributed(
        x: Free,
        flag: bool = False,
        ints: Ints = (1,),
        pairs: Pairs = (0,),
        sizes: Sizes = (1,),
        dtype: darner.DType = dtypes.f32,
        word: str = "",
    ) -> TensorType:
        """x."""
        return x

    with pytest.raises(darner.DarnerError) as caught:
        Graph().input("x", (2,)).attributed(**kwargs)
    assert text in str(caught.value)


def test_a_rule_may_settle_attributes_and_equal_questions_are_asked_once():
    asked = []

    @darner.primitive(family="test")
    def strided(x: Tensor, stride: Ints = (1,), bias: float = 0.0) -> TensorType:
        """x."""
        asked.append((stride, bias))
        return resolved(x, stride=stride * x.rank if len(stride) == 1 else stride, bias=bias)

    g = Graph()
    x = g.input("x", (2, 3))
    y, z = x.strided(2), x.strided((2, 2))
    assert y.attrs["stride"] == z.attrs["stride"] == (2, 2)
    x.strided(2)
    assert len(asked) == 2
    # -0.0 equals 0.0, but a node keeps the one it was given.
    assert np.signbit(x.strided(2, -0.0).attrs["bias"])
    assert not np.signbit(x.strided(2, 0.0).attrs["bias"])
    round_trip(g)


def test_several_results_and_optional_and_repeated_operands():
    @darner.primitive(family="test", name="stats")
    def stats(xs: list[Number], weight: Number | None = None, index: Index | None = None):
        """Sum of all, and how many."""
        return xs[0], TensorType((), dtypes.i32)

    @stats.reference
    def _(xs, weight, index):
        total = sum(xs) * (1 if weight is None else weight)
        return total, np.int32(len(xs))

    g = Graph("g")
    x, n = g.input("x", (3,)), g.input("n", (3,), "i32")
    total, count = g.stats([x, n, 2.0], weight=0.5)
    assert (total.dtype, count.shape) == (dtypes.f32, ())
    both = total.operands[0]
    assert both.slots == ("xs", "xs", "xs", "weight")
    assert "stats([%0, %2, %3], weight=%4) : (f32[3], i32[])" in str(g)
    other, _ = g.stats([x], index=n)
    g.set_outputs([total, count, other])
    round_trip(g)
    found = darner.run(g, {"x": np.float32([1, 2, 3]), "n": np.int32([1, 1, 1])})
    np.testing.assert_array_equal(found[0], [2.0, 2.5, 3.0])
    assert found[1] == 3
    np.testing.assert_array_equal(found[2], [1, 2, 3])
    with pytest.raises(ArgumentError, match="'xs' must be a list of nodes, got one node"):
        g.stats(x)
    with pytest.raises(DTypeError, match="index must be integers, not f32; cast it to i32 first"):
        g.stats([x], index=x)
    with pytest.raises(AttributeError):
        x.stats()  # a list comes first, so it is no method of a node


# --------------------------------------------------------------------------- composites


def test_a_composite_is_a_function_of_other_ops():
    @darner.composite(family="test", samples=[sample(spec(3, 4), 2.0)])
    def sharpen(x: Float, amount: float = 1.0, axis: Axis = -1) -> TensorType:
        """x moved away from its mean."""
        return x

    @sharpen.expand
    def _(x, amount, axis):
        return x + amount * (x - x.mean(axis, keepdims=True))

    assert sharpen.is_composite
    values = np.random.default_rng(0).normal(size=(3, 4))
    wanted = values + 2 * (values - values.mean(-1, keepdims=True))
    for dtype in ("f64", "f32", "f16", "bf16"):
        g = Graph()
        g.set_outputs([g.input("x", (3, 4), dtype).sharpen(2.0, label="sharp")])
        given = {"x": values.astype(dtypes.dtype(dtype).numpy)}
        exact = given["x"].astype(np.float64)
        wanted = exact + 2 * (exact - exact.mean(-1, keepdims=True))
        found = darner.run(g, given)[0]
        assert found.dtype == dtypes.dtype(dtype).numpy
        assert_close(found, wanted, dtype, 4)
        flat = darner.expand(g).verify()
        assert "sharpen" not in [node.op.name for node in flat.nodes]
        np.testing.assert_array_equal(darner.run(flat, given)[0], found)
        round_trip(g)


def test_negative_zero_attributes_have_an_expansion_of_their_own():
    @darner.composite(family="test")
    def shifted(x: Float, amount: float = 0.0) -> TensorType:
        """x times amount."""
        return x

    @shifted.expand
    def _(x, amount):
        return x * amount

    g = Graph()
    x = g.input("x", ())
    g.set_outputs([x.shifted(0.0), x.shifted(-0.0)])
    found = darner.run(g, {"x": np.float32(1.0)})
    assert [bool(np.signbit(value)) for value in found] == [False, True]


def test_a_composite_with_several_results_expands_to_their_nodes():
    @darner.composite(family="test")
    def both_signs(x: Float):
        """x and -x."""
        return x, x

    @both_signs.expand
    def _(x):
        return x, -x

    @darner.composite(family="test")
    def only_one(x: Float):
        """A single result, as a tuple."""
        return (x,)

    @only_one.expand
    def _(x):
        return (x.exp(),)

    g = Graph()
    x = g.input("x", (2,))
    a, b = x.both_signs()
    (c,) = x.only_one()
    g.set_outputs([a, b, c])
    values = np.float32([1.0, -2.0])
    for graph in (g, darner.expand(g).verify()):
        found = darner.run(graph, {"x": values})
        np.testing.assert_array_equal(found[0], values)
        np.testing.assert_array_equal(found[1], -values)
        np.testing.assert_allclose(found[2], np.exp(values), rtol=1e-6)
    round_trip(g)


def test_an_expansion_of_another_type_is_a_fault_of_the_op():
    @darner.composite(family="test")
    def wrong_expansion(x: Float) -> TensorType:
        """Says one thing and does another."""
        return x

    @wrong_expansion.expand
    def _(x):
        return x.sum()

    g = Graph()
    g.set_outputs([g.input("x", (2,)).wrong_expansion()])
    with pytest.raises(
        InternalError, match=r"declared to give f32\[2\], but its expansion gives f32\[\]"
    ):
        darner.run(g, {"x": np.ones(2)})


# --------------------------------------------------------------------------- mistakes in declarations


def test_names_are_declared_once():
    darner.unary("softstep", "x.", lambda x: x)
    with pytest.raises(NameTakenError, match="an op called 'softstep' is already declared"):
        darner.unary("softstep", "x.", lambda x: x)
    for taken in ("tanh", "set_outputs", "shape", "scalar"):
        with pytest.raises(NameTakenError, match=f"'{taken}' is already"):
            darner.unary(taken, "x.", lambda x: x)


def test_a_declaration_needs_annotations_and_documentation():
    with pytest.raises(ArgumentError, match="parameter 'x' of op 'bare' has no annotation"):

        @darner.primitive(family="test")
        def bare(x) -> TensorType:
            """x."""
            return x

    with pytest.raises(ArgumentError, match="undocumented: op 'undocumented' has no docstring"):

        @darner.primitive(family="test")
        def undocumented(x: Tensor) -> TensorType:
            return x

    with pytest.raises(ArgumentError, match="an op cannot declare a parameter of type"):

        @darner.primitive(family="test")
        def strange(x: dict[str, int]) -> TensorType:
            """x."""
            return x

    with pytest.raises(ArgumentError, match="builder 'silent' has no docstring"):

        @darner.builder(family="test")
        def silent(graph: Graph, x: Node) -> Node:
            return x

    with pytest.raises(ArgumentError, match="expected an integer, got 'one'"):

        @darner.primitive(family="test")
        def bad_default(x: Tensor, axis: Axis = "one") -> TensorType:
            """x."""
            return x

    assert not {"bare", "undocumented", "strange", "silent", "bad_default"} & {*OPS, *BUILDERS}


def test_a_rule_must_return_a_type():
    @darner.primitive(family="test")
    def typeless(x: Tensor) -> TensorType:
        """Forgets its answer."""

    with pytest.raises(
        InternalError, match="the shape rule of 'typeless' returned None, not a type"
    ):
        Graph().input("x", (2,)).typeless()


def test_an_op_without_a_reference_says_so_when_run():
    @darner.primitive(family="test")
    def unfinished(x: Tensor) -> TensorType:
        """Not written yet."""
        return x

    g = Graph()
    g.set_outputs([g.input("x", (2,)).unfinished()])
    with pytest.raises(InternalError, match="op 'unfinished' has no reference"):
        darner.run(g, {"x": np.ones(2)})


def test_a_reference_of_the_wrong_shape_is_a_fault_of_the_op():
    darner.unary("shrunk", "x without its end.", lambda x: x[:-1])
    g = Graph()
    g.set_outputs([g.input("x", (3,)).shrunk()])
    with pytest.raises(RunError, match=r"shrunk: .*: its function gave \(2,\), not \(3,\)"):
        darner.run(g, {"x": np.ones(3)})


def test_only_ops_declared_outside_can_be_removed():
    for name in ("tanh", "scalar", "no_such_op"):
        with pytest.raises(ArgumentError, match=f"'{name}' is not an op declared outside darner"):
            unregister(name)
    assert "tanh" in OPS


def test_a_spelling_rewrites_other_calling_forms():
    @darner.primitive(family="test")
    def scaled(x: Float, factor: float) -> TensorType:
        """x times factor."""
        return x

    @scaled.spelling
    def _(graph, *args, percent=None, **kwargs):
        if percent is not None:
            return (*args, percent / 100), kwargs
        if len(args) == 2 and args[1] == 1.0:
            return args[0]  # nothing to do
        return args, kwargs

    g = Graph()
    x = g.input("x", (2,))
    assert x.scaled(percent=50).attrs == {"factor": 0.5}
    assert x.scaled(1.0) is x
    assert g.scaled(x, 3).attrs == {"factor": 3.0}


def test_costs_can_be_declared():
    assert Cost(bytes=8, flops=2) == Cost(8, 2)
