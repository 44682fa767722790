"""Elements that move: transposed and strided reading, results past the cache, places of extremes."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import darner
from darner import Graph
from darner.backends.cpu import kernels
from darner.backends.cpu.emit import non_temporal as streaming
from darner.backends.cpu.kernels import emit_module, functions_of, template_of
from darner.backends.cpu.maps import transpose as turned
from darner.backends.cpu.maps.concat import MOST
from darner.backends.cpu.maps.transpose import turning
from darner.backends.cpu.model import CpuModel
from darner.backends.cpu.runtime.jit import host
from darner.codegen.elements.collapse import collapsed
from darner.lower.lower import lower
from tests.cpu.running import compiled, one, run_program

RNG = np.random.default_rng(11)


def whole(*shape, dtype="f4"):
    return RNG.integers(0, 100, shape).astype(dtype)


# --------------------------------------------------------------------------- transposed


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "i1", "i4", "?"])
@pytest.mark.parametrize(
    ("shape", "order"),
    [
        ((67, 131), (1, 0)),
        ((48, 64), (1, 0)),
        ((1031, 17), (1, 0)),
        ((5, 33, 41), (2, 1, 0)),
        ((3, 37, 61), (0, 2, 1)),
        ((2, 3, 31, 40), (0, 2, 3, 1)),
        ((4, 19, 7, 23), (3, 1, 2, 0)),
        ((41, 93, 2), (2, 1, 0)),
        ((17, 97, 3), (0, 2, 1)),
        ((6, 3, 2, 50), (3, 2, 1, 0)),
    ],
)
def test_a_transposed_copy_has_every_element_in_its_place(shape, order, dtype):
    one(lambda g, x: x.transpose(order), whole(*shape, dtype=dtype), rtol=0, atol=0)


def test_what_is_computed_of_a_transposed_value_reads_the_others_as_they_lie():
    a, b, c = whole(67, 131), whole(131, 67), whole(67)
    one(lambda g, a, b, c: [a.transpose((1, 0)) * b + c, b - c], a, b, c)
    one(lambda g, a, b, c: (a.transpose((1, 0)) > b) & (c > 3.0), a, b, c)
    one(lambda g, a, b, c: a.transpose((1, 0)).exp() / (b + 1.0) * 2.0 - c.sqrt(), a / 50, b, c)


@st.composite
def _turned(draw):
    """A shape of some thousand elements with short and long axes, and another order of its axes."""
    rank = draw(st.integers(2, 4))
    shape = draw(st.lists(st.sampled_from([1, 2, 3, 5, 8, 9, 16, 17, 33, 65]), min_size=rank))
    shape = shape[:rank]
    shape[draw(st.integers(0, rank - 1))] = draw(st.integers(60, 200))
    while np.prod(shape) > 200_000:
        shape[int(np.argmax(shape))] //= 2
    return tuple(shape), draw(st.permutations(range(rank)))


@settings(max_examples=60, deadline=None)
@given(_turned(), st.sampled_from(["f4", "f8", "f2"]), st.sampled_from([1, 2, 3]))
def test_any_shape_in_any_order_with_what_is_read_plainly_beside_it(case, dtype, threads):
    shape, order = case
    x = whole(*shape, dtype=dtype)
    y = whole(*x.transpose(order).shape, dtype=dtype)
    row = whole(y.shape[-1], dtype=dtype)

    def made(g, x, y, row):
        turned = x.transpose(order)
        return [turned + y, turned * row - y.relu() * 2.0]

    one(lambda g, x: x.transpose(order), x, threads=threads, rtol=0, atol=0)
    one(made, x, y, row, threads=threads)


@pytest.mark.parametrize("channels", [2, 3, 4, 7, 8, 9, 13])
@pytest.mark.parametrize("pixels", [(8, 8), (7, 9), (31, 33)])
def test_channels_go_last_and_come_back(channels, pixels):
    images = whole(3, channels, *pixels)
    one(lambda g, x: x.transpose((0, 2, 3, 1)), images, rtol=0, atol=0)
    last = np.ascontiguousarray(images.transpose(0, 2, 3, 1))
    one(lambda g, x: x.transpose((0, 3, 1, 2)) * 0.5, last)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("vector_bytes", [16, 32])
def test_short_rows_on_processors_with_narrower_vectors(vector_bytes, dtype):
    narrower = dataclasses.replace(host(), vector_bytes=vector_bytes)
    for columns in (3, 8, 13):
        graph = Graph()
        x = graph.input("x", (5, columns, 101), dtype.replace("f4", "f32").replace("f8", "f64"))
        y = x.transpose((0, 2, 1))
        graph.set_outputs([y, (y.exp() + 1.0).sqrt() * y.relu() - y])
        given = RNG.standard_normal(x.shape).astype(dtype)
        program = compiled(graph, threads=2, machine=narrower)
        found = run_program(program, {"x": given})
        program.close()
        wanted = darner.run(graph, {"x": given}, {}, float64=True)
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-6)


def test_a_transpose_of_axes_of_size_1_is_one_long_row():
    g = Graph()
    g.set_outputs([g.input("x", (1, 144, 719)).transpose((1, 2, 0)) * 2.0])
    plan = lower(g, target="cpu")
    spec = collapsed(plan.spec(plan.kernels[0]))
    assert [tuple(node.shape) for node in spec.body.outputs] == [(144 * 719,)]


def test_transposed_copies_of_odd_shapes_are_made_in_blocks():
    g = Graph()
    g.set_outputs([g.input("x", (67, 131)).transpose((1, 0))])
    (kernel,) = lower(g, target="cpu").kernels
    spec = lower(g, target="cpu").spec(kernel)
    assert template_of(spec).name == "turned"
    assert turning(spec).axis == 0


# --------------------------------------------------------------------------- strided


@pytest.mark.parametrize("dtype", ["f4", "f8", "i1", "?"])
@pytest.mark.parametrize("step", [2, 3, 4, 5])
@pytest.mark.parametrize("length", [7, 64, 131, 1000])
def test_every_few_elements_of_a_row(length, step, dtype):
    x = whole(5, length, dtype=dtype)
    one(lambda g, x: [x[:, ::step], x[:, 1::step], g.flip(x, (1,))[:, ::step]], x, rtol=0, atol=0)


# --------------------------------------------------------------------------- side by side


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_many_parts_of_different_sizes_lie_beside_each_other(axis):
    sizes = [1, 3, 0, 1, 40, 2, *[1] * 12, 7]
    shapes = [
        [size if k == axis else other for k, other in enumerate((5, 9, 37))] for size in sizes
    ]
    parts = [RNG.standard_normal(shape).astype("f4") for shape in shapes]
    whole_shape = np.concatenate(parts, axis).shape
    other = RNG.standard_normal(whole_shape).astype("f4")

    def made(g, other, *parts):
        joined = g.concat([parts[0].exp(), *parts[1:]], axis=axis)
        return [joined, joined * other + 1.0]

    one(made, other, *parts)


def test_a_stack_of_many_has_each_in_its_place():
    parts = [RNG.standard_normal((3, 50)).astype("f4") for _ in range(70)]
    one(lambda g, *parts: [g.stack(parts, axis=1), g.stack(parts, axis=0)], *parts, rtol=0, atol=0)


def alike(g, other, *parts):
    return g.concat([part.exp() for part in parts], axis=1) * other


def odd_ones(g, other, *parts):
    made = [p.exp() if i % 3 else p * 2.0 + p.transpose((0, 1, 2)) for i, p in enumerate(parts)]
    return g.concat(made, axis=1) - other


def sharing(g, other, *parts):
    return g.concat([part * parts[0][:, :1] + parts[1] for part in parts], axis=1)


def read_elsewhere(g, other, *parts):
    return g.concat(parts, axis=1) + parts[3][:, :1]


def pairs(g, other, *parts):
    turned = [parts[0], *reversed(parts[1:])]
    return [g.concat(parts, axis=1), g.concat(turned, axis=1).relu()]


def constants(g, other, *parts):
    made = [
        g.full(part.shape, float(i % 2), "f32") if i % 4 else part for i, part in enumerate(parts)
    ]
    return g.concat(made, axis=1)


@pytest.mark.parametrize("make", [alike, odd_ones, sharing, read_elsewhere, pairs, constants])
@pytest.mark.parametrize("threads", [1, 3])
def test_very_many_parts_lie_beside_each_other_whatever_each_is_made_of(make, threads):
    parts = [RNG.standard_normal((3, 2, 19)).astype("f4") for _ in range(2 * MOST)]
    other = RNG.standard_normal((3, 4 * MOST, 19)).astype("f4")
    one(make, other, *parts, threads=threads)


def test_parts_that_are_computed_alike_share_their_code():
    def length(count, make):
        g = Graph()
        parts = [g.input(f"x{i}", (1 + i % 2, 5, 50)) for i in range(count)]
        g.set_outputs([g.concat([make(part, i) for i, part in enumerate(parts)], axis=0)])
        plan = lower(g, target="cpu")
        return len(str(emit_module(plan, functions_of(plan, host()), host())))

    few, many = (length(count, lambda x, _: x * 2.0) for count in (2 * MOST, 8 * MOST))
    assert many < 4 * few
    # What is not alike has code of its own, as few parts have.
    assert length(2 * MOST, lambda x, i: x * float(i)) > 4 * few


def test_empty_parts_among_very_many():
    sizes = [i % 3 for i in range(3 * MOST)]
    parts = [RNG.standard_normal((2, size, 19)).astype("f4") for size in sizes]
    one(lambda g, *parts: g.concat(parts, axis=1), *parts, rtol=0, atol=0)


# --------------------------------------------------------------------------- past the cache


@pytest.fixture(params=[0, 120 << 10, 250 << 10])
def always_past(monkeypatch, request):
    """Every result is large enough, with room for some of it in the cache; objects made so are not found by others."""
    digest = f"{kernels.source_digest()} past {request.param}"
    monkeypatch.setattr(kernels, "source_digest", lambda: digest)
    monkeypatch.setattr(streaming, "LARGE", 1e-9)
    monkeypatch.setattr(streaming, "KEPT", request.param / CpuModel.of(host()).last)
    monkeypatch.setattr(turned, "PAST", 1e-9)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_results_written_past_the_cache_are_the_results(always_past, threads):
    x, y = RNG.standard_normal((2, 96, 256)).astype("f4")
    one(lambda g, x, y: [x * y + 1.0, x - y], x, y, threads=threads)
    one(lambda g, x, y: [x.softmax(), (x * y).sum(1)], x, y, threads=threads, atol=1e-5)
    one(lambda g, x, y: x.transpose((1, 0)), x, y, threads=threads)
    one(lambda g, x, y: x.softmax().transpose((1, 0)).exp(), x[:95, :241], y, threads=threads)


@pytest.mark.parametrize("length", [241, 1023])
def test_rows_that_begin_anywhere_in_a_line_are_written_past_the_cache_too(always_past, length):
    x, y = RNG.standard_normal((2, 19, length)).astype("f4")
    row = RNG.standard_normal(length).astype("f4")
    one(lambda g, x, y, row: [x * row + y, x - row], x, y, row)
    one(lambda g, x, y, row: [x.softmax(), x.layer_norm(row, row)], x, y, row, atol=1e-5)
    places = RNG.integers(0, 19, 40).astype("i4")
    one(lambda g, x, i: g.gather(x, i), x, places, rtol=0, atol=0)


@pytest.mark.parametrize(("rows", "room"), [(3000, None), (3700, 959), (8000, 0)])
def test_what_the_cache_has_room_for_is_written_to_it_and_the_rest_past_it(rows, room):
    g = Graph()
    g.set_outputs([g.input("x", (rows, 1024)) * 2.0 + 1.0])
    plan = lower(g, target="cpu")
    text = str(emit_module(plan, functions_of(plan, host()), host()))
    assert ("!nontemporal" in text) == (room is not None)
    if room is not None:
        assert f"i64 {room}, i64 1024" in text


def test_a_state_is_updated_in_its_place_and_an_unaligned_array_is_written(always_past):
    g = Graph()
    x = g.input("x", (64, 64))
    s = g.state("s", (64, 64))
    g.set_update(s, s * 0.5 + x)
    g.set_outputs([s + x])
    program = compiled(g, threads=2)
    given, state = RNG.standard_normal((64, 64)).astype("f4"), {"s": np.ones((64, 64), "f4")}
    (out,) = run_program(program, {"x": given}, state=state)
    np.testing.assert_allclose(out, 1.0 + given, rtol=1e-6)
    np.testing.assert_allclose(state["s"], 0.5 + given, rtol=1e-6)
    program.close()


# --------------------------------------------------------------------------- places of extremes


@pytest.mark.parametrize("length", [1, 15, 16, 33, 128, 1000, 4099])
def test_the_place_of_an_extreme_along_a_row_is_the_first(length):
    x = RNG.integers(-3, 4, (37, length)).astype("f4")
    x[1] = -np.inf
    x[2] = np.inf
    x[3, length // 2 :] = np.nan
    x[4, length - 1] = np.nan
    g = Graph()
    node = g.input("x", x.shape)
    g.set_outputs([node.argmax(1), node.argmin(1, keepdims=True), (node * 2.0).argmax(1)])
    program = compiled(g, threads=2)
    most, least, double = run_program(program, {"x": x})
    program.close()
    np.testing.assert_array_equal(most, x.argmax(1))
    np.testing.assert_array_equal(double, x.argmax(1))
    np.testing.assert_array_equal(least[:, 0], x.argmin(1))


@pytest.mark.parametrize("dtype", ["i1", "u1", "i8", "f2", "f8"])
def test_places_of_extremes_in_every_type(dtype):
    one(lambda g, x: [x.argmax(1), x.argmin(1), x.argmax(0)], whole(9, 200, dtype=dtype))
    one(lambda g, x: x.argmax(), whole(513, dtype=dtype))


# --------------------------------------------------------------------------- rows


@pytest.mark.parametrize("shape", [(16, 7), (37, 129), (128, 64), (3, 7, 100), (65, 1009)])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_gradients_of_a_norm_add_up_over_its_rows(shape, threads):
    g = Graph()
    x, w, b, d = (
        g.input(name, size)
        for name, size in (("x", shape), ("w", shape[-1:]), ("b", shape[-1:]), ("d", shape))
    )
    g.set_outputs([(g.layer_norm(x, w, b) * d).sum()])
    g = darner.grad(g, ["x", "w", "b"])
    given = {
        name: RNG.standard_normal(size).astype("f4")
        for name, size in (("x", shape), ("w", shape[-1:]), ("b", shape[-1:]), ("d", shape))
    }
    program = compiled(g, threads=threads)
    found = run_program(program, given)
    program.close()
    for a, e in zip(found, darner.run(g, given, float64=True), strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=2e-5 * max(1.0, np.abs(e).max()))


@pytest.mark.parametrize("shape", [(1, 5), (33, 129), (4, 9, 1000), (2, 70001)])
def test_a_loss_and_its_gradient_by_labels(shape):
    logits = (RNG.standard_normal(shape) * 4).astype("f4")
    labels = RNG.integers(0, shape[-1], shape[:-1]).astype("i4")
    labels.flat[-1] = -100 if labels.size > 1 else labels.flat[-1]
    g = Graph()
    x, t = g.input("x", shape), g.input("t", labels.shape, "i32")
    g.set_outputs([g.cross_entropy_loss(x, t)])
    g = darner.value_and_grad(g, ["x"])
    for threads in (1, 3):
        program = compiled(g, threads=threads)
        loss, slope = run_program(program, {"x": logits, "t": labels})
        program.close()
        wanted = darner.run(g, {"x": logits, "t": labels}, float64=True)
        # A loss near 0 is the difference of two numbers as large as the logits.
        np.testing.assert_allclose(loss, wanted[0], rtol=2e-6, atol=1e-7 * np.abs(logits).max())
        np.testing.assert_allclose(slope, wanted[1], rtol=2e-5, atol=1e-8)


@pytest.mark.parametrize("size", [1e-30, 1e-10, 1.0, 1e15, 3e37])
def test_rows_over_a_value_of_theirs_of_any_size(size):
    x = (RNG.uniform(0.5, 1.0, (20, 67)) * size / 70).astype("f4")
    one(lambda g, x: x / x.sum(1, keepdims=True), x, rtol=1e-6, atol=0)
    one(lambda g, x: x / x.max(0, keepdims=True), x, rtol=1e-6, atol=0)


def test_vectors_of_this_machine_are_known_to_modules():
    g = Graph()
    g.set_outputs([g.input("x", (64,)).exp()])
    plan = lower(g, target="cpu")
    module = kernels.emit_module(plan, kernels.functions_of(plan, host()), host())
    assert module.vector_bytes == host().vector_bytes
