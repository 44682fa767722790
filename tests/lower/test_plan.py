"""A plan runs as its graph does, prints, saves, and refuses what is wrong. Lowering here is naive: a node, a kernel."""

import json
import os
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import darner
from darner import FormatError, Graph, RunError, TensorType, VerifyError
from darner.backends.base.lowering import lower_for
from darner.backends.reference.plan import run_plan
from darner.graph.data import Data
from darner.graph.types import TupleType
from darner.lower.plan import (
    ALIGNMENT,
    VERSION,
    Buffer,
    ExecutionPlan,
    Kernel,
    Plan,
    Spec,
    may_share,
)
from darner.lower.plan_json import signed
from tests.zoo import ZOO, llama, mlp_step, values

# --------------------------------------------------------------------------- a lowering


def kind_of(node):
    if "elementwise" in node.op.traits:
        return "map"
    named = {"matmul": "contract", "gather": "index", "scan": "scan", "attention": "attention"}
    return named.get(node.op.name, "library")


def spec_of(node):
    """The spec of one node alone, and the ids of the nodes it reads, each once."""
    body, operands = Graph(), list(dict.fromkeys(node.inputs))
    leaves = {i: node.graph.nodes[i] for i in operands}
    placed = {i: body.input(str(n), leaves[i].type) for n, i in enumerate(operands)}
    result = body.insert_like(node, [placed[i] for i in node.inputs])
    several = isinstance(result.type, TupleType)
    count = len(result.type.items) if several else 0
    body.set_outputs([result.project(i) for i in range(count)] if several else [result])
    return Spec(kind_of(node), body.freeze()), operands


