"""Builds that were kept: nothing is done twice, nothing stale is run, and errors speak of the code of today."""

import json
import subprocess
import sys
import textwrap
import warnings
from dataclasses import replace

import numpy as np
import pytest

import darner
from darner import Graph, SessionConfig, optim
from darner.backends.base.cache import CacheWarning, CorruptEntryWarning, ObjectCache
from darner.graph.attributes import Tensor
from darner.graph.errors import Source
from darner.graph.op import unregister
from darner.graph.types import TensorType
from darner.lower.plan_compact import from_rows, to_rows
from darner.optimizer import T, rule, variables
from darner.optimizer.declare import remove_rule
from darner.session import buildkey
from darner.session.buildkey import build_key
from tests.session.opening import OPTIMIZERS, here, perceptron
from tests.zoo import values

PHASES = [
    "darner.optimizer.optimize_training",
    "darner.optimizer.optimize_inference",
    "darner.session.pipeline.lower_for",
    "darner.session.pipeline.add_updates",
    "darner.session.pipeline.attach",
    "darner.session.pipeline.split",
    "darner.backends.cpu.runtime.native.native_of",
    "darner.backends.cpu.runtime.program.native_of",
    "darner.backends.cpu.kernels.functions_of",
    "darner.backends.cpu.kernels.emit_module",
    "darner.backends.cpu.kernels.compile_modules",
]
"""What a second build does none of."""


def forbid(monkeypatch):
    """Let every phase of building fail."""

    def refused(*args, **options):
        raise AssertionError("a phase of building ran")

    for name in PHASES:
        monkeypatch.setattr(name, refused)


def trained(graph, folder, steps=3, **options):
    """What a session has learned after some steps, and how it was built."""
    inputs, params, _ = values(graph)
    options = {"threads": 2, "optimizer": optim.Adam(0.01), **options}
    with darner.build_session(graph, cache=folder, **options) as session:
        session.parameters().update(params)
        losses = []
        for _ in range(steps):
            session.run(inputs)
            losses.append(np.float32(session.read_loss()))
        learned = {**session.parameters(), **session.state(), "losses": np.array(losses)}
        return learned, session.build_seconds, session.report, session.plan()


def assert_same(found, wanted):
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


# --------------------------------------------------------------------------- a second build


@pytest.mark.parametrize("name", ["adam", "accumulated"])
def test_a_second_build_runs_no_phase_and_learns_the_same_bits(tmp_path, monkeypatch, name):
    options = {"optimizer": OPTIMIZERS[name]}
    wanted, spent, report, plan = trained(perceptron(), tmp_path, **options)
    assert {"optimize", "lower", "compile"} <= spent.keys()
    assert not report.cached
    forbid(monkeypatch)
    found, again, told, loaded = trained(perceptron(), tmp_path, **options)
    assert_same(found, wanted)
    assert list(again) == ["load"]
    assert told.cached
    assert told.passes == report.passes
    assert "Of the build that made the cached plan" in str(told)
    assert told.egglog_program == report.egglog_program
    assert loaded == plan
    assert loaded.verify().digest() == plan.digest()
    assert str(loaded) == str(plan)
    # Runs that only add gradients up have a build of their own.
    assert len(list(tmp_path.iterdir())) == {"adam": 1, "accumulated": 2}[name]


def test_any_number_of_threads_uses_the_same_build(tmp_path, monkeypatch):
    wanted, *_ = trained(perceptron(), tmp_path, threads=2)
    forbid(monkeypatch)
    for threads in (1, 3):
        found, *_ = trained(perceptron(), tmp_path, threads=threads)
        assert_same(found, wanted)


def test_another_learning_rate_uses_the_same_build_and_is_the_one_learned_by(tmp_path, monkeypatch):
    trained(perceptron(), tmp_path, optimizer=optim.Adam(0.01))
    wanted, *_ = trained(perceptron(), None, optimizer=optim.Adam(0.5))
    forbid(monkeypatch)
    found, _, _, plan = trained(perceptron(), tmp_path, optimizer=optim.Adam(0.5))
    assert_same(found, wanted)
    assert plan.buffers[plan.leaves("state")["optimizer/learning_rate"]].init == 0.5


