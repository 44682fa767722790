"""Ops of a user's own: by scalar code they run wherever there is a compiler, by a function of NumPy arrays on the CPU."""

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import darner
from darner import Graph, optim
from darner.graph.attributes import Axis, Float, Number
from darner.graph.dtypes import dtype as dtype_of
from darner.graph.op import OPS, unregister
from darner.lower.lower import lower
from darner.ops.samples import sample, spec
from darner.testing import assert_close
from tests.gpu import needs_gpu
from tests.session.failing import contents

DEVICES = ["reference", "cpu", pytest.param("gpu", marks=needs_gpu)]
X = np.linspace(-2, 2, 24, dtype=np.float32).reshape(6, 4)


@pytest.fixture(scope="module")
def code(tmp_path_factory):
    return tmp_path_factory.mktemp("code")


@contextmanager
def declared(*ops):
    """Ops that are known for a while."""
    try:
        yield ops[0] if len(ops) == 1 else ops
    finally:
        for op in ops:
            unregister(op.name)


def slope(g, x, y):
    return g * (3.0 * x * x)


def plain_cube(function=lambda x: x**3, **options):
    """``cube`` by its NumPy function alone."""
    return declared(darner.unary("cube", "x * x * x.", function, **{"vjp": slope, **options}))


def emitted_cube():
    """``cube`` in one declaration, scalar code included."""
    cube = darner.unary("cube", "x * x * x.", lambda x: x**3, vjp=slope)

    @cube.emit
    def _(x):
        return x * x * x

    return declared(cube)


def layers(dtype="f32", rows=6):
    """A loss around a cube, between two products."""
    g = Graph("layers")
    x, w = g.input("x", (rows, 4), dtype), g.parameter("w", (4, 5), dtype)
    y = (x @ w).cube(label="cubed")
    out = (y @ g.parameter("v", (5, 3), dtype)).tanh()
    g.set_outputs([out.cast("f64" if dtype == "f64" else "f32").square().sum(), out])
    return g


def weights(dtype="f32"):
    rng = np.random.default_rng(3)
    kind = dtype_of(dtype).numpy
    return {
        "w": rng.normal(size=(4, 5), scale=0.5).astype(kind),
        "v": rng.normal(size=(5, 3), scale=0.5).astype(kind),
    }


def kinds(graph, device="cpu"):
    plan = lower(graph, target=device)
    return [plan.spec(kernel).kind for kernel in plan.kernels]


# --------------------------------------------------------------------------- scalar code


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
def test_one_declaration_with_scalar_code_runs_with_gradients_on_every_device(device, dtype, code):
    kind = dtype_of(dtype).numpy
    given = weights(dtype)
    with emitted_cube():
        graph = layers(dtype)
        assert "host" not in kinds(graph)
        with darner.build_session(graph, device=device, cache=code) as session:
            session.parameters().update(given)
            found = session.run({"x": X.astype(kind)})
            gradients = session.gradients()
    wide = {name: value.astype(np.float64) for name, value in given.items()}
    x = X.astype(kind).astype(np.float64)
    inner = x @ wide["w"]
    out = np.tanh(inner**3 @ wide["v"])
    back = 2 * out * (1 - out * out)
    wanted = {
        "v": (inner**3).T @ back,
        "w": x.T @ ((back @ wide["v"].T) * 3 * inner**2),
    }
    # Each of these is made of sums of sums, whose terms were rounded on the way.
    assert_close(found["output1"], out, dtype, 300)
    for name, value in wanted.items():
        assert_close(np.asarray(gradients[name]) / 10, value / 10, dtype, 3000)


def test_scalar_code_is_part_of_a_neighbours_kernel():
    with emitted_cube():
        g = Graph("chain")
        g.set_outputs([(g.input("x", (8,)) * 2.0).cube().exp()])
        assert kinds(g) == ["map"]


@pytest.mark.parametrize("device", DEVICES)
def test_a_rule_of_two_operands_uses_functions_masks_and_attributes(device, code):
    @darner.primitive(
        family="mine", traits=["elementwise"], samples=[sample(spec(3), spec(3), power=2)]
    )
    def bump(a: Float, b: Float, power: int = 1) -> darner.TensorType:
        """Powers of exp(-a), where a is not above b."""
        return darner.TensorType(a.shape, a.dtype)

    @bump.reference
    def _(a, b, power):
        return np.where(a <= b, np.exp(-a) ** power, b)

    @bump.emit
    def _(a, b, power):
        found = a.constant(1.0)
        for _ in range(power):
            found = found * (-a).exp()
        return (a <= b).choose(found, b)

    with declared(bump):
        g = Graph("bumps")
        a, b = g.input("a", (24,)), g.input("b", (24,))
        g.set_outputs([a.bump(b, power=1), a.bump(b, power=3)])
        values = {"a": X.ravel(), "b": np.zeros(24, np.float32)}
        wanted = darner.run(g, values, float64=True)
        with darner.build_inference_session(g, device=device, cache=code) as session:
            found = list(session.run(values).values())
    for got, expected in zip(found, wanted, strict=True):
        assert_close(got, expected, "f32", 8)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["i32", "u8", "i8"])
