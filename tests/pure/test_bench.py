"""The benchmark beside the peers: engines do the same work, turns are fair, tables say what was measured."""

import json
import math
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

import darner
from bench.peers import (
    engine_darner,
    engine_numpy,
    engine_torch,
    growth,
    predict,
    report,
    turns,
    workloads,
)
from bench.peers.place import Place
from bench.peers.turns import NotOfferedError, Row, Times
from bench.peers.workloads import Gemm, Llama, Mlp, Resnet, Resnet50, Smollm
from darner.lower.work import KernelWork

LLAMA = Llama(batch=2, sequence=5, layers=2, width=12, heads=3, kv_heads=1, inner=10, vocabulary=17)
TINY = [
    Mlp(batch=6, sizes=(9, 7, 4)),
    replace(LLAMA, mode="forward"),
    replace(LLAMA, mode="train"),
    replace(LLAMA, mode="decode"),
    Resnet("forward", batch=2, size=9, widths=(4, 6), classes=3),
    Resnet("train", batch=2, size=9, widths=(4, 6), classes=3),
    Smollm("decode", 2, 5, 2, 12, 3, 1, 10, 17),
    Resnet50("forward", batch=2, size=17, widths=(4, 6), classes=3, blocks=(1, 2)),
    Gemm(size=7),
]


def by_reference(workload, steps=1):
    """What darner's reference makes of a workload in float64: the loss of each step, or the logits of the last."""
    graph = engine_darner.graph(workload)
    if workload.trains:
        graph = darner.optim.training_step(graph, engine_darner.optimizer(workload))
    params, state = dict(workload.values()), dict(workload.caches())
    found = [
        darner.run(graph, engine_darner.data(workload), params, state=state, float64=True)[0]
        for _ in range(steps)
    ]
    return np.array(found).reshape(-1) if workload.trains else found[-1]


def by_engine(engine, steps=1):
    """The same by an engine."""
    found = [engine.read(engine.step()) for _ in range(steps)]
    return np.array(found).reshape(-1) if found[0].ndim == 0 else found[-1]


# --------------------------------------------------------------------------- the same work


@pytest.mark.parametrize("workload", TINY, ids=lambda one: one.name)
def test_torch_does_what_the_reference_does(workload):
    steps = 3 if workload.trains else 2
    found = by_engine(engine_torch.prepare(workload, 1), steps)
    np.testing.assert_allclose(found, by_reference(workload, steps), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(
    "workload", [*TINY[:3], replace(TINY[3], sequence=9)], ids=lambda one: one.name
)
def test_engines_in_bf16_differ_from_f32_by_what_bf16_rounds(workload):
    steps, place = 3 if workload.trains else 2, Place("cpu", "bf16")
    exact = by_reference(workload, steps)
    for engine in (engine_torch, engine_darner):
        found = by_engine(engine.prepare(workload, 1, place), steps)
        error = turns.relative_error(found, exact)
        assert 1e-6 < error < place.tolerance
    with pytest.raises(NotOfferedError, match="f32"):
        engine_numpy.prepare(workload, 1, place)


@pytest.mark.parametrize(
    "workload", [TINY[0], TINY[1], TINY[3], TINY[-1]], ids=lambda one: one.name
)
def test_numpy_does_what_the_reference_does(workload):
    steps = 3 if workload.trains else 2
    found = by_engine(engine_numpy.prepare(workload, 1), steps)
    np.testing.assert_allclose(found, by_reference(workload, steps), rtol=2e-4, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("workload", [TINY[2], TINY[3], *TINY[-3:]], ids=lambda one: one.name)
def test_sessions_do_what_the_reference_does(workload):
    steps = 3 if workload.trains else 2
    found = by_engine(engine_darner.prepare(workload, 1), steps)
    np.testing.assert_allclose(found, by_reference(workload, steps), rtol=2e-4, atol=2e-5)


def test_decoding_the_last_token_is_the_forward_pass_of_all():
    whole = replace(LLAMA, mode="forward")
    ops = engine_numpy.NumpyOps(whole)
    keys, seen = {}, ops._mixed

    def watched(q, k, v, hidden):
        for kind, value in (("keys", k), ("values", v)):
            keys[f"layer{len(keys) // 2}.{kind}"] = value.transpose(0, 2, 1, 3)
        return seen(q, k, v, hidden)

    ops._mixed = watched
    weights, tokens = dict(whole.values()), whole.inputs()["tokens"]
    wanted = whole.result(ops, weights.__getitem__, {"tokens": tokens})[:, -1]
    last = replace(LLAMA, mode="decode")
    decoding = engine_numpy.NumpyOps(last)
    for name, value in keys.items():
        decoding.caches[name] = value.transpose(0, 2, 1, 3).copy()
        decoding.caches[name][:, :, -1] = np.nan  # the token's own row must be written
    found = last.result(decoding, weights.__getitem__, {"tokens": tokens[:, -1:]})[:, 0]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_weights_depend_on_their_name_alone():
    one, two = replace(LLAMA, layers=1), replace(LLAMA, layers=2)
    first, second = dict(one.values()), dict(two.values())
    assert set(first) < set(second)
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name])
    assert not np.array_equal(second["layer0.q"], second["layer1.q"])