def test_inference_keeps_what_is_made_and_packed_once(tmp_path, monkeypatch):
    g = Graph("scaled")
    x, w = g.input("x", (64, 48)), g.parameter("w", (48, 80))
    g.set_outputs([x @ (w * (w.abs().max() + 1.0)), (x @ g.parameter("v", (48, 33))).relu()])
    inputs, params, _ = values(g)

    def predicted():
        with darner.build_inference_session(g, cache=tmp_path, threads=2) as session:
            session.parameters().update(params)
            first = list(session.run(inputs).values())
            session.set_parameter("v", 2 * params["v"])
            return first + list(session.run(inputs).values())

    wanted = predicted()
    np.testing.assert_allclose(wanted[3], 2 * wanted[1], rtol=1e-5, atol=1e-6)
    forbid(monkeypatch)
    for found, value in zip(predicted(), wanted, strict=True):
        np.testing.assert_array_equal(found, value)


def test_each_choice_of_sizes_is_kept(tmp_path, monkeypatch):
    g = Graph("sizes")
    x = g.input("x", ("n", 5))
    g.set_outputs([(x @ g.parameter("w", (5, 3))).softmax()])
    weights = np.random.default_rng(0).random((5, 3), np.float32)

    def predicted(n):
        with darner.build_inference_session(g, cache=tmp_path) as session:
            session.set_parameter("w", weights)
            (found,) = session.run({"x": np.full((n, 5), 0.5, np.float32)}).values()
            return found

    wanted = {n: predicted(n) for n in (3, 17)}
    forbid(monkeypatch)
    for n, value in wanted.items():
        np.testing.assert_array_equal(predicted(n), value)
    with pytest.raises(AssertionError, match="a phase of building ran"):
        predicted(4)


def test_a_session_without_a_cache_keeps_nothing_and_finds_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for cache in (None, False):
        _, spent, report, _ = trained(perceptron(), cache)
        assert {"optimize", "lower", "compile"} <= spent.keys()
        assert not report.cached
    assert list(tmp_path.iterdir()) == []
    trained(perceptron(), True)
    (kept,) = (tmp_path / "darner" / "objects").iterdir()
    assert kept.suffix == ".object"


PROGRAM = """
    import sys
    import darner
    g = darner.Graph("other process")
    x, w = g.input("x", (4, 8)), g.parameter("w", (8, 3))
    g.set_outputs([(x @ w).tanh().square().mean()])
    session = darner.build_session(g, optimizer=darner.optim.Adam(0.1), cache=sys.argv[1])
    session.set_parameter("w", [[0.1 * i] * 3 for i in range(8)])
    session.set_input("x", [[0.2] * 8] * 4)
    for _ in range(3):
        session.step()
    names = ("darner.optimizer", "egglog", "darner.backends.cpu.kernels")
    loaded = [name for name in names if name in sys.modules]
    print(session.get_parameter("w").tobytes().hex(), loaded, list(session.build_seconds))
"""


def test_another_process_loads_neither_optimizer_nor_emitter(tmp_path):
    def output():
        command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    first, second = output(), output()
    assert first.split()[0] == second.split()[0]
    assert "darner.optimizer" in first
    assert second.split(maxsplit=1)[1] == "[] ['load']\n"


def test_a_kept_build_can_be_profiled_traced_and_shared(tmp_path, monkeypatch):
    graph = perceptron()
    inputs, params, _ = values(graph)
    trained(graph, tmp_path)
    with monkeypatch.context() as patched:
        forbid(patched)
        session = darner.build_session(graph, cache=tmp_path, optimizer=optim.Adam(0.01))
    with session:
        session.parameters().update(params)
        session.set_profiling(True)
        session.run(inputs)
        assert len(session.profile("cpu").kernels) >= len(session.plan().kernels)
        session.set_parameter("b1", np.full(5, np.nan))
        assert session.trace_dispatches(inputs=inputs)
        assert session.memory_map() is not None


def test_programs_that_were_closed_are_made_again_without_compiling(monkeypatch):
    graph = perceptron()
    inputs, params, _ = values(graph)
    first = darner.build_session(graph, cache=None, threads=1)
    second = darner.build_inference_session(graph, cache=None, threads=1)
    with first, second:
        first.parameters().update(params)
        second.parameters().update(params)
        (wanted,) = second.run(inputs).values()
        forbid(monkeypatch)
        second.share_parameters(first)  # other memory: other programs
        (found,) = second.run(inputs).values()
        np.testing.assert_array_equal(found, wanted)
        assert "load" in second.build_seconds


# --------------------------------------------------------------------------- what a key is of


def key(graph=None, optimizer=None, sizes=(), **options):
    config = SessionConfig(optimizer=optimizer, **options)
    found = build_key(perceptron() if graph is None else graph, config, optimizer, sizes)
    assert found is not None
    return found.text