def test_a_rule_for_integers_is_told_whether_they_are_signed(device, dtype, code):
    half = darner.unary("halved", "floor(x / 2).", lambda x: x // 2, kind=Number)

    @half.emit(of="integers")
    def _(x, signed):
        return x.shift_right(1, signed=signed)

    values = np.arange(-9, 9).astype(dtype_of(dtype).numpy)
    with declared(half):
        g = Graph("halves")
        g.set_outputs([g.input("x", (18,), dtype).halved()])
        assert kinds(g) == ["map"]
        with darner.build_inference_session(g, device=device, cache=code) as session:
            (found,) = session.run({"x": values}).values()
        np.testing.assert_array_equal(found, values // 2)
        floats = Graph("floats")
        floats.set_outputs([floats.input("x", (18,)).halved()])
        assert kinds(floats) == ["host"]


def test_an_op_declared_again_under_its_name_is_the_new_one(code):
    answers = []
    for factor in (2.0, 5.0):
        times = darner.unary("scaled", "x times a number.", lambda x, f=factor: x * f)
        times.emit(lambda x, f=factor: x * f)
        with declared(times):
            g = Graph("again")
            g.set_outputs([g.input("x", (4,)).scaled().sum(), g.input("y", (4,)).scaled()])
            with darner.build_inference_session(g, cache=code, threads=1) as session:
                found = session.run({"x": X[0], "y": X[1]})
            answers.append(found["output1"])
    np.testing.assert_array_equal(answers[0], X[1] * 2)
    np.testing.assert_array_equal(answers[1], X[1] * 5)


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        (lambda x: x > 0, "odd: its scalar code cannot be written: it gives .*i1"),
        (lambda x: 1.0, "odd: its scalar code cannot be written: "),
        (
            lambda x: x.nothing(),
            "odd: its scalar code cannot be written: AttributeError: .*nothing",
        ),
    ],
)
def test_a_rule_that_cannot_be_written_is_an_error_that_names_the_op(rule, says, code):
    odd = darner.unary("odd", "Not as it says.", lambda x: x)
    odd.emit(rule)
    with declared(odd):
        g = Graph("odd")
        g.set_outputs([g.input("x", (64,)).odd()])
        with pytest.raises(darner.UnsupportedError, match=says):
            darner.build_inference_session(g, cache=code).run({"x": np.zeros(64, np.float32)})


def test_only_element_wise_ops_take_scalar_code():
    @darner.primitive(family="mine", samples=[])
    def pairs_of(x: Float) -> darner.TensorType:
        """Nothing in particular."""
        return x

    with declared(pairs_of), pytest.raises(darner.ArgumentError, match="not element-wise"):
        pairs_of.emit(lambda x: x)
    with pytest.raises(darner.ArgumentError, match="tanh is darner's own"):
        OPS["tanh"].emit(lambda x: x)


# --------------------------------------------------------------------------- functions of arrays


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
def test_a_function_trains_between_native_kernels(dtype, threads, code):
    """As the same steps with scalar code do."""
    kind, losses = dtype_of(dtype).numpy, {}
    for how, make in {"host": plain_cube, "emitted": emitted_cube}.items():
        with make():
            graph = layers(dtype)
            assert kinds(graph).count("host") == (how == "host")
            options = {"optimizer": optim.Adam(0.05), "threads": threads, "cache": code}
            with darner.build_session(graph, **options) as session:
                session.parameters().update(weights(dtype))
                losses[how] = [
                    float(session.run({"x": X.astype(kind)})["output0"]) for _ in range(8)
                ]
    assert losses["host"][-1] < losses["host"][0] / 2
    rough = {"f16": 0.05, "bf16": 0.3}.get(dtype, 1e-3)
    np.testing.assert_allclose(losses["host"], losses["emitted"], rtol=rough)


