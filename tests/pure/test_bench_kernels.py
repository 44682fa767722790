"""The benchmark of kernels: every engine computes the same, draws can be repeated, tables say what was measured."""

import json
import math
import os
from importlib.util import find_spec

import numpy as np
import pytest

from bench.kernels import report, turns, with_darner, with_numpy, with_torch
from bench.kernels.__main__ import arguments, chosen, engines_of, slow_cases
from bench.kernels.__main__ import main as kernels_main
from bench.kernels.cases import (
    Attention,
    Contract,
    Convolution,
    DeltaRule,
    Index,
    Map,
    Move,
    Order,
    Pool,
    Reduce,
    Rows,
    SelectiveScan,
    from_json,
    to_json,
)
from bench.kernels.listing import GROUPS
from bench.kernels.sweep import DRAWS, drawn, fits, is_prime
from bench.kernels.turns import Point
from bench.lines import BYTES, LINE, Lines, shared_line
from bench.peers.turns import NotOfferedError, relative_error

TINY = [
    *(Contract(5, 17, 9, form) for form in ("NN", "NT", "TN")),
    Contract(5, 17, 9, "TN", 3),
    *(Convolution(2, 4, 6, 7, 9, stride=2, part=part) for part in ("forward", "input", "weight")),
    Convolution(1, 4, 4, 7, 5, groups=4),
    *(Attention(1, 4, 2, 9, 9, 8, True, part) for part in ("forward", "both")),
    *(
        Rows(op, 5, 13, part)
        for op in ("softmax", "rms_norm", "layer_norm", "cross_entropy")
        for part in ("forward", "both")
    ),
    *(Map(op, 3, 17) for op in ("gelu", "swiglu", "affine", "adam")),
    *(Reduce(op, (3, 5, 7), 1) for op in ("sum", "mean", "max", "argmax")),
    *(Pool(op, 1, 2, 7, 9, 3, 2, part) for op in ("max", "mean") for part in ("forward", "both")),
    Index("gather", 11, 3, 7),
    Index("scatter_add", 11, 3, 7),
    Order("sort", 3, 11),
    Order("top_k", 3, 11, 4),
    Move((3, 4, 5), (2, 0, 1)),
    *(DeltaRule(1, 5, 2, 7, part) for part in ("forward", "both")),
    DeltaRule(1, 1, 2, 7, "step"),
    *(SelectiveScan(1, 5, 7, 3, part) for part in ("forward", "both") if find_spec("mambapy")),
]


# --------------------------------------------------------------------------- the same work


@pytest.mark.slow
@pytest.mark.parametrize("case", TINY, ids=lambda case: case.name)
def test_darner_and_torch_compute_the_same(case):
    ours = with_darner.prepare(case, case.inputs(), 1)
    found, wanted = ours.read(), with_torch.prepare(case, case.inputs(), 1).read()
    assert (
        len(found) == len(wanted) == (1 + len(case.trained) if case.part == "both" else len(found))
    )
    assert found[0].size == math.prod(case.result)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5)
    assert 0 < ours.timed() < 1
    ours.close()


def test_numpy_computes_the_same_where_it_has_a_function():
    without = []
    for case in TINY:
        try:
            found = with_numpy.prepare(case, case.inputs(), 1).read()
        except NotOfferedError:
            without.append(case)
            continue
        wanted = with_torch.prepare(case, case.inputs(), 1).read()
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)
    kinds = {case.kind for case in TINY} - {case.kind for case in without}
    assert kinds == {"contract", "reduce", "index", "move"}


def test_the_work_of_a_case_is_that_of_its_sizes():
    assert Contract(2, 3, 5).flops == 60
    assert Contract(2, 3, 5).moved == 4 * (6 + 15 + 10)
    conv = Convolution(2, 4, 6, 8, 8, 3, 2)
    assert conv.made == (2, 6, 4, 4)
    assert conv.flops == 2 * (2 * 6 * 4 * 4) * 4 * 9
    assert Attention(1, 2, 1, 4, 4, 8, True).flops == 2 * 2 * 2 * 10 * 8
    assert Rows("layer_norm", 3, 5, "both").moved == 4 * (15 + 5 + 5 + 15 + 15 + 15 + 5 + 5)
    assert Map("adam", 3, 5).moved == 7 * 4 * 15


def test_cases_survive_json():
    for case in [*TINY, *(case for cases in GROUPS.values() for case in cases)]:
        assert from_json(json.loads(json.dumps(to_json(case)))) == case


# --------------------------------------------------------------------------- draws


@pytest.mark.parametrize("group", DRAWS)
def test_draws_are_the_same_for_everybody_and_more_of_them_begin_alike(group):
    few, many = drawn(group, 6), drawn(group, 12)
    assert many[:6] == few
    assert len(set(many)) == 12
    assert all(fits(case) and case.variant.startswith(group.split(".")[0]) for case in many)
    assert drawn(group, 6, seed=1) != few


def test_draws_have_primes_and_odd_sizes_and_three_layouts():
    cases = drawn("contract.TN", 40)
    sizes = [size for case in cases for size in (case.m, case.k, case.n)]
    assert sum(map(is_prime, sizes)) > 20
    assert sum(size % 8 == 0 for size in sizes) > 20
    assert {case.form for case in cases} == {"TN"}
    assert {case.form for case in drawn("contract.batch", 40)} == {"NN", "NT", "TN"}
    # log-uniform: as many below the middle of the logarithm as above
    rows = [case.rows for case in drawn("map", 200)]
    assert 40 < sum(size < math.sqrt(8192) for size in rows) < 160


# --------------------------------------------------------------------------- turns and tables


