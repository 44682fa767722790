"""The forms of convolutions that read images in place, each forced at sizes where it would and would not be chosen."""

import dataclasses
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import darner
from darner import Graph
from darner.backends.base.cache import ObjectCache
from darner.backends.cpu.conv import channel_lanes as conv_lanes
from darner.backends.cpu.conv import direct as conv_direct
from darner.backends.cpu.conv import dots as conv_dots
from darner.backends.cpu.conv import driver as conv_driver
from darner.backends.cpu.conv import template as conv
from darner.backends.cpu.conv import weight_gradient as conv_weights
from darner.backends.cpu.conv.blocks import blocks_of
from darner.backends.cpu.conv.plan import uneven
from darner.backends.cpu.conv.planes import grid_of_planes
from darner.backends.cpu.conv.spans import met, share_of_taps
from darner.backends.cpu.kernels import functions_of
from darner.backends.cpu.model import CpuModel
from darner.backends.cpu.runtime.jit import host
from darner.backends.cpu.runtime.program import CpuProgram
from darner.codegen.problems.conv import patches_of
from darner.lower.lower import lower
from darner.lower.roles import whole_ops
from darner.testing import assert_close
from tests.cpu.running import compiled, run_program
from tests.cpu.test_conv import NAMED, OPS, QUICK, bare, cases, inputs_of, plain
from tests.cpu.test_targets import machine_of

ODD = {
    "few channels out": plain(3, 19, (13, 17), 7, 3, padding=1),
    "few channels in and out": plain(2, 3, (31, 29), 5, 7, padding=3),
    "more than a block": plain(2, 5, (37, 53), 11, 5, padding=2),
    "rows shorter than a vector": plain(7, 11, (23, 5), 13, 3, padding=1),
    "strided": plain(3, 7, (29, 23), 6, 5, stride=2, padding=2),
    "strided by three, no padding": plain(2, 5, (23, 31), 17, 3, stride=3),
    "dilated": plain(2, 5, (19, 23), 9, 3, padding=2, dilation=2),
    "groups of few": plain(5, 8, (17, 13), 8, 5, padding=2, groups=4),
    "a line": plain(3, 5, (101,), 7, 9, padding=4),
    "a stride past the result": plain(2, 3, (7, 1), 5, 2, stride=2, padding=1),
    "taps that meet nothing": plain(1, 3, (1, 1), 2, 1, stride=2, padding=1),
    "single taps": plain(3, 23, (11, 13), 7, 1),
}


FORMS = {"pixels": conv_direct, "channels": conv_lanes, "packed": conv_driver}
"""Who computes a convolution or its gradient towards the input, by what its lanes are or its patches."""


def force(patch, kind):
    """Nothing but one form, where it is possible, and its like for the gradient towards the weight."""
    form = FORMS[kind]

    def chosen(main, machine, packed):
        fits = form is conv_driver or form.Layout(main, machine).possible
        return form if fits else conv_driver

    def weights(main, machine):
        dots = kind == "pixels" and conv_dots.Layout(main, machine).grid.possible
        return conv_dots if dots else conv_weights

    patch.setattr(conv, "_form", chosen)
    patch.setattr(conv, "_weights_form", weights)
    patch.setattr(conv, "winograd_of", lambda *_, **__: None)


@pytest.fixture(params=FORMS)
def forced(request, monkeypatch):
    """A form is forced for one test."""
    force(monkeypatch, request.param)


def results(graph, given, threads=2, cache=None):
    program = compiled(graph, threads=threads, whole=whole_ops(), cache=cache or ObjectCache(None))
    try:
        return run_program(program, given)
    finally:
        program.close()


def assert_right(graph, dtype, length, threads=2):
    given = inputs_of(graph)
    found = results(graph, given, threads)
    for a, b in zip(found, darner.run(graph, given, {}, float64=True), strict=True):
        assert_close(a, b, dtype, length)
    return found


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", [*ODD, *NAMED])
def test_images_read_in_place_give_what_the_reference_gives(name, op, forced):
    case = ODD.get(name) or NAMED[name]
    assert_right(bare(case, op), "f32", case.terms(op))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", ["more than a block", "groups of few"])
def test_bits_do_not_depend_on_threads(name, op, forced, tmp_path):
    graph, cache = bare(ODD[name], op), ObjectCache(tmp_path)
    given = inputs_of(graph)
    one, two, three = (results(graph, given, threads, cache)[0] for threads in (1, 2, 3))
    assert one.tobytes() == two.tobytes() == three.tobytes()


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("vector_bytes", [16, 32])
def test_processors_with_narrower_vectors(vector_bytes, op, forced):
    narrower = dataclasses.replace(host(), vector_bytes=vector_bytes)
    for name in ("strided", "rows shorter than a vector", "groups of few"):
        graph = bare(ODD[name], op)
        given = inputs_of(graph)
        program = compiled(
            graph, threads=2, whole=whole_ops(), cache=ObjectCache(None), machine=narrower
        )
        found = run_program(program, given)
        program.close()
        (wanted,) = darner.run(graph, given, {}, float64=True)
        assert_close(found[0], wanted, "f32", ODD[name].terms(op))