def aligned(count):
    return -(-count // ALIGNMENT) * ALIGNMENT


def lower(graph, *, reuse=True, in_place=True, target="reference", options=None):
    """A plan with a kernel for each node that is not a leaf, a constant or a projection."""
    graph = graph.toposort()
    specs, buffers, kernels, constants = {}, [], [], {}
    where = {}  # (node, result) -> buffer

    def buffer(*args, **kwargs):
        buffers.append(Buffer(*args, **kwargs))
        return len(buffers) - 1

    written = {}
    if in_place:
        written = {value.id: leaf for leaf, value in graph.updates.items() if alone(graph, leaf)}
    for node in graph.nodes:
        name = node.op.name
        if name in ("input", "parameter", "state"):
            more = {"init": node.attrs["init"]} if name == "state" else {}
            where[node.id, 0] = buffer(node.type, name, node.name, **more)
        elif name == "constant":
            data = node.attrs["values"]
            constants[data.digest] = data
            where[node.id, 0] = buffer(node.type, "constant", data.digest)
        elif name == "project":
            where[node.id, 0] = where[node.inputs[0], node.attrs["index"]]
        else:
            spec, reads = spec_of(node)
            specs.setdefault(spec.digest, spec)
            leaf = written.get(node.id)
            if leaf is not None and leaf.id in reads and may_share(spec, reads.index(leaf.id), 0):
                where[node.id, 0] = where[leaf.id, 0]
            else:
                for i, output in enumerate(spec.body.outputs):
                    where[node.id, i] = buffer(output.type, "arena", offset=0)
            results = tuple(where[node.id, i] for i in range(len(spec.body.outputs)))
            operands = tuple(where[i, 0] for i in reads)
            kernels.append(
                Kernel(spec.digest, operands, results, (node.id,), node.label, node.source)
            )
    plan = Plan(
        graph.name,
        target,
        specs,
        tuple(buffers),
        tuple(kernels),
        tuple(where[node.id, 0] for node in graph.outputs),
        tuple(node.label for node in graph.outputs),
        tuple((where[leaf.id, 0], where[v.id, 0]) for leaf, v in graph.updates.items()),
        constants,
        options={} if options is None else options,
    )
    return placed(plan, reuse)


def alone(graph, leaf):
    """True when the update of a leaf is its last reader, so that it may be written in place."""
    value = graph.updates[leaf]
    others = [v for other, v in graph.updates.items() if other is not leaf]
    return (
        [user.id for user in graph.users(leaf)][-1:] == [value.id]
        and not graph.is_output(leaf)
        and all(v is not leaf for v in others)
    )


def placed(plan, reuse):
    """Offsets for the arena: first fit among what is alive, in place where a kernel may."""
    naive = sum(aligned(b.nbytes) for b in plan.buffers if b.place == "arena")
    lives, buffers, top = plan.lifetimes(), list(plan.buffers), 0
    for k, kernel in enumerate(plan.kernels):
        taken = {}
        for r, i in enumerate(kernel.results):
            if lives[i] is None:
                continue
            size = aligned(buffers[i].nbytes)
            if not reuse:
                buffers[i] = replace(buffers[i], offset=top)
                top += size
                continue
            offset = None
            for o, j in enumerate(kernel.operands):
                ends = lives[j] and lives[j][1] == k and buffers[j].offset not in taken
                if ends and may_share(plan.spec(kernel), o, r):
                    offset = buffers[j].offset
            if offset is None:
                busy = sorted(
                    (buffers[j].offset, buffers[j].offset + aligned(buffers[j].nbytes))
                    for j, life in enumerate(lives)
                    if life and life[0] <= k <= life[1] and (life[0] < k or j in taken.values())
                )
                offset = 0
                for start, end in busy:
                    if offset + size <= start:
                        break
                    offset = max(offset, end)
            buffers[i] = replace(buffers[i], offset=offset)
            taken[offset] = i
            top = max(top, offset + size)
    return replace(plan, buffers=tuple(buffers), arena_bytes=top, naive_bytes=naive)


# --------------------------------------------------------------------------- running

MODELS = [
    "llama, composite",
    "llama, primitive 0, training",
    "gpt2, composite, training",
    "resnet, composite, training",
    "mlp with dropout, primitive 1, training",
    "vit by convolution, primitive 2",
    "mlp, composite, adam",
    "mlp, primitive, sgd",
]


def assert_plan_runs_as_graph(graph, plan, float64=False):
    inputs, params, states = values(graph)
    wanted_state, found_state = dict(states), dict(states)
    wanted = darner.run(graph, inputs, params, state=wanted_state, float64=float64)
    found = run_plan(plan, inputs, params, state=found_state, float64=float64)
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    assert found_state.keys() == wanted_state.keys()
    for name, b in wanted_state.items():
        np.testing.assert_array_equal(found_state[name], b)


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_a_plan_computes_what_its_graph_does_bit_for_bit(name, reuse):
    graph = ZOO[name]()
    plan = lower(graph, reuse=reuse)
    assert_plan_runs_as_graph(graph, plan)
    if reuse:
        assert plan.arena_bytes < plan.naive_bytes


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_a_plan_in_float64_computes_what_its_graph_does_there(dtype):
    graph = mlp_step(layers=1, dtype=dtype)
    assert_plan_runs_as_graph(graph, lower(graph), float64=True)
    assert_plan_runs_as_graph(graph, lower(graph))


def test_updates_in_place_and_by_copy_give_the_same_states_over_several_steps():
    graph = mlp_step(optimizer="sgd")
    inputs, params, _ = values(graph)
    plans = [lower(graph, in_place=flag) for flag in (False, True)]
    assert all(leaf != value for leaf, value in plans[0].updates)
    assert any(leaf == value for leaf, value in plans[1].updates)
    kept = []
    for plan in plans:
        state, weights = {}, dict(params)
        for _ in range(3):
            run_plan(plan, inputs, weights, state=state)
            weights = {name: state[name] for name in params}
        kept.append(state)
    for name, array in kept[0].items():
        np.testing.assert_array_equal(array, kept[1][name])
        assert np.isfinite(array).all()


def test_a_run_changes_neither_the_callers_arrays_nor_states_it_was_not_given():
    graph = Graph()
    counted = graph.state("n", (2,), init=5.0)
    graph.set_update(counted, counted + 1.0)
    graph.set_outputs([graph.parameter("w", (2,)) * 2.0])
    plan = lower(graph)
    assert plan.updates[0][0] == plan.updates[0][1]
    given = {"n": np.zeros(2, np.float32)}
    kept = given["n"]
    weights = np.ones(2, np.float32)
    assert run_plan(plan, {}, {"w": weights}, state=given)[0].tolist() == [2, 2]
    assert kept.tolist() == [0, 0]
    assert given["n"].tolist() == [1, 1]
    fresh = {}
    run_plan(plan, {}, {"w": weights}, state=fresh)
    assert fresh["n"].tolist() == [6, 6]
    run_plan(plan, {}, {"w": weights})
    assert weights.tolist() == [1, 1]


def test_states_that_take_each_others_value_are_swapped():
    graph = Graph()
    a, b = graph.state("a", (2,), init=1.0), graph.state("b", (2,), init=2.0)
    graph.set_update(a, b)
    graph.set_update(b, a)
    graph.set_outputs([a + b, a])
    state = {}
    found = run_plan(lower(graph), state=state)
    assert [array.tolist() for array in found] == [[3, 3], [1, 1]]
    assert (state["a"].tolist(), state["b"].tolist()) == ([2, 2], [1, 1])


def test_a_node_of_several_results_is_one_kernel_and_projections_are_none():
    graph = Graph()
    x = graph.input("x", (3, 5))
    largest, indices = graph.top_k(x, 2)
    graph.set_outputs([indices, largest * 2.0])
    plan = lower(graph)
    assert [len(kernel.results) for kernel in plan.kernels] == [2, 1]
    assert_plan_runs_as_graph(graph, plan)


def test_quantised_parameters_lie_in_memory_as_bytes():
    graph = Graph()
    graph.set_outputs([graph.input("x", (2, 32)) @ graph.parameter_q8("w", (32, 3))])
    plan = lower_for("cpu", graph)
    assert str(plan.buffers[plan.leaves("parameter")["w"]].type) == "u8[3, 34]"
    assert [plan.spec(kernel).kind for kernel in plan.kernels] == ["contract"]
    assert not plan.arena_bytes or plan.arena_bytes < 32 * 3 * 4
    assert Plan.from_json(plan.to_json()) == plan


def test_values_of_every_width_and_of_no_size_lie_in_one_arena():
    graph = Graph()
    x = graph.input("x", (3, 0))
    y = graph.input("y", (3,))
    small = (y > 0.0) & (y < 2.0)
    graph.set_outputs([x + 1.0, small.cast("i8") + 1, y.cast("bf16") * 2.0, y.cast("f64") + 1.0])
    assert_plan_runs_as_graph(graph, lower(graph))


def test_a_wrong_memory_plan_gives_wrong_numbers(monkeypatch):
    plan = lower(chain(), reuse=False)
    first, second = (plan.kernels[k].results[0] for k in (0, 1))
    shared = edited(plan, second, offset=plan.buffers[first].offset)
    given = {"x": np.zeros(3), "y": np.full(3, 2.0)}
    wanted = run_plan(plan, given)[0]
    monkeypatch.setattr(Plan, "verify", lambda self: self)
    found = run_plan(shared, given)[0]
    np.testing.assert_allclose(wanted, 2 * np.exp(2), rtol=1e-6)
    np.testing.assert_allclose(found, np.exp(2) ** 2, rtol=1e-6)


def test_values_that_do_not_fit_are_refused_by_name():
    plan = lower(example())
    x, w = np.ones((2, 4)), np.ones((4, 4))
    with pytest.raises(RunError, match="no value was given for input 'x'"):
        run_plan(plan, {}, {"w": w})
    with pytest.raises(RunError, match=r"parameter 'w' is \(4, 4\), but the value is \(4,\)"):
        run_plan(plan, {"x": x}, {"w": w[0]})
    with pytest.raises(RunError, match="has no input 'y'; it has x"):
        run_plan(plan, {"x": x, "y": x}, {"w": w})


def test_symbolic_sizes_are_refused_until_they_are_bound():
    graph = Graph()
    graph.set_outputs([graph.input("x", ("seq", 4)) * 2.0])
    with pytest.raises(VerifyError, match="the size seq is a symbol: bind it before lowering"):
        lower(graph)
    assert_plan_runs_as_graph(graph.bind(seq=3), lower(graph.bind(seq=3)))
    body = Graph()
    body.set_outputs([body.input("0", ("seq",)) * 2.0])
    spec = Spec("map", body.freeze())
    with pytest.raises(VerifyError, match=r"spec map-.*: the size seq is a symbol"):
        Plan("p", "cpu", {spec.digest: spec}, (), (), (), ()).verify()


# --------------------------------------------------------------------------- in place


def share(kind, build, *types):
    body = Graph()
    outputs = build(*(body.input(str(i), t) for i, t in enumerate(types)))
    body.set_outputs(outputs if isinstance(outputs, list) else [outputs])
    return Spec(kind, body.freeze())


SQUARE, ROW = TensorType.new((3, 3)), TensorType.new((3,))


@pytest.mark.parametrize(
    ("expected", "kind", "build"),
    [
        (True, "map", lambda x, y: (x * y).exp() + x),
        (True, "map", lambda x, y: x),
        (True, "map", lambda x, y: y.exp()),
        (True, "map", lambda x, y: [x + y, x - y]),
        (False, "library", lambda x, y: [x + y, x - y]),
        (True, "contract", lambda x, y: x + y @ y),
        (False, "contract", lambda x, y: x @ y),
        (False, "map", lambda x, y: x.transpose() + y),
        (False, "map", lambda x, y: x + x.transpose()),
        (False, "map", lambda x, y: [y.exp(), x.transpose()]),
        (False, "map", lambda x, y: (x + y).reshape((9,)).reshape((3, 3))),
        (False, "rows", lambda x, y: x / x.sum(axis=-1, keepdims=True)),
        (False, "map", lambda x, y: x.cast("f16")),
        (True, "map", lambda x, y: x.cast("i32")),
        (False, "library", lambda x, y: y.exp()),
    ],
)
def test_a_result_may_lie_over_an_operand_that_is_read_element_by_element(expected, kind, build):
    assert may_share(share(kind, build, SQUARE, SQUARE), 0, 0) is expected


def test_an_operand_that_is_spread_over_the_result_may_not_be_written_over():
    spec = share("map", lambda x, y: x + y, SQUARE, ROW)
    assert may_share(spec, 0, 0)
    assert not may_share(spec, 1, 0)
    grown = share("map", lambda x, y: [x * 2.0, x + y], ROW, SQUARE)
    assert not may_share(grown, 0, 0)


def test_a_cache_may_be_written_in_place_but_not_what_is_put_into_it():
    position = TensorType.new((1,), "i32")

    def write(cache, new, at):
        return cache.graph.cache_update(cache, new, at)

    spec = share("index", write, SQUARE, SQUARE, position)
    assert may_share(spec, 0, 0)
    assert not may_share(spec, 1, 0)
    twice = share("index", lambda c, n, at: write(c, n, at) + c, SQUARE, SQUARE, position)
    assert not may_share(twice, 0, 0)
    itself = share("index", lambda c, at: write(c, c, at), SQUARE, position)
    assert not may_share(itself, 0, 0)


# --------------------------------------------------------------------------- hazards


def conflicts(plan, a, b):
    """Whether two kernels touch the same bytes, one of them writing."""

    def overlap(i, j):
        one, two = plan.buffers[i], plan.buffers[j]
        if one.place != "arena" or two.place != "arena":
            return i == j
        return max(one.range[0], two.range[0]) < min(one.range[1], two.range[1])

    touched = [(*kernel.operands, *kernel.results) for kernel in (a, b)]
    return any(overlap(i, j) for i in a.results for j in touched[1]) or any(
        overlap(i, j) for i in touched[0] for j in b.results
    )


@pytest.mark.parametrize(
    "name", ["mlp, composite, adam", "mlp, primitive, sgd", "llama, composite"]
)
def test_hazards_order_exactly_the_kernels_that_touch_the_same_bytes(name):
    plan = lower(ZOO[name]())
    follows = []
    for k, before in enumerate(plan.hazards()):
        assert list(before) == sorted(set(before))
        assert all(conflicts(plan, plan.kernels[b], plan.kernels[k]) for b in before)
        follows.append(set(before).union(*(follows[b] for b in before)))
    for k, kernel in enumerate(plan.kernels):
        for b in range(k):
            assert b in follows[k] or not conflicts(plan, plan.kernels[b], kernel)


def test_hazards_name_reads_after_writes_writes_after_reads_and_writes_after_writes():
    bump = share("map", lambda x: x + 1.0, ROW)
    row, turn = ROW, share("map", lambda x: x * 2.0, ROW)
    buffers = (
        Buffer(row, "state", "s"),
        *(Buffer(row, "arena", offset=offset) for offset in (0, 64, 0)),
    )
    kernels = (
        Kernel(turn.digest, (0,), (1,)),  # reads the state
        Kernel(turn.digest, (0,), (2,)),  # reads it too, independent
        Kernel(bump.digest, (0,), (0,)),  # writes it: after both
        Kernel(turn.digest, (2,), (3,)),  # reads 2, writes where 1 lay
    )
    specs = {spec.digest: spec for spec in (bump, turn)}
    plan = Plan("p", "cpu", specs, buffers, kernels, (3,), (None,), ((0, 0),), {}, 128)
    assert plan.verify().hazards() == ((), (), (0, 1), (0, 1))


def test_kernels_in_any_order_that_keeps_the_hazards_give_the_same_results():
    graph = ZOO["mlp, composite, adam"]()
    plan = lower(graph)
    hazards, rng = plan.hazards(), random.Random(7)
    orders = set()
    for _ in range(5):
        done = []
        while len(done) < len(plan.kernels):
            ready = [
                k for k, before in enumerate(hazards) if k not in done and set(before) <= {*done}
            ]
            done.append(rng.choice(ready))
        orders.add(tuple(done))
        other = replace(plan, kernels=tuple(plan.kernels[k] for k in done))
        assert_plan_runs_as_graph(graph, other)
    assert len(orders) > 1


# --------------------------------------------------------------------------- verifying


def example():
    graph = Graph("example")
    x, w = graph.input("x", (2, 4)), graph.parameter("w", (4, 4))
    h = (x @ w).relu()
    graph.set_outputs([(h @ w + graph.constant(np.arange(4.0, dtype=np.float32))).exp()])
    graph.relabel(graph.outputs[0], "last")
    return graph


def edited(plan, i, **fields):
    buffers = list(plan.buffers)
    buffers[i] = replace(buffers[i], **fields)
    return replace(plan, buffers=tuple(buffers))


def rewired(plan, k, **fields):
    kernels = list(plan.kernels)
    kernels[k] = replace(kernels[k], **fields)
    return replace(plan, kernels=tuple(kernels))


PLAN = lower(example(), reuse=False, options={"level": 2})
X, W = PLAN.leaves("input")["x"], PLAN.leaves("parameter")["w"]
CONSTANT = next(i for i, b in enumerate(PLAN.buffers) if b.place == "constant")
FIRST, SECOND = PLAN.kernels[0].results[0], PLAN.kernels[1].results[0]
LAST = PLAN.kernels[-1].results[0]


def with_spec(change, kind="map", key=None):
    body = Graph()
    change(body)
    spec = Spec(kind, body.freeze())
    return replace(PLAN, specs={**PLAN.specs, key or spec.digest: spec})


def fine(body):
    body.set_outputs([body.input("0", (2,)) * 2.0])


def in_reverse(body):
    one, zero = body.input("1", (2,)), body.input("0", (2,))
    body.set_outputs([one + zero])


def not_frozen():
    body = Graph()
    fine(body)
    spec = Spec("map", body)
    return replace(PLAN, specs={**PLAN.specs, spec.digest: spec})


def writing_the_parameter(updates):
    """The last kernel's result replaced by a parameter that it reads element by element."""
    spec = share("map", lambda x: x * 2.0, PLAN.buffers[W].type)
    kernels = (*PLAN.kernels, Kernel(spec.digest, (W,), (W,)))
    return replace(PLAN, specs={**PLAN.specs, spec.digest: spec}, kernels=kernels, updates=updates)


def over_its_operand():
    """The second matmul's result over its left operand, which ends there."""
    return edited(PLAN, PLAN.kernels[2].results[0], offset=PLAN.buffers[SECOND].offset)


def parameter_of_matmul():
    graph = Graph()
    w = graph.parameter("w", (3, 3))
    graph.set_update(w, w @ w)
    plan = lower(graph)
    return replace(
        rewired(plan, 0, results=(0,)), buffers=plan.buffers[:1], updates=((0, 0),), arena_bytes=0
    )


def overlapping_results():
    graph = Graph()
    graph.set_outputs(list(graph.top_k(graph.input("x", (3, 5)), 2)))
    plan = lower(graph, reuse=False)
    return edited(plan, plan.kernels[0].results[1], offset=0)


def doubled_result():
    two = share("map", lambda x: [x * 2.0, x * 3.0], ROW)
    buffers = (Buffer(ROW, "input", "x"), Buffer(ROW, "arena", offset=0))
    kernels = (Kernel(two.digest, (0,), (1, 1)),)
    return Plan("p", "cpu", {two.digest: two}, buffers, kernels, (1,), (None,), (), {}, 64)


def chain():
    """Two values of which the first is read after the second is written."""
    graph = Graph()
    a = graph.input("x", (3,)) + graph.input("y", (3,))
    b = a.exp()
    graph.set_outputs([a * b])
    return graph


FAULTS = {
    "is none of map, rows": lambda: with_spec(fine, kind="mop"),
    "its body is not frozen": not_frozen,
    "only inputs are operands": lambda: with_spec(
        lambda body: body.set_outputs([body.parameter("0", (2,)) * 2.0])
    ),
    "its inputs are 1, 0, not 0, 1": lambda: with_spec(in_reverse),
    "its body has no output": lambda: with_spec(lambda body: body.input("0", (2,))),
    "stored under that key, but its digest is": lambda: with_spec(fine, key="map-0"),
    "its place 'heap' is none of arena": lambda: edited(PLAN, X, place="heap"),
    "but has the name 'h'": lambda: edited(PLAN, FIRST, name="h"),
    "it is in the arena, but has no offset": lambda: edited(PLAN, FIRST, offset=None),
    "its offset 32 is not a multiple of 64": lambda: edited(PLAN, FIRST, offset=32),
    "bytes -64 to -32 are outside": lambda: edited(PLAN, FIRST, offset=-64),
    "outside the arena of": lambda: replace(PLAN, arena_bytes=PLAN.arena_bytes - 64),
    "which has no offset in the arena": lambda: edited(PLAN, X, offset=0),
    "it is a input without a name": lambda: edited(PLAN, X, name=None),
    "the plan has no constant 'k'": lambda: edited(PLAN, CONSTANT, name="k"),
    r"but the constant '\w+' is f32\[4\]": lambda: edited(
        PLAN, CONSTANT, type=TensorType.new((4,), "f64")
    ),
    "fractions do not fit in i32": lambda: edited(
        PLAN, X, place="state", init=0.5, type=TensorType.new((2,), "i32")
    ),
    "another leaf is called 'x' too": lambda: edited(PLAN, W, name="x"),
    "the plan has no spec map-0": lambda: rewired(PLAN, 0, spec="map-0"),
    "it has 1 operands, but its spec has 2": lambda: rewired(PLAN, 0, operands=(X,)),
    "it has 0 results, but its spec has 1": lambda: rewired(PLAN, 0, results=()),
    "operand 0 is buffer 99: the plan has": lambda: rewired(PLAN, 0, operands=(99, W)),
    "operand 1 is buffer -1: the plan has": lambda: rewired(PLAN, 0, operands=(X, -1)),
    r"operand 0 is f32\[4, 4\], but its spec has f32\[2, 4\]": lambda: rewired(
        PLAN, 0, operands=(W, W)
    ),
    r"result 0 is f32\[4, 4\], but its spec has f32\[2, 4\]": lambda: rewired(
        PLAN, 0, results=(W,)
    ),
    "reads buffer . before any kernel has written it": lambda: rewired(
        PLAN, 0, operands=(SECOND, W)
    ),
    "it writes buffer ., which is input 'x'": lambda: rewired(PLAN, 0, results=(X,)),
    "which an earlier kernel has written": lambda: rewired(PLAN, 1, results=(FIRST,)),
    "two of its results are buffer 1": doubled_result,
    "writes result 0 over operand 0, which it needs in another order": parameter_of_matmul,
    "but no kernel writes it": lambda: replace(PLAN, kernels=PLAN.kernels[:-1]),
    "an output is buffer 99": lambda: replace(PLAN, outputs=(99,)),
    "1 outputs have 0 names": lambda: replace(PLAN, output_names=()),
    "an update is of buffer 99 by buffer 0": lambda: replace(PLAN, updates=((99, 0),)),
    "is updated, but it is no state or parameter": lambda: replace(PLAN, updates=((X, LAST),)),
    "parameter 'w' is updated twice": lambda: replace(PLAN, updates=((W, W), (W, W))),
    r"'w' is f32\[4, 4\], but its update is f32\[2, 4\]": lambda: replace(
        PLAN, updates=((W, LAST),)
    ),
    "a kernel writes parameter 'w' in place, but no update says so": lambda: writing_the_parameter(
        ()
    ),
    "the arena cannot have -1 bytes": lambda: replace(PLAN, naive_bytes=-1),
    "its options hold a value that JSON has not": lambda: replace(PLAN, options={"a": {1, 2}}),
    "options hold a value that": lambda: replace(PLAN, options={"a": float("nan")}),
    "its results . and . overlap in the arena": overlapping_results,
    "which is still needed": lambda: edited(lower(chain(), reuse=False), 3, offset=0),
    "lies over operand 0 .* which it needs in another order": over_its_operand,
}


def test_the_plan_that_the_faults_are_made_from_is_sound():
    assert PLAN.verify() is PLAN
    assert writing_the_parameter(((W, W),)).verify()


@pytest.mark.parametrize("rule", FAULTS)
def test_verify_refuses(rule):
    with pytest.raises(VerifyError, match=rule):
        FAULTS[rule]().verify()


def test_a_fault_of_a_kernel_names_its_label_and_the_users_line():
    last = len(PLAN.kernels) - 1
    with pytest.raises(VerifyError, match=r"'last'.*kernel 4.*\(test_plan.py:\d+\)"):
        rewired(PLAN, last, operands=(W,)).verify()


def test_a_value_may_end_where_the_next_begins_but_lie_only_whole_over_an_operand():
    plan = lower(chain())
    plan.verify()
    # A buffer that covers an operand in part: of the same size, 64 bytes on.
    graph = Graph()
    graph.set_outputs([(graph.input("x", (32,)) * graph.input("y", (32,))).exp()])
    plan = lower(graph, reuse=False)
    result = plan.kernels[1].results[0]
    edited(plan, result, offset=0).verify()
    with pytest.raises(VerifyError, match="lies over operand 0"):
        edited(plan, result, offset=64).verify()


# --------------------------------------------------------------------------- printing and hashing


def test_a_plan_prints_its_kernels_arena_ends_and_specs():
    text = str(replace(PLAN, naive_bytes=4096))
    assert text == str(replace(PLAN, naive_bytes=4096))
    assert "plan @example for reference" in text
    assert "options level=2" in text
    assert "kernels: 5 of 4 distinct specs" in text
    assert f"b{FIRST} f32[2, 4] <- b{X} f32[2, 4], b{W} f32[4, 4]" in text
    assert '"last" (test_plan.py:' in text
    assert "arena: 320 B, naive 4.0 KiB, 3.7 KiB saved (92 %)" in text
    assert f"  0..32     k0 to k1   b{FIRST} f32[2, 4]\n" in text
    assert f"  256..288  k4 to end  b{LAST} f32[2, 4]\n" in text
    assert f'output b{LAST} f32[2, 4] "last"' in text
    assert f"parameter  b{W} f32[4, 4]  'w'" in text
    assert "x2  matmul" in text
    assert not any(line != line.rstrip() for line in text.splitlines())
    assert "5 kernels of 4 specs" in repr(PLAN)


def test_updates_print_as_written_in_place_or_taken_from_a_buffer():
    graph = mlp_step(optimizer="sgd", layers=1)
    text = str(lower(graph))
    assert "in place" in text
    assert " = b" in text


def test_equal_layers_share_their_specs():
    few, many = (lower(llama(n)) for n in (1, 4))
    assert len(many.kernels) > 2 * len(few.kernels)
    assert len(many.specs) - len(few.specs) <= 2


def test_the_digest_is_of_what_matters_and_of_nothing_else():
    again = lower(example(), reuse=False, options={"level": 2})
    assert again.digest() == PLAN.digest()
    assert replace(PLAN, name="other", naive_bytes=1).digest() == PLAN.digest()
    assert rewired(PLAN, 0, label="new", source=None, nodes=()).digest() == PLAN.digest()
    key = PLAN.buffers[CONSTANT].name
    other = Data(np.ones(4, np.float32))
    changed = [
        replace(PLAN, options={"level": 3}),
        replace(PLAN, target="cpu"),
        replace(PLAN, constants={key: other}),
        replace(PLAN, arena_bytes=PLAN.arena_bytes + 64),
        replace(PLAN, outputs=(FIRST,)),
        replace(PLAN, updates=((W, W),)),
        replace(PLAN, kernels=PLAN.kernels[::-1]),
        edited(PLAN, FIRST, offset=640),
        edited(PLAN, W, place="state", init=1.0),
        with_spec(fine),
    ]
    assert len({PLAN.digest(), *(plan.digest() for plan in changed)}) == len(changed) + 1


def test_the_digest_changes_with_darners_version(monkeypatch):
    before = PLAN.digest()
    monkeypatch.setattr("darner.lower.plan.__version__", "99.0")
    assert PLAN.digest() != before


def test_a_plan_is_an_execution_plan():
    assert ExecutionPlan is Plan


# --------------------------------------------------------------------------- saving


@pytest.mark.parametrize("name", MODELS)
def test_a_plan_comes_back_equal_from_json(name):
    plan = lower(ZOO[name](), options={"level": 1, "mode": "training", "list": [1, None, 0.5]})
    text = plan.to_json()
    again = Plan.from_json(text)
    assert again == plan
    assert hash(again) == hash(plan)
    assert again.digest() == plan.digest()
    assert again.to_json() == text
    assert str(again) == str(plan)


def test_states_of_odd_beginnings_come_back():
    graph = Graph()
    for name, init in (("a", float("-inf")), ("b", -0.0), ("c", 1e-8)):
        state = graph.state(name, (1,), init=init)
        graph.set_update(state, state * 2.0)
    again = Plan.from_json(lower(graph).to_json())
    found = [repr(again.buffers[i].init) for i in again.leaves("state").values()]
    assert found == ["-inf", "-0.0", "1e-08"]


def test_a_saved_plan_runs_without_its_graph(tmp_path):
    path = tmp_path / "step.plan"
    graph = mlp_step()
    lower(graph).save(path)
    assert_plan_runs_as_graph(graph, Plan.load(path))
    assert [entry.name for entry in tmp_path.iterdir()] == ["step.plan"]


def test_a_save_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "step.plan"
    PLAN.save(path)
    before = path.read_bytes()

    def full(_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        replace(PLAN, name="new").save(path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["step.plan"]


def refusal(text):
    with pytest.raises(FormatError) as caught:
        Plan.from_json(text)
    return str(caught.value)


def test_what_is_not_a_plan_is_refused_for_what_it_is():
    text = PLAN.to_json()
    assert "not a plan: the text is not JSON" in refusal("hello")
    assert "not a plan: its format is 'darner.graph'" in refusal(example().to_json())
    assert "not a plan: its format is [1, 2]" in refusal("[1, 2]")
    assert "cut off or damaged" in refusal(text[: len(text) // 2])
    assert "the plan is damaged: its checksum is" in refusal(text.replace('"x"', '"z"'))
    document = json.loads(text)
    newer = json.dumps({**document, "version": VERSION + 1})
    assert f"of version {VERSION + 1}: this darner reads up to {VERSION}" in refusal(newer)
    assert "version 0 does not exist" in refusal(json.dumps({**document, "version": 0}))
    assert "nested too deeply" in refusal("[" * 100_000)
    assert "expected text, got bytes" in refusal(b"{}")
    assert "NaN is not JSON" in refusal('{"format": NaN}')


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    path = tmp_path / "step.plan"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FormatError, match=r"step\.plan is not a plan: it is not text"):
        Plan.load(path)
    path.write_text("{}")
    with pytest.raises(FormatError, match=r"step\.plan: not a plan"):
        Plan.load(path)
    with pytest.raises(FileNotFoundError):
        Plan.load(tmp_path / "none.plan")


def test_a_document_with_a_good_checksum_must_still_be_a_sound_plan():
    unsound = edited(PLAN, FIRST, offset=32)
    text = f"the plan is not sound: buffer {FIRST}: its offset 32 is not a multiple of 64"
    assert text in refusal(unsound.to_json())
    content = json.loads(PLAN.to_json())["plan"]
    assert "a plan has no field 'more'" in refusal(signed({**content, "more": 1}))
    assert "the field 'kernels' is missing" in refusal(
        signed({name: value for name, value in content.items() if name != "kernels"})
    )
    with pytest.raises(FormatError, match="JSON has not"):
        replace(PLAN, options={"a": {1}}).to_json()


SMALL = json.loads(lower(mlp_step(optimizer="sgd", layers=1)).to_json())["plan"]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 70),
    st.integers(),
    st.floats(),
    st.text(max_size=4),
    st.sampled_from(["f32[2]", "f32[n]", "(f32[2])", "arena", "state", "map", "0", "\ud800", "q4"]),
    st.lists(st.integers(-2, 5), max_size=3),
    st.just({}),
)


@st.composite
def mutated(draw):
    """A document's content with a few things replaced, left out, moved or doubled."""
    content = json.loads(json.dumps(SMALL))
    for _ in range(draw(st.integers(1, 3))):
        holder = content
        while True:
            keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
            key = draw(st.sampled_from(keys))
            inner = holder[key]
            if not isinstance(inner, dict | list) or not inner or draw(st.integers(0, 5)) == 0:
                break
            holder = inner
        how = draw(st.sampled_from(["replace", "replace", "remove", "copy"]))
        if how == "replace":
            holder[key] = draw(SCALARS)
        elif how == "remove":
            del holder[key]
            if not content:
                break
        else:
            holder[key] = json.loads(json.dumps(holder[draw(st.sampled_from(keys))]))
    return content


def try_signed(content):
    try:
        return signed(content)
    except FormatError:  # a NaN, which no document holds
        return json.dumps({"format": "darner.plan", "version": 1, "checksum": "", "plan": content})


@settings(max_examples=150)
@given(mutated())
def test_a_changed_document_is_refused_or_is_a_sound_plan(content):
    try:
        plan = Plan.from_json(try_signed(content))
    except (FormatError, VerifyError):
        return
    assert plan.verify() is plan
    assert str(plan)
    assert plan.hazards()
    assert Plan.from_json(plan.to_json()) == plan


TEXT = PLAN.to_json()


@settings(max_examples=150)
@given(st.data())
def test_a_changed_byte_or_a_cut_is_always_noticed(data):
    at = data.draw(st.integers(0, len(TEXT) - 1))
    if data.draw(st.booleans()):
        changed = TEXT[:at]
    else:
        changed = TEXT[:at] + data.draw(st.characters(codec="ascii")) + TEXT[at + 1 :]
    try:
        same = json.loads(changed) == json.loads(TEXT)
    except (ValueError, RecursionError):
        same = False
    if same:  # a blank for a blank, an escape for its letter
        assert Plan.from_json(changed) == PLAN
        return
    with pytest.raises(FormatError):
        Plan.from_json(changed)