def small(op="tanh", label=None, scope="", name="small", constant=2.0, attribute=0.1):
    g = Graph(name)
    x, w = g.input("x", (2, 3)), g.parameter("w", (3, 3))
    with g.scope(scope or "plain"):
        h = g.add_node(op, [x @ w])
        y = (h * constant).leaky_relu(attribute)
    g.set_outputs([y.mean(label=label)])
    return g


def on_one_line():
    g = Graph("lines")
    x = g.input("x", (3,))
    y, z = x.exp(), x.tanh()
    g.set_outputs([(y * z).sum()])
    return g


def on_two_lines():
    g = Graph("lines")
    x = g.input("x", (3,))
    y = x.exp()
    z = x.tanh()
    g.set_outputs([(y * z).sum()])
    return g


def on_other_lines():
    g = Graph("lines")
    x = g.input("x", (3,))

    y = x.exp()

    z = x.tanh()

    g.set_outputs([(y * z).sum()])
    return g


def test_what_a_build_depends_on_is_in_its_key(monkeypatch):
    adam = optim.Adam(0.01)
    keys = [
        key(),
        key(perceptron(hidden=6)),
        key(level=1),
        key(level=3),
        key(mode="infer"),
        key(keep_gradients=False),
        key(sizes=[("n", 3)]),
        key(sizes=[("n", 4)]),
        key(optimizer=adam),
        key(optimizer=adam, keep_gradients=True),
        key(optimizer=optim.AdamW(0.01)),
        key(optimizer=replace(adam, beta1=0.8)),
        key(optimizer=replace(adam, clip_norm=1.0)),
        key(optimizer=replace(adam, accumulate=2)),
        key(optimizer=replace(adam, multipliers={"w1": 0.0})),
        key(optimizer=replace(adam, schedule=optim.warmup(3))),
        key(optimizer=replace(adam, schedule=optim.warmup(4))),
        key(optimizer=replace(adam, schedule=optim.from_function(lambda step: step + 1.0))),
        key(optimizer=replace(adam, schedule=optim.from_function(lambda step: step + 2.0))),
        key(optimizer=optim.AdamW(0.01, decay_filter=optim.matrices_only)),
        key(optimizer=optim.AdamW(0.01, decay_filter=lambda name, shape: name == "w1")),
        key(optimizer=optim.AdamW(0.01, decay_filter=lambda name, shape: name == "w2")),
        key(optimizer=optim.custom(lambda p, g, learning_rate: p - learning_rate * g, 0.1)),
        key(optimizer=optim.custom(lambda p, g, learning_rate: p + learning_rate * g, 0.1)),
        key(small()),
        key(small(op="sin")),
        key(small(label="loss")),
        key(small(scope="deep")),
        key(small(name="other")),
        key(small(constant=3.0)),
        key(small(attribute=0.2)),
        key(on_one_line()),
        key(on_two_lines()),
    ]
    for part in ("source_digest", "_versions", "_machine"):
        with monkeypatch.context() as patched:
            patched.setattr(buildkey, part, lambda *_: "another")
            keys.append(key())
    assert len(set(keys)) == len(keys)


def test_what_a_build_does_not_depend_on_is_not_in_its_key(tmp_path):
    adam = optim.Adam(0.01)
    assert key() == key(perceptron())
    for options in ({"threads": 3}, {"seed": 4}, {"init": "kaiming"}, {"cache": tmp_path}):
        assert key(**options) == key()
    assert key(optimizer=adam) == key(optimizer=replace(adam, learning_rate=0.5))
    assert key(on_two_lines()) == key(on_other_lines())


def test_what_was_declared_outside_has_no_key():
    config = SessionConfig()
    softstep = darner.composite(family="test")(declared_here)
    try:
        g = Graph("own")
        g.set_outputs([softstep(g.input("x", (3,))).sum()])
        assert build_key(g, config, None) is None
    finally:
        unregister("declared_here")
    x = variables("x")
    rule("asin of sin, for small angles", T.asin(T.sin(x)), x)
    try:
        assert build_key(perceptron(), config, None) is None
    finally:
        remove_rule("asin of sin, for small angles")
    assert build_key(perceptron(), config, None) is not None


def declared_here(x: Tensor) -> TensorType:
    """An op of a user."""
    return x