@pytest.mark.parametrize(("op", "dtype"), list(product(OPS, ("f64", "bf16", "f16"))))
def test_other_types_are_summed_wide(op, dtype, forced):
    case = ODD["strided"]
    assert_right(bare(case, op, dtype), dtype, case.terms(op))


@pytest.mark.parametrize("op", OPS)
def test_what_follows_is_part_of_the_kernel(op, forced):
    case = ODD["few channels out"]
    graph = Graph()
    y = case.node(graph, op, "f32")
    bias = graph.input("bias", (y.shape[1], *(1,) * (y.rank - 2)))
    residual = graph.input("residual", y.shape)
    graph.set_outputs([(y + bias).relu() * 0.5 + residual, y])
    assert_right(graph, "f32", case.terms(op))


@settings(QUICK, max_examples=24)
@given(
    case=cases(),
    op=st.sampled_from(OPS),
    threads=st.sampled_from((1, 2)),
    kind=st.sampled_from(list(FORMS)),
)
def test_any_geometry(case, op, threads, kind):
    with pytest.MonkeyPatch.context() as patch:
        force(patch, kind)
        assert_right(bare(case, op), "f32", case.terms(op), threads)


@QUICK
@given(cases(), st.sampled_from(["conv_weight_grad", "conv_input_grad"]))
def test_every_tap_finds_its_element_at_its_own_distance(case, op):
    node = case.node(Graph(), op, "f32")
    patches = patches_of(node)
    grid = grid_of_planes(patches)
    rng = np.random.default_rng(0)
    images = rng.normal(size=(patches.batch, *patches.sizes))
    planes = []
    for plane in grid.planes:
        laid = np.zeros((patches.batch, *grid.pitches))
        step = tuple(
            slice(start, None, step) for start, step in zip(plane.starts, plane.steps, strict=True)
        )
        inside = tuple(slice(0, size) for size in plane.sizes)
        laid[(slice(None), *inside)] = images[(slice(None), *step)]
        planes.append(np.pad(laid.ravel(), (grid.before, grid.behind)))
    for phase, taps in zip(patches.phases, grid.taps, strict=True):
        counts = [range(axis.count) for axis in phase.axes]
        for (plane, distance), tap in zip(taps, product(*counts), strict=True):
            for image, *pixel in np.ndindex(patches.batch, *(axis.pixels for axis in phase.axes)):
                at = [
                    p * s + axis.offset + t * d
                    for p, s, axis, t, d in zip(
                        pixel, patches.steps, phase.axes, tap, patches.deltas, strict=True
                    )
                ]
                valid = all(0 <= a < size for a, size in zip(at, patches.sizes, strict=True))
                wanted = images[(image, *at)] if valid else 0.0
                place = np.ravel_multi_index((image, *pixel), (patches.batch, *grid.pitches))
                assert planes[plane][grid.before + place + distance] == wanted


@QUICK
@given(cases(), st.sampled_from([32, 64, 256]))
def test_blocks_reach_from_their_first_pixel_to_their_last(case, longest):
    patches = patches_of(case.node(Graph(), "conv", "f32"))
    grid = grid_of_planes(patches)
    blocks = blocks_of(patches, grid, longest, 16)
    pixels = list(np.ndindex(patches.batch, *patches.result))
    reach = (patches.batch, *grid.pitches)
    if blocks.images > 1:
        firsts = list(range(0, len(pixels), blocks.length))
    else:
        firsts = [
            image * patches.pixels + first
            for image in range(patches.batch)
            for first in range(0, patches.pixels, blocks.length)
        ]
    assert len(firsts) == blocks.count
    for first, after in zip(firsts, [*firsts[1:], len(pixels)], strict=True):
        assert after - first in blocks.lengths
        low, high = (np.ravel_multi_index(pixels[k], reach) for k in (first, after - 1))
        assert high - low < blocks.span


@pytest.mark.parametrize(
    ("case", "form"),
    [
        (plain(5, 248, (32, 32), 7, 3, padding=1), conv_dots),
        (plain(2, 31, (43, 89), 211, 3, stride=2, padding=1), conv_weights),
    ],
)
def test_gradients_of_few_channels_have_pixels_in_lanes(case, form):
    node = case.node(Graph(), "conv_weight_grad", "f32")
    assert conv._weights_form(node, host()) is form


@pytest.mark.parametrize(
    ("case", "form"),
    [
        (plain(5, 17, (7, 53), 7, 5, padding=2), conv_direct),
        (plain(5, 17, (47, 53), 312, 5, padding=2), conv_driver),
        (plain(5, 17, (7, 53), 312, 5, padding=2), conv_lanes),
        (plain(4, 43, (7, 6), 16, 7, padding=3), conv_lanes),
    ],
    ids=["few channels of the result", "many of them", "few rows", "small images"],
)
def test_patches_are_packed_where_that_pays(case, form):
    assert conv._form(case.node(Graph(), "conv", "f32"), host(), packed=False) is form