def test_a_function_is_called_once_a_step_with_arrays_to_read(code):
    seen = []

    def function(x):
        seen.append((x.shape, x.dtype.name, x.flags.writeable))
        return x**3

    with plain_cube(function), darner.build_inference_session(layers(), cache=code) as session:
        session.parameters().update(weights())
        first = session.run({"x": X})["output1"]
        np.testing.assert_array_equal(session.run({"x": X})["output1"], first)
        session.run({"x": X + 1})
    assert seen == [((6, 5), "float32", False)] * 3


def test_views_between_ops_and_a_function_are_no_kernels(code):
    with plain_cube():
        g = Graph("views")
        x = g.input("x", (6, 4))
        g.set_outputs([(x.transpose((1, 0)).cube() + 1.0).transpose((1, 0))])
        assert kinds(g)[0] == "host"
        with darner.build_inference_session(g, cache=code) as session:
            (found,) = session.run({"x": X}).values()
    np.testing.assert_array_equal(found, X**3 + 1)


def test_a_primitive_with_several_results_and_integers(code):
    @darner.primitive(family="mine", samples=[sample(spec(3, 5))])
    def ranked(x: Float, axis: Axis = -1) -> tuple[darner.TensorType, darner.TensorType]:
        """The sorted values, and the index of each."""
        return x, x.with_dtype(dtype_of("i32"))

    @ranked.reference
    def _(x, axis):
        return np.sort(x, axis), np.argsort(x, axis)

    with declared(ranked):
        g = Graph("ranks")
        values, places = g.input("x", (6, 4)).ranked(axis=0)
        g.set_outputs([values * 2.0, places + 1])
        with darner.build_inference_session(g, cache=code) as session:
            found = list(session.run({"x": -X}).values())
    np.testing.assert_array_equal(found[0], np.sort(-X, 0) * 2)
    np.testing.assert_array_equal(found[1], np.argsort(-X, 0) + 1)


def complex_cubes():
    g = Graph("complex")
    z = g.input("z", (6,), "c64")
    g.set_outputs([(z + z).cube() * z])
    values = (X[:, 0] + 1j * X[:, 1]).astype(np.complex64)
    return g, values, (2 * values) ** 3 * values


def test_complex_numbers_of_a_function_are_not_taken_apart(code):
    """What is done to real and imaginary parts alone would be another cube."""
    with emitted_cube():
        g, values, wanted = complex_cubes()
        assert "host" in kinds(g)
        with darner.build_inference_session(g, cache=code) as session:
            (found,) = session.run({"z": values}).values()
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_a_rule_of_pairs_is_the_code_for_complex_numbers(device, code):
    with emitted_cube() as cube:

        @cube.pairs
        def _(x):
            re, im = x
            return re * (re * re - 3.0 * im * im), im * (3.0 * re * re - im * im)

        g, values, wanted = complex_cubes()
        assert kinds(g) == ["map"]
        with darner.build_inference_session(g, device=device, cache=code) as session:
            (found,) = session.run({"z": values}).values()
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_symbolic_sizes(code):
    with plain_cube():
        g = Graph("rows")
        x = g.input("x", (darner.symbol("n"), 4))
        g.set_outputs([(x + 1.0).cube().sum(0)])
        with darner.build_inference_session(g, cache=code) as session:
            for n in (1, 6, 3):
                (found,) = session.run({"x": X[:n]}).values()
                np.testing.assert_allclose(found, ((X[:n] + 1) ** 3).sum(0), rtol=1e-5)


def test_what_depends_on_parameters_alone_is_computed_once(code):
    calls = []

    def function(x):
        calls.append(1)
        return x**3

    with plain_cube(function):
        g = Graph("fixed")
        g.set_outputs([g.input("x", (6, 4)) * g.parameter("w", (4,)).cube()])
        with darner.build_inference_session(g, cache=code) as session:
            session.set_parameter("w", X[0])
            for _ in range(3):
                (found,) = session.run({"x": X}).values()
    np.testing.assert_array_equal(found, X * X[0] ** 3)
    assert len(calls) == 1


def test_a_function_of_parameters_that_fails_is_called_again_when_they_have_changed(code):
    with plain_cube(raising):
        g = Graph("fixed")
        g.set_outputs([g.input("x", (6, 4)) * g.parameter("w", (4,)).cube(label="once")])
        with darner.build_inference_session(g, cache=code) as session:
            session.set_parameter("w", -X[0] * 1000)
            for _ in range(2):
                with pytest.raises(darner.RunError, match=r"cube 'once': .*too large for me"):
                    session.run({"x": X})
            session.set_parameter("w", X[0])
            (found,) = session.run({"x": X}).values()
    np.testing.assert_array_equal(found, X * X[0] ** 3)