@pytest.mark.parametrize("kind", ["plan file", "cache"])
def test_ops_of_a_user_are_built_each_time(tmp_path, kind):
    op = darner.composite(family="test")(declared_here)
    try:
        op.expand(lambda x: x * 3.0)
        g = Graph("own")
        g.set_outputs([op(g.input("x", (3,))).sum()])
        for _ in range(2):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                path = tmp_path / "own.plan" if kind == "plan file" else None
                session = darner.build(g, mode="infer", cache=tmp_path, plan_file=path)
            with session:
                (found,) = session.run({"x": np.ones(3)}).values()
                assert found == 9
                assert "optimize" in session.build_seconds
            told = [str(item.message) for item in caught]
            assert len(told) == (kind == "plan file")
            assert all("ops or rules of your own" in text for text in told)
    finally:
        unregister("declared_here")
    assert not list(tmp_path.glob("*.plan"))


# --------------------------------------------------------------------------- damage


def test_a_damaged_build_is_told_and_made_again(tmp_path):
    wanted, *_ = trained(perceptron(), tmp_path)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", whole[:-1] + bytes([whole[-1] ^ 1])):
        path.write_bytes(damaged)
        with pytest.warns(CorruptEntryWarning, match="is damaged"):
            found, spent, *_ = trained(perceptron(), tmp_path)
        assert "compile" in spent
        assert_same(found, wanted)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found, spent, *_ = trained(perceptron(), tmp_path)
        assert list(spent) == ["load"]
        assert_same(found, wanted)


@pytest.mark.parametrize("content", [b"", b"not pieces", b"\1" + 7 * b"\0" + b"\2" + 7 * b"\0{}"])
def test_an_entry_of_another_form_is_told_and_made_again(tmp_path, content):
    wanted, *_ = trained(perceptron(), tmp_path)
    (path,) = tmp_path.iterdir()
    ObjectCache(tmp_path).put(path.stem, content)
    with pytest.warns(CacheWarning, match="cannot be read"):
        found, *_ = trained(perceptron(), tmp_path)
    assert_same(found, wanted)
    _, spent, *_ = trained(perceptron(), tmp_path)
    assert list(spent) == ["load"]


# --------------------------------------------------------------------------- the user's lines


def first_place():
    g = Graph("places")
    x, shift = g.input("x", (4, 5)), g.input("shift", (3,), "i32")
    rows = g.gather(x, shift + 1, 0, label="rows")
    g.set_outputs([rows.sum()])
    return g, rows.source


def second_place():
    g = Graph("places")
    x, shift = g.input("x", (4, 5)), g.input("shift", (3,), "i32")
    # The same on other lines.
    rows = g.gather(x, shift + 1, 0, label="rows")
    g.set_outputs([rows.sum()])
    return g, rows.source


def test_an_error_of_a_kept_build_names_the_line_of_this_graph(tmp_path, monkeypatch):
    given = {"x": np.zeros((4, 5)), "shift": np.array([0, 5, 1], np.int32)}
    lines = []
    for make in (first_place, second_place):
        graph, source = make()
        with darner.build_inference_session(graph, cache=tmp_path) as session:
            message = here(lambda s=session: s.run(given))
            assert "gather 'rows'" in message
            assert f"index 6 is outside 0..3, and comes from input 'shift' ({source})" in message
            lines.append(source.line)
            assert session.plan().kernels[0].source == source
        forbid(monkeypatch)  # only the first may build
    assert lines[0] != lines[1]


def test_lines_are_kept_by_node_or_call_and_others_as_they_are():
    graph, other = on_two_lines(), on_other_lines()
    first = build_key(graph, SessionConfig(), None)
    second = build_key(other, SessionConfig(), None)
    assert first.call.line + 1 == second.call.line
    for one, two in zip(graph.nodes, other.nodes, strict=True):
        assert second.line(first.numbered(one.source)) == two.source
    assert second.line(first.numbered(first.call)) == second.call
    assert second.line(first.numbered(None)) is None
    elsewhere = Source("schedule.py", 3)
    assert second.line(json.loads(json.dumps(first.numbered(elsewhere)))) == elsewhere


# --------------------------------------------------------------------------- plans as rows


def test_rows_of_a_plan_make_an_equal_plan():
    with darner.build_session(perceptron(), cache=None, threads=1) as session:
        plan = session.plan()
    sources = [kernel.source for kernel in plan.kernels]
    again = from_rows(to_rows(plan), sources)
    assert again == plan
    assert again.digest() == plan.digest()
    assert list(again.specs) == list(plan.specs)
    assert {k: str(s.body) for k, s in again.specs.items()} == {
        k: str(s.body) for k, s in plan.specs.items()
    }