LOW = {
    "rows of their own": plain(2, 3, (5, 41), 60, 5, padding=2),
    "several images": plain(7, 5, (6, 5), 21, 5, padding=2),
    "channels in several blocks": plain(3, 190, (7, 61), 19, 5, padding=2),
    "strided": plain(5, 6, (9, 9), 17, 7, stride=2, padding=3),
    "dilated": plain(4, 5, (8, 8), 9, 3, padding=3, dilation=3),
    "in groups": plain(3, 8, (4, 9), 12, 5, padding=2, groups=2),
    "a volume": plain(3, 4, (4, 5, 6), 7, 3, padding=1),
}


@pytest.mark.parametrize("op", ["conv", "conv_input_grad"])
@pytest.mark.parametrize("name", LOW)
def test_taps_outside_of_low_images_are_left_out(name, op, monkeypatch):
    force(monkeypatch, "channels")
    case, graph = LOW[name], Graph()
    layout = conv_lanes.Layout(case.node(Graph(), op, "f32"), host())
    # The gradient of a stride is of several phases, which this form has not.
    assert layout.spans if layout.possible else case.stride != (1, 1)
    y = case.node(graph, op, "f32")
    graph.set_outputs([y.relu() * 2.0, y])
    one, two = (assert_right(graph, "f32", case.terms(op), threads)[1] for threads in (1, 2))
    assert one.tobytes() == two.tobytes()


def test_the_share_of_taps_that_tiles_need_is_that_of_their_pixels():
    patches = patches_of(plain(2, 3, (5, 41), 60, 5, padding=2).node(Graph(), "conv", "f32"))
    assert [met(patches, y) for y in range(5)] == [(2, 5), (1, 5), (0, 5), (0, 4), (0, 3)]
    assert share_of_taps(patches, 2, 8) == 19 / 25
    # Of tiles of 8 in rows of 5 those of the first 40 pixels have two or three rows, and the last the last two.
    few = patches_of(plain(1, 3, (10, 5), 9, 3, padding=1).node(Graph(), "conv", "f32"))
    assert share_of_taps(few, 1, 8) == 20 / 21
    assert share_of_taps(few, 4, 5) == pytest.approx(28 / 30)


@pytest.mark.parametrize("name", ["strided", "groups of few", "rows shorter than a vector"])
@pytest.mark.parametrize("threads", [1, 2])
def test_weights_that_change_seldom_are_put_into_panels_once(name, threads, monkeypatch):
    force(monkeypatch, "channels")
    case, graph = ODD[name], Graph()
    x, w = graph.input("x", case.shapes["x"]), graph.parameter("w", case.shapes["w"])
    same = {key: getattr(case, key) for key in ("stride", "padding", "dilation", "groups")}
    graph.set_outputs([x.conv(w, **same).relu()])
    plan = lower(graph, target="cpu", whole=whole_ops())
    fixed = list(plan.leaves("parameter").values())
    (packing,) = functions_of(plan, host(), fixed).packing.values()
    assert packing[1].nbytes >= 4 * np.prod(case.shapes["w"])
    program = CpuProgram(plan, threads=threads, fixed=fixed, cache=ObjectCache(None))
    rng = np.random.default_rng(0)
    for _ in range(2):
        given = {"x": rng.standard_normal(case.shapes["x"], np.float32)}
        params = {"w": rng.standard_normal(case.shapes["w"], np.float32)}
        program.arrays[plan.leaves("parameter")["w"]][...] = params["w"]
        program.prepare()
        (found,) = run_program(program, given)
        (wanted,) = darner.run(graph, given, params, float64=True)
        assert_close(found, wanted, "f32", case.terms("conv"))
    program.close()


def test_weights_in_panels_are_worth_more_where_they_are_packed_before():
    node = plain(2, 7, (5, 5), 271, 7, padding=3).node(Graph(), "conv", "f32")
    often, once = (conv_lanes.Layout(node, host(), packed) for packed in (False, True))
    assert once.cycles < often.cycles
    assert once.scratch.shared == 0 < often.scratch.shared


def test_channels_of_two_threads_are_two_narrow_panels():
    """56 channels in panels of 48 would leave one thread a sixth of the work."""
    node = plain(3, 347, (14, 9), 56, 5, stride=2, padding=2).node(Graph(), "conv", "f32")
    layout = conv_lanes.Layout(node, machine_of(64))
    assert (layout.cut.tile.rows, layout.cut.tile.width) == (8, 32)


def test_images_that_the_cache_does_not_hold_are_packed():
    node = plain(1, 4096, (5, 80), 3, 7, padding=3).node(Graph(), "conv", "f32")
    assert not conv_direct.Layout(node, host()).possible


@pytest.mark.parametrize(
    ("rows", "parts", "height", "threads", "share"),
    [
        (16, 2, 12, 2, 1.5),
        (16, 2, 8, 2, 1.0),
        (16, 3, 6, 2, 1.0),
        (16, 2, 12, 1, 1.0),  # one thread has all of them
        (16, 2, 12, 4, 1.5),  # two threads share the first part
        (16, 4, 5, 4, 1.25),
    ],
)
def test_the_first_thread_may_have_more_rows(rows, parts, height, threads, share):
    assert uneven(rows, parts, height, CpuModel(threads=threads, multiplies=2)) == share