def test_a_profile_and_a_trace_show_the_function(code):
    with (
        plain_cube(),
        darner.build_session(layers(), optimizer=optim.SGD(0.1), cache=code) as session,
    ):
        session.parameters().update(weights())
        session.set_profiling(True)
        for _ in range(3):
            session.run({"x": X})
        shown = [kernel for kernel in session.profile("cpu").kernels if kernel.kind == "host"]
        assert [kernel.ops for kernel in shown] == ["cube"]
        assert shown[0].label == "cubed"
        assert shown[0].median > 0
        before = contents(session)
        session.set_input("x", X)
        traced = session.trace_dispatches().dispatches
        assert "cube" in [found.ops for found in traced if found.kind == "host"]
        assert contents(session) == before


def test_no_vjp_is_the_error_it_was(code):
    with (
        plain_cube(vjp=None),
        pytest.raises(darner.DarnerError, match="cube 'cubed': has no derivative"),
    ):
        darner.build_session(layers(), cache=code)


# --------------------------------------------------------------------------- faults


def raising(x):
    if x.max() > 100:
        raise OverflowError("too large for me")
    return x**3


def writing(x):
    if x.max() > 100:
        x[...] = 0
    return x**3


def short(x):
    return x[:2] ** 3 if x.max() > 100 else x**3


def rounded(x):
    return x.astype(np.complex64) if x.max() > 100 else x**3


def objects(x):
    return x.astype(object) if x.max() > 100 else x**3


FAULTS = {
    "an exception": (raising, OverflowError, "cannot compute: too large for me"),
    "writing to an operand": (writing, ValueError, "cannot compute: .*read-only"),
    "another shape": (short, type(None), r"its function gave \(2, 5\), not \(6, 5\)"),
    "another type": (rounded, type(None), "its function gave complex64, not f32"),
    "no numbers": (objects, type(None), "its function gave object, not f32"),
}


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize("name", FAULTS)
def test_a_function_that_fails_changes_nothing_and_names_op_label_and_line(name, device, code):
    function, cause, says = FAULTS[name]
    with plain_cube(function):
        options = {"device": device, "cache": code, "threads": 2}
        with darner.build_session(layers(), optimizer=optim.Adam(0.05), **options) as session:
            session.parameters().update(weights())
            session.run({"x": X})
            for _ in range(2):
                before = contents(session)
                with pytest.raises(darner.RunError, match=says) as caught:
                    session.run({"x": X * 1000})
                assert str(caught.value).startswith("cube 'cubed': ")
                assert "(test_user_ops.py:" in str(caught.value)
                assert isinstance(caught.value.__cause__, cause)
                assert contents(session) == before
                with pytest.raises(darner.RunError):
                    session.read_output_by_index(1)
                session.run({"x": X})
                assert contents(session) != before


def test_the_gradients_function_may_fail_as_well(code):
    """It is called after all of the forward pass, and before anything is updated."""

    def back(x):
        if x.max() > 10:
            raise ArithmeticError("no slope")
        return 3 * x * x

    steep = darner.unary("steepness", "The slope of a cube.", back)
    cube = darner.unary(
        "cube", "x * x * x.", lambda x: x**3, vjp=lambda g, x, y: g * x.steepness(label="slope")
    )
    with declared(cube, steep):
        graph = layers()
        with darner.build_session(graph, optimizer=optim.Adam(0.05), cache=code) as session:
            session.parameters().update(weights())
            session.run({"x": X})
            before = contents(session)
            with pytest.raises(darner.RunError, match=r"steepness 'slope': .*no slope"):
                session.run({"x": X * 100})
            assert contents(session) == before


def test_an_index_outside_its_axis_is_told_before_a_function_sees_what_it_gave(code):
    calls = []

    def function(x):
        calls.append(1)
        return x**3

    with plain_cube(function):
        g = Graph("tokens")
        indices = g.input("tokens", (6,), "i32") * 2
        rows = g.gather(g.parameter("table", (9, 4)), indices, label="lookup")
        g.set_outputs([rows.cube().sum()])
        with darner.build_session(g, optimizer=optim.SGD(0.1), cache=code) as session:
            session.set_parameter("table", np.ones((9, 4), np.float32))
            session.run({"tokens": np.arange(5, -1, -1, dtype=np.int32) % 4})
            before = contents(session)
            with pytest.raises(darner.RunError, match=r"gather 'lookup': .*index 10 is outside"):
                session.run({"tokens": np.arange(6, dtype=np.int32)})
            assert contents(session) == before
    assert len(calls) == 1