def test_workloads_survive_json():
    for one in [*TINY, *workloads.WORKLOADS.values()]:
        assert workloads.from_json(json.loads(json.dumps(workloads.to_json(one)))) == one


def test_llama_comes_in_every_batch_and_sequence():
    found = [one.name for one in workloads.chosen(["llama-s.t", "mlp"], [1, 4], [37, 128])]
    long = [f"llama-s.train{more}" for more in (" s37", "", " b4 s37", " b4")]
    assert found == [*long, "mlp.train"]
    with pytest.raises(ValueError, match="no workload 'gpt'"):
        workloads.chosen(["gpt"], [1], [128])


def test_floors_are_those_of_the_arithmetic():
    forward, train = workloads.WORKLOADS["llama-s.forward"], workloads.WORKLOADS["llama-s.train"]
    assert forward.forward_flops() == pytest.approx(4.9e9, rel=0.02)
    assert train.step_flops() == 3 * forward.forward_flops()
    assert train.floor(250e9, 36e9) == pytest.approx(0.075, rel=0.03)
    decode = workloads.WORKLOADS["llama-s.decode"]
    assert decode.floor(250e9, 32e9) == pytest.approx(0.0024, rel=0.03)
    assert workloads.WORKLOADS["mlp.train"].floor(250e9, 1.0) == pytest.approx(0.00021, rel=0.03)
    # 4.1 thousand million multiplications of an image, as the paper that the network is from counts them
    assert workloads.WORKLOADS["resnet50.forward"].forward_flops() == pytest.approx(
        32 * 2 * 4.1e9, rel=0.02
    )
    # 3x3, 64 to 64 channels, 64x64 places, four images: four such layers beside the stem
    assert Resnet()._flops("stage0.block1.first") == 2 * 4 * 9 * 64 * 64 * 64 * 64


# --------------------------------------------------------------------------- turns


def test_every_other_round_is_reversed():
    assert "".join(turns.in_turns(["a", "b", "c"], 3)) == "abccbaabc"


