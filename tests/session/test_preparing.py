"""Weights that only what was made of them is read of: given back to the system, and read as they were."""

import sys

import numpy as np
import pytest

import darner
from darner import Graph, optim
from darner.backends.base.memory import reclaim, release, together
from darner.backends.cpu.emit.panels import Panels
from tests.session.opening import opened

WIDTH, INNER, WORDS = 160, 421, 1553
JOINED = ("q", "k", "v", "gate", "up")
WEIGHTS = (*JOINED, "out", "down", "head")

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux takes single pages back")


def block(rows=16, *, label=None):
    """A layer of a transformer without attention: weights that are joined, some that are not, one read as it is, one turned."""
    g = Graph("block")
    tokens = g.input("tokens", (rows,), "i32")
    x = g.embedding(tokens, g.parameter("words", (WORDS, WIDTH)))
    normed = x.rms_norm(g.parameter("norm", (WIDTH,)), 1e-5)
    q, k, v = (normed @ g.parameter(name, (WIDTH, WIDTH)) for name in "qkv")
    x = x + (q.tanh() * k + v) @ g.parameter("out", (WIDTH, WIDTH))
    gate, up = (x @ g.parameter(name, (WIDTH, INNER)) for name in ("gate", "up"))
    x = x + gate.swiglu(up) @ g.parameter("down", (INNER, WIDTH))
    g.set_outputs([g.matmul(x, g.parameter("head", (WORDS, WIDTH)).T, label=label)])
    return g


def drawn(graph, seed=0):
    rng = np.random.default_rng(seed)
    return {
        name: (rng.standard_normal(leaf.shape) / 12).astype(np.float32)
        for name, leaf in graph.parameters.items()
    }


def tokens(rows=16):
    return {"tokens": np.random.default_rng(1).integers(0, WORDS, rows, np.int32)}


def check(session, graph, params, rows=16):
    """The session computes what the reference does with these parameters, and reads them as they are."""
    (wanted,) = darner.run(graph, tokens(rows), params, float64=True)
    (found,) = session.run(tokens(rows)).values()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())
    check_reads(session, params)


def check_reads(session, params):
    for name, value in params.items():
        np.testing.assert_array_equal(session.read_param(name), value, err_msg=name)


def inferring(graph, params, **options):
    return opened(graph, mode="infer", device="cpu", params=params, **options)


def given_back(session):
    """The parameters whose memory was given back; their first and last pages may be a neighbour's too."""
    page = 4096 // 4
    inner = {name: array.reshape(-1)[page:-page] for name, array in session._storage.items()}
    return {name for name, array in inner.items() if array.size and not array.any()}


# --------------------------------------------------------------------------- memory and panels


@on_linux
def test_released_memory_reads_as_zeros_and_neighbours_keep_theirs():
    small, large, last = (room.view(np.float32) for room in together([100, 5 << 20, 3 << 20]))
    for array in (small, large, last):
        array[...] = 7.0
    release(large)
    page = 4096 // 4
    assert not large[page:-page].any()
    assert (small == 7).all()
    assert (last == 7).all()
    reclaim(large)
    large[...] = 8.0
    assert (large == 8).all()
    assert (last == 7).all()