def test_an_interrupt_in_a_function_ends_the_step_and_changes_nothing(code):
    def function(x):
        if x.max() > 100:
            raise KeyboardInterrupt
        return x**3

    with (
        plain_cube(function),
        darner.build_session(layers(), optimizer=optim.Adam(0.05), cache=code) as session,
    ):
        session.parameters().update(weights())
        session.run({"x": X})
        before = contents(session)
        with pytest.raises(KeyboardInterrupt):
            session.run({"x": X * 1000})
        assert contents(session) == before
        with pytest.raises(darner.RunError):
            session.read_output_by_index(1)
        session.run({"x": X})


@pytest.mark.parametrize("what", ["run", "close"])
def test_a_function_cannot_use_the_session_that_calls_it(what, code):
    held = []

    def function(x):
        if held:
            held[0].run({"x": X}) if what == "run" else held[0].close()
        return x**3

    with (
        plain_cube(function),
        darner.build_session(layers(), optimizer=optim.Adam(0.05), cache=code) as session,
    ):
        session.parameters().update(weights())
        session.run({"x": X})
        before = contents(session)
        held.append(session)
        with pytest.raises(darner.RunError, match="in the middle of a step"):
            session.run({"x": X})
        held.clear()
        assert contents(session) == before
        session.run({"x": X})


def test_a_function_is_not_called_while_a_graph_is_built(code):
    calls = []

    def function(x):
        calls.append(1)
        return x**3

    with plain_cube(function):
        g = Graph("constants")
        g.set_outputs([g.input("x", (4,)) + g.constant(np.ones(4, np.float32)).cube()])
        with darner.build_inference_session(g, level=2, cache=code) as session:
            assert not calls
            (found,) = session.run({"x": X[0]}).values()
    np.testing.assert_array_equal(found, X[0] + 1)


# --------------------------------------------------------------------------- where they do not run


def test_an_op_of_which_nothing_is_known_is_an_error_when_a_graph_is_built():
    @darner.primitive(family="mine", samples=[])
    def unfinished(x: Float) -> darner.TensorType:
        """Not written yet."""
        return x

    with declared(unfinished):
        g = Graph("unfinished")
        g.set_outputs([g.input("x", (4,)).unfinished()])
        with pytest.raises(darner.UnsupportedError, match=r"unfinished: .*neither a reference nor"):
            darner.build_inference_session(g, cache=None)


@needs_gpu
def test_a_gpu_says_what_would_help():
    with plain_cube(), pytest.raises(darner.UnsupportedError) as caught:
        darner.build_session(layers(), device="gpu", cache=None)
    told = str(caught.value)
    assert told.startswith("cube 'cubed': the device 'gpu' cannot run it")
    for part in ("@cube.emit", "expansion", "device='cpu'", "(test_user_ops.py:"):
        assert part in told


@needs_gpu
def test_a_gpu_names_the_types_that_scalar_code_is_not_for():
    with emitted_cube():
        g, _, _ = complex_cubes()
        with pytest.raises(darner.UnsupportedError, match=r"cube: .*not for c64\[6\]"):
            darner.build_inference_session(g, device="gpu", cache=None)


READ = """
import sys, darner
from darner.lower.plan import Plan
try:
    Plan.load(sys.argv[1])
except darner.DarnerError as error:
    print(error)
"""


def test_a_saved_plan_runs_where_its_op_is_known_and_is_an_error_elsewhere(tmp_path):
    path = tmp_path / "cubes.plan"
    with plain_cube():
        g = Graph("saved")
        g.set_outputs([(g.input("x", (4,)) * 2.0).cube(label="cubed")])
        plan = lower(g, target="cpu")
        plan.save(path)
        known = darner.lower.plan.Plan.load(path)
        assert known == plan
        from darner.backends.base.lowering import compile_for

        program = compile_for("cpu", known, threads=1)
        program.write(known.leaves("input")["x"], X[0])
        program.run()
        np.testing.assert_array_equal(program.read(known.outputs[0]), (2 * X[0]) ** 3)
        program.close()
    told = subprocess.run(
        [sys.executable, "-c", READ, str(path)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path(darner.__file__).parents[1])},
    ).stdout
    assert "'cube'" in told
    assert "declare" in told


def test_builds_with_ops_of_ones_own_are_not_kept(tmp_path):
    for factor in (2.0, 3.0):
        with (
            plain_cube(lambda x, f=factor: x * f),
            darner.build_inference_session(layers(), cache=tmp_path) as session,
        ):
            session.parameters().update(weights())
            inner = X @ weights()["w"]
            found = session.run({"x": X})["output1"]
        np.testing.assert_allclose(found, np.tanh(inner * factor @ weights()["v"]), rtol=1e-4)