def test_a_turn_is_the_median_of_calls_after_a_warm_up(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(turns.time, "perf_counter", lambda: now[0])
    lengths = iter([0.3, 1.0, 5.0, 2.0])

    def timed():
        now[0] += (spent := next(lengths))
        return spent

    assert turns.turn(timed, seconds=0.5, warm_up=0.1) == 2.0
    assert turns.turn(lambda: 9.0, seconds=0.5) == 9.0  # one call tells enough


def a_point(ours, theirs, case=None):
    point = Point(case or Contract(10, 10, 10), 2)
    point.rounds = {"darner": list(ours), "torch": list(theirs)}
    return point


def test_a_ratio_is_the_median_of_rounds_with_the_best_peer():
    point = a_point([1.0, 2.0, 4.0], [2.0, 2.0, 2.0])
    point.rounds["numpy"] = [8.0, 8.0, 8.0]
    assert point.best_peer == "torch"
    assert point.ratio == 1.0
    assert point.ratio_to("numpy") == 4.0
    assert point.ratio_to("mkl") is None


def test_results_that_differ_leave_the_point():
    point = Point(Contract(1, 1, 1), 1)
    found = {
        "darner": [np.array([1.0])],
        "torch": [np.array([2.0])],
        "numpy": [np.array([2.0])],
        "mkl": [np.array([2.0]), np.array([2.0])],
    }
    assert list(turns.agreeing(point, found)) == ["torch", "numpy"]
    assert point.notes == [
        "contract.NN 1x1x1: darner is not measured: its result is 5.0e-01 off torch's",
        "contract.NN 1x1x1: mkl is not measured: its result is inf off torch's",
    ]
    assert relative_error(np.array([1.0]), np.array([2.0])) == 0.5


def test_the_slowest_come_first_and_distributions_count():
    points = [a_point([1.0], [ratio]) for ratio in (0.9, 0.5, 2.0, 0.7)]
    assert [point.ratio for point in report.slow_points(points)] == [0.5, 0.7]
    line = report.distribution_table({"contract": points}).splitlines()[2]
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    assert cells == ["contract", "4", "0.50", "0.56", "0.80", "1.67", "2", "3"]
    table = report.peers_table({"contract": points}).splitlines()
    assert [cell.strip() for cell in table[2].split("|")[1:-1]] == ["contract", "0.80"]


def test_rates_are_shares_of_the_machine():
    peak = {"flops": 4000.0, "bandwidth": 1e6}
    found = report.rates(a_point([1.0], [1.0]), peak)
    assert found == {"gflops": 2e-6, "gigabytes": 1.2e-6, "share": 0.5}
    line = report.points_table([a_point([1e-3], [2e-3])], peak).splitlines()[2]
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    assert cells[:6] == ["contract.NN", "10x10x10", "1000", "2000", "torch", "2.00"]


def test_groups_are_chosen_by_the_beginning_of_their_names():
    assert chosen(["conv", "contract.T"], DRAWS) == [
        "conv.forward",
        "conv.input",
        "conv.weight",
        "contract.TN",
    ]
    assert arguments(["gemm"]).groups == ["gemm"]
    with pytest.raises(ValueError, match="no group 'fft'"):
        chosen(["fft"], DRAWS)


def test_the_slow_points_of_a_run_are_measured_again(tmp_path):
    points = [
        a_point([1.0], [ratio], case) for ratio, case in zip((0.9, 0.7, 0.5), TINY, strict=False)
    ]
    run = {"groups": {"gemm": [report.point_json(point, {}) for point in points], "rows": []}}
    assert slow_cases(run, ["gemm", "rows"]) == {"gemm": [TINY[2], TINY[1]]}
    assert slow_cases(run, ["rows"]) == {}


def test_another_checkout_is_no_peer(monkeypatch):
    monkeypatch.setenv("BENCH_BEFORE", "")
    point = a_point([1.0], [2.0])
    point.rounds["before"] = [1.5]
    assert point.best_peer == "torch"
    assert point.ratio_to("before") == 1.5
    options = arguments(["rows", "--before", "somewhere", "--engines", "torch"])
    assert engines_of("rows", options) == ["darner", "before", "torch"]
    assert os.environ["BENCH_BEFORE"].endswith("/somewhere")


@pytest.mark.slow
def test_a_sweep_compares_measures_and_writes_json(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        "bench.kernels.__main__.machine", lambda _: {"flops": 1e9, "bandwidth": 1e9}
    )
    path = tmp_path / "sweep.json"
    given = ["--sweep", "index", "--count", "2", "--rounds", "1", "--seconds", "0.001"]
    assert kernels_main([*given, "--threads", "1", "--json", str(path)]) == 0
    found = json.loads(path.read_text())["groups"]["index"]
    assert [from_json(point["case"]) for point in found] == drawn("index", 2)
    for point in found:
        assert set(point["us"]) == {"darner", "torch", "numpy"}
        assert min(point["us"].values()) > 0
        assert point["notes"] == []
    printed = capsys.readouterr().out
    assert "points below 0.8 of the best peer" in printed
    assert "| all   |      2 |" in printed


@pytest.mark.slow
def test_results_alone_can_be_compared(capsys, monkeypatch):
    monkeypatch.setitem(GROUPS, "tiny", [Contract(5, 17, 9), Rows("softmax", 5, 13)])
    assert kernels_main(["tiny", "--check", "--threads", "1"]) == 0
    assert capsys.readouterr().out == "tiny: 2 of 2 agree\n"


def test_lines_are_written_by_all_threads_and_cost_something_to_share():
    with Lines(2) as lines:
        lines._spent("write")
        written = lines.memory.view(np.int64)[:: LINE // 8]
        assert written.tolist() == list(range(BYTES // LINE))
        assert math.isfinite(lines.nanoseconds())
    assert shared_line(1) is None