def test_memory_that_is_not_mapped_keeps_what_it_holds():
    array = np.ones(10, np.float32)
    release(array)
    reclaim(array)
    assert (array == 1).all()


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 48), (5, 100), (7, 16), (2, 47)])
def test_panels_are_read_back(rows, columns, turned):
    width, last = 48, -(-(columns % 48) // 16) * 16
    matrix = np.arange(rows * columns, dtype=np.int32).reshape(rows, columns)
    padded = np.pad(matrix, ((0, 0), (0, last - columns % 48 if last else 0)))
    panels = [padded[:, i : i + width].reshape(-1) for i in range(0, padded.shape[1], width)]
    packed = np.concatenate(panels).view(np.uint8)
    wanted = np.ascontiguousarray(matrix.T if turned else matrix)
    found = Panels(rows, columns, width, last, turned).unpacked(packed, like=wanted)
    np.testing.assert_array_equal(found, wanted)


# --------------------------------------------------------------------------- sessions


@on_linux
def test_weights_are_given_back_that_no_step_reads():
    graph = block()
    params = drawn(graph)
    with inferring(graph, params) as session:
        assert given_back(session) == set()
        check(session, graph, params)
        assert given_back(session) == set(WEIGHTS)
        check(session, graph, params)


@pytest.mark.slow
@on_linux
def test_joined_weights_are_kept_once_where_a_step_reads_them_as_they_are():
    graph = block(1)
    params = drawn(graph)
    with inferring(graph, params) as session:
        check(session, graph, params, 1)
        assert given_back(session) == set(JOINED)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("rows", [1, 2, 5, 7])
def test_a_few_rows_by_weights_that_are_packed(dtype, rows):
    g = Graph("few")
    x = g.input("x", (rows, 1100), dtype)
    y = (x @ g.parameter("up", (1100, 1100), dtype)).tanh()
    g.set_outputs([y @ g.parameter("down", (1150, 1100), dtype).T + 1.0])
    rng = np.random.default_rng(rows)
    params = {
        name: (rng.standard_normal(leaf.shape) / 30).astype(leaf.dtype.numpy)
        for name, leaf in g.parameters.items()
    }
    given = {"x": rng.standard_normal((rows, 1100)).astype(x.dtype.numpy)}
    (wanted,) = darner.run(g, given, params, float64=True)
    found = []
    for threads in (1, 2, 3):
        with inferring(g, params, threads=threads) as session:
            found += session.run(given).values()
            (special,) = session._kept.values()
            assert len(special.program._packed) == 2
    close = 1e-5 if dtype == "f32" else 0.02
    np.testing.assert_allclose(found[0].astype(np.float64), wanted, rtol=0, atol=close)
    assert {array.tobytes() for array in found} == {found[0].tobytes()}


@pytest.mark.parametrize(("rows", "packed"), [(1, ["out"]), (7, ["out"]), (8, ["out", "words"])])
def test_what_is_read_as_it_is_too_is_packed_for_many_rows_only(rows, packed):
    """A table of words that is the head as well would be in memory twice."""
    g = Graph("tied")
    words = g.parameter("words", (WORDS, 520))
    x = g.embedding(g.input("tokens", (rows,), "i32"), words)
    x = (x @ g.parameter("out", (520, 520))).tanh()
    g.set_outputs([x @ words.T])
    params = drawn(g)
    with inferring(g, params) as session:
        check(session, g, params, rows)
        (special,) = session._kept.values()
        buffers = special.program.plan.buffers
        assert sorted(str(buffers[i].name) for i in special.program._packed) == packed


@pytest.mark.parametrize("rows", [1, 16])
def test_every_bit_is_read_back(rows):
    graph = block(rows)
    rng = np.random.default_rng(5)
    bits = {
        name: rng.integers(0, 1 << 32, leaf.shape, np.uint32)
        for name, leaf in graph.parameters.items()
    }
    params = {name: value.view(np.float32) for name, value in bits.items()}  # NaNs, -0.0, denormals
    with inferring(graph, params) as session:
        session.run(tokens(rows))
        for name, value in bits.items():
            found = session.read_param(name).view(np.uint32)
            np.testing.assert_array_equal(found, value, err_msg=name)


def test_a_weight_is_read_into_memory_of_the_caller_and_by_its_mapping():
    graph = block()
    params = drawn(graph)
    with inferring(graph, params) as session:
        session.run(tokens())
        out = np.empty((WIDTH, INNER), np.float32)
        assert session.read_param("gate", out) is out
        np.testing.assert_array_equal(out, params["gate"])
        out[...] = 0.0
        np.testing.assert_array_equal(session.parameters()["gate"], params["gate"])
        wanted = {name: np.linalg.norm(value) for name, value in params.items()}
        found = session.read_all_param_norms()
        for name, value in wanted.items():
            assert found[name] == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize("changed", [("k",), ("up", "head"), ("words",), WEIGHTS])
def test_what_is_written_is_used_and_the_rest_stays(changed):
    graph = block()
    params, others = drawn(graph), drawn(graph, 1)
    with inferring(graph, params) as session:
        check(session, graph, params)
        for round_ in range(3):
            for name in changed:
                params[name] = others[name] * np.float32(round_ + 1)
                session.set_parameter(name, params[name])
            check_reads(session, params)
            check(session, graph, params)


@on_linux
def test_weights_stay_that_had_to_be_read_back_for_another_one():
    graph = block()
    params = drawn(graph)
    with inferring(graph, params) as session:
        session.run(tokens())
        session.set_parameter("gate", params["gate"])
        session.run(tokens())
        assert given_back(session) == {"gate"}
        check(session, graph, params)
    with inferring(graph, params) as session:
        session.run(tokens())
        session.parameters().update(params)
        session.run(tokens())
        assert given_back(session) == set(WEIGHTS)
        check(session, graph, params)


def test_first_values_can_be_given_again():
    graph = block()
    with inferring(graph, drawn(graph)) as session:
        session.run(tokens())
        session.initialize("normal", seed=3)
        params = dict(session.parameters())
        assert params["gate"].std() > 0
        check(session, graph, params)


def test_checkpoints_have_what_was_given_back(tmp_path):
    graph = block()
    params, others = drawn(graph), drawn(graph, 1)
    path = tmp_path / "block.safetensors"
    with inferring(graph, params) as session:
        session.run(tokens())
        session.save_checkpoint(path)
        session.parameters().update(others)
        check(session, graph, others)
        session.load_checkpoint(path)
        check_reads(session, params)
        check(session, graph, params)
    with inferring(graph, None) as session:
        session.load_checkpoint(path)
        check(session, graph, params)


def test_two_sessions_of_one_model_share_weights():
    many, one = block(16), block(1)
    params, others = drawn(many), drawn(many, 1)
    with inferring(many, params) as prefill, inferring(one, None, share=prefill) as decode:
        for _ in range(2):
            check(prefill, many, params)
            check(decode, one, params, 1)
        for session in (prefill, decode):
            name = "up" if session is prefill else "v"
            params[name] = others[name]
            session.set_parameter(name, params[name])
            for _ in range(2):
                check(decode, one, params, 1)
                check(prefill, many, params)


@pytest.mark.parametrize("rows", [1, 16])
def test_weights_outlast_the_session_that_has_them(rows):
    graph, other = block(16), block(rows)
    params = drawn(graph)
    with inferring(graph, params) as first:
        second = inferring(other, None, share=first)
        check(first, graph, params)
        check(second, other, params, rows)
        second.close()
        check(first, graph, params)
    first = inferring(graph, params)
    with inferring(other, None, share=first) as second:
        check(first, graph, params)
        first.close()
        check_reads(second, params)
        check(second, other, params, rows)


def test_a_session_that_begins_to_share_keeps_what_is_its_own():
    graph, smaller = block(), Graph("smaller")
    x, w = smaller.input("x", (16, WIDTH)), smaller.parameter("gate", (WIDTH, INNER))
    smaller.set_outputs([x @ w])
    params, data = drawn(graph), np.ones((16, WIDTH), np.float32)
    with inferring(graph, params) as session, inferring(smaller, None) as other:
        check(session, graph, params)
        other.set_parameter("gate", params["gate"] * 2)
        other.run({"x": data})
        session.share_parameters(other)
        check(session, graph, {**params, "gate": params["gate"] * 2})


def test_training_beside_inference_reads_weights_that_were_given_back():
    answer, learned = block(label="logits"), block()
    loss = learned.outputs[0].square().mean()
    learned.set_outputs([loss])
    params = drawn(answer)
    with inferring(answer, params) as reader:
        check(reader, answer, params)
        with opened(learned, device="cpu", share=reader, optimizer=optim.SGD(0.5)) as learner:
            losses = []
            for _ in range(3):
                losses.append(float(learner.run(tokens())["output0"]))
                now = dict(learner.parameters())
                check(reader, answer, now)
        check(reader, answer, now)
    with opened(learned, device="cpu", params=params, optimizer=optim.SGD(0.5)) as alone:
        assert losses == [float(alone.run(tokens())["output0"]) for _ in range(3)]
        check_reads(alone, now)


@pytest.mark.parametrize("kept", [1, 8])
def test_programs_for_several_sizes_have_the_same_weights(kept):
    graph = block("rows")
    params = drawn(graph)
    with inferring(graph, params, specialisations=kept) as session:
        for rows in (16, 9, 1, 16):
            check(session, graph, params, rows)
        params["q"] = params["k"]
        session.set_parameter("q", params["q"])
        for rows in (9, 1, 16):
            check(session, graph, params, rows)


def test_a_trace_sees_weights_that_were_given_back():
    graph = block(label="logits")
    params = drawn(graph)
    with inferring(graph, params) as session:
        session.set_input("tokens", tokens()["tokens"])
        session.step()
        assert not session.trace_dispatches()
        check(session, graph, params)
        params["up"][3, 4] = np.nan
        session.set_parameter("up", params["up"])
        session.step()
        found = session.trace_dispatches()
        assert found
        assert "up" in str(found)
        check_reads(session, params)


def test_what_is_computed_of_a_weight_does_not_replace_it():
    g = Graph("scaled")
    x, w = g.input("x", (16, 300)), g.parameter("w", (300, 700))
    v = g.parameter("v", (300, 700))
    g.set_outputs([x @ (w * w.abs().max()), x @ v, v.sum(0)])
    params = drawn(g)
    data = {"x": np.random.default_rng(2).standard_normal((16, 300)).astype(np.float32)}
    with inferring(g, params) as session:
        for scale in (1.0, 3.0):
            params["w"] = params["w"] * np.float32(scale)
            session.set_parameter("w", params["w"])
            wanted = darner.run(g, data, params, float64=True)
            for found, value in zip(session.run(data).values(), wanted, strict=True):
                np.testing.assert_allclose(found, value, atol=2e-5 * np.abs(value).max())
            check_reads(session, params)


@pytest.mark.parametrize("dtype", ["f64", "bf16", "f16"])
def test_weights_of_other_types_are_read_as_they_were(dtype):
    g = Graph("types")
    x, w = g.input("x", (16, 500), dtype), g.parameter("w", (500, 1100), dtype)
    g.set_outputs([x @ w])
    rng = np.random.default_rng(3)
    given = rng.standard_normal((500, 1100)).astype(g.parameters["w"].dtype.numpy)
    with inferring(g, {"w": given}) as session:
        session.run({"x": np.ones((16, 500), given.dtype)})
        np.testing.assert_array_equal(session.read_param("w"), given)
        session.set_parameter("w", -given)
        session.run({"x": np.ones((16, 500), given.dtype)})
        np.testing.assert_array_equal(session.read_param("w"), -given)