def test_a_turn_takes_the_median_of_steps_after_a_warm_up(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(turns.time, "perf_counter", lambda: now[0])
    lengths = iter([9.0, 1.0, 5.0, 2.0])

    def step():
        now[0] += next(lengths)

    found = turns.turn(step, seconds=0.5, warm_up=0.1)
    assert (found["median"], found["best"], found["steps"]) == (2.0, 1.0, 3)


def test_results_that_differ_do_not_count():
    exact = np.array([2.0, -4.0])
    assert turns.relative_error(np.array([2.0, -3.0]), exact) == 0.25
    assert turns.relative_error(np.array([2.0, np.nan]), exact) == math.inf
    assert turns.relative_error(np.array([2.0]), exact) == math.inf


def test_processes_take_turns_and_say_what_is_not_measured(monkeypatch):
    monkeypatch.setitem(turns.ENGINES, "other", ("there_is_no_such_package", "engine_other", {}))
    row = turns.measure(TINY[0], ["numpy", "other"], 1, rounds=2, seconds=0.01)
    assert list(row.engines) == ["numpy"]
    times = row.engines["numpy"]
    assert len(times.rounds) == 2
    assert times.steps >= 6
    assert 0 < times.best <= times.median
    assert times.memory > 5
    assert times.version == np.__version__
    missing = "mlp.train: other is not measured: there_is_no_such_package is not installed"
    assert missing in row.notes


def test_an_engine_without_the_workload_says_so():
    with pytest.raises(NotOfferedError, match="by hand"):
        engine_numpy.prepare(TINY[5], 1)


# --------------------------------------------------------------------------- tables


def a_row():
    def times(rounds, memory):
        made = Times(version="1", seconds={"import": 0.1, "setup": 0.2, "first": 0.3})
        for value in rounds:
            made.add(
                {"median": value, "best": value / 2, "steps": 3, "memory": memory, "others": 0.0}
            )
        return made

    row = Row(Mlp(), 2, floor=5e-4)
    row.engines["darner"] = times([1e-3, 2e-3, 1e-3], 100.0)
    row.engines["torch"] = times([3e-3, 2e-3, 9e-3], 200.0)
    row.engines["numpy"] = times([4e-3, 4e-3, 4e-3], 50.0)
    return row


def test_the_table_has_the_ratio_to_the_best_peer_and_to_the_floor():
    head, _, line = report.times_table([a_row()]).splitlines()
    found = dict(zip((c.strip() for c in head.split("|")), line.split("|"), strict=True))
    assert {key: value.strip() for key, value in found.items() if key} == {
        "workload": "mlp.train",
        "threads": "2",
        "darner": "1.00",
        "torch": "3.00",
        "numpy": "4.00",
        "best peer": "torch",
        "ratio": "3.00",
        "of rounds": "1.00 - 4.00",
        "floor": "0.500",
        "of floor": "50%",
    }


def test_memory_and_building_have_tables():
    assert "|       100 |      200 |       50 |           0.50 |" in report.memory_table([a_row()])
    assert report.row_json(a_row())["memory_to_torch"] == 0.5
    about = {"seconds": {"import": 0.1, "setup": 1.0, "first": 0.5}, "phases": {"lower": 0.25}}
    table = report.build_table([(Mlp(), "darner", {"cold": about, "warm": about})])
    assert table.splitlines()[0].split("|")[-2].strip() == "lower"
    wanted = ["0.100", "1.00", "0.500", "0.250"]
    for line in table.splitlines()[2:]:
        assert [cell.strip() for cell in line.split("|")[4:-1]] == wanted


def test_history_grows_by_a_line_and_is_shown(tmp_path):
    path = tmp_path / "history.jsonl"
    run = {**report.about_run([a_row()], {"2": {"flops": 1.0}}), "rows": [report.row_json(a_row())]}
    report.record(run, path)
    run["rows"][0]["engines"]["darner"]["median_ms"] = 1.5
    run["rows"][0]["notes"] = ["mlp.train: doubtful: other programs used 1.0 cores beside darner"]
    report.record(run, path)
    lines = path.read_text().splitlines()
    assert len(lines) == 2
    row = json.loads(lines[0])["rows"][0]
    assert row["ms"] == {"darner": 1.0, "torch": 3.0, "numpy": 4.0}
    assert row["ratio"] == 3.0
    shown = report.history_table(path).splitlines()[2:]
    cells = [[cell.strip() for cell in line.split("|")[5:-1]] for line in shown]
    assert cells == [["1.00", "", "3.00", "100", ""], ["1.50", "+50%", "3.00", "100", "doubtful"]]


# --------------------------------------------------------------------------- growth


def test_curves_change_one_size_and_keep_the_others():
    found = growth.curves([Llama("train"), Resnet(), Mlp()])
    names = [curve.name for curve in found]
    assert names[:2] == ["llama-s.train by sequence", "llama-s.train by width"]
    assert names[-2:] == ["resnet18.forward by batch", "resnet18.forward by size"]
    (width,) = growth.curves([Llama("train")], ["width"])
    for size in width.sizes:
        grown = width.at(size)
        assert (grown.width, grown.head, grown.heads) == (size, 64, 3 * grown.kv_heads)
        assert (grown.sequence, grown.layers, grown.batch) == (128, 4, 1)
    assert found[0].at(16).inputs()["tokens"].shape == (1, 16)


def test_growth_is_measured_kept_and_drawn(tmp_path):
    curve = growth.Curve(LLAMA, "sequence", (3, 5))
    found = growth.measure(curve, ["numpy"], 1, 1, 0.01, lambda _: None)
    assert found["sizes"] == [3, 5]
    assert min(found["ms"]["numpy"] + found["mb"]["numpy"]) > 0
    path = tmp_path / "growth.json"
    growth.kept(path, {"old": found, "same": {}})
    two = {"darner": [1.0, 4.0], "torch": [2.0, None]}
    new = {"axis": "size", "sizes": [10, 20], "ms": two, "mb": {"darner": [7.0, 8.0]}}
    everything = growth.kept(path, {"same": new})
    assert list(json.loads(path.read_text())) == list(everything) == ["old", "same"]
    lines = growth.table({"same": new}).splitlines()[2:]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert cells == [
        ["same", "10", "1.00", "2.00", "2.00", "7", "", ""],
        ["", "20", "4.00", "", "", "8", "", "2.00"],
    ]
    drawn = ElementTree.fromstring(growth.picture(everything))
    assert len(drawn.findall(".//{*}polyline")) == 3
    assert len(drawn.findall(".//{*}circle")) == 5


# --------------------------------------------------------------------------- the cost model


MACHINE = darner.Target("machine", flops=100e9, bandwidth=10e9, launch=1e-6, vector=0.5)


def timed(kind, flops, moved, factor=1.0, machine=MACHINE):
    work = KernelWork(contraction_flops=flops, read=moved)
    return predict.Timed(kind, work, factor * (machine.launch + work.seconds(machine)))


def test_a_model_that_is_right_has_ratios_of_one():
    kernels = [timed("contract", 10**9 * i, 10**6) for i in range(1, 5)]
    kernels += [timed("map", 0, 10**6 * i) for i in range(1, 5)]
    for row in predict.summary(kernels, MACHINE):
        assert row["ratio"] == pytest.approx(1.0)
        assert row["median_ratio"] == pytest.approx(1.0)
        assert row["factor"] == pytest.approx(1.0)
        assert row["correlation"] == pytest.approx(1.0)


def test_kinds_that_take_longer_have_factors_of_their_own():
    kernels = [timed("contract", 10**9 * i, 0, 2.0) for i in range(1, 5)]
    kernels += [timed("map", 0, 10**6)]
    contract, single, everything = predict.summary(kernels, MACHINE)
    assert (contract["kind"], contract["kernels"]) == ("contract", 4)
    assert contract["median_ratio"] == pytest.approx(0.5)
    assert contract["factor"] == pytest.approx(2.0)
    assert single["correlation"] is None
    assert everything["kernels"] == 5
    lines = predict.table([contract, single]).splitlines()
    assert [cell.strip() for cell in lines[2].split("|")[1:-1]][4:] == [
        "0.50",
        "0.50",
        "2.00",
        "1.00",
    ]


def test_the_constants_that_fit_best_are_those_that_made_the_times():
    true = darner.Target("true", flops=40e9, bandwidth=5e9, launch=3e-6, vector=0.5)
    sizes = [(10**8, 10), (10**9, 10), (10**5, 10**6), (10**4, 10**7), (10, 10)]
    kernels = [timed("any", *pair, machine=true) for pair in sizes]
    found = predict.fitted(kernels, MACHINE)
    assert found.flops == pytest.approx(true.flops, rel=1e-6)
    assert found.bandwidth == pytest.approx(true.bandwidth, rel=1e-6)
    assert found.launch == pytest.approx(true.launch, rel=1e-6)


@pytest.mark.slow
def test_the_kernels_of_a_session_are_timed_and_named():
    kernels = predict.recorded(TINY[2], 1, steps=3)
    kinds = {kernel.kind for kernel in kernels}
    assert {"contract", "contract, update", "attention", "rows"} <= kinds
    assert all(kernel.seconds > 0 and kernel.work.bytes > 0 for kernel in kernels)
    (conv, *_) = [k for k in predict.recorded(TINY[4], 1, steps=2) if k.kind == "conv"]
    assert conv.work.contraction_flops > 0
