"""What plans count on: caches, costs and threads of a machine, and that the forms they choose hold for 1 to 64 threads."""

import dataclasses
from dataclasses import fields, replace
from functools import cache
from itertools import pairwise

import pytest

from darner import Graph
from darner.backends.cpu import kernels, model
from darner.backends.cpu.attention.plan import describe, stacked
from darner.backends.cpu.contract import plan as products
from darner.backends.cpu.contract.queued import can_claim
from darner.backends.cpu.contract.template import _parts
from darner.backends.cpu.conv import channel_lanes, direct, dots, driver, weight_gradient
from darner.backends.cpu.conv import template as conv
from darner.backends.cpu.conv.winograd import plan as winograd
from darner.backends.cpu.model import CpuModel, Cycles
from darner.backends.cpu.runtime.jit import Machine
from darner.lower.lower import lower

CORES = (1, 2, 4, 16, 64)
ZEN = Machine(
    "x86_64-unknown-linux-gnu", "znver4", "", 64, 2, 32 << 10, 1 << 20, 32 << 20, l3_cores=8
)
AVX2 = replace(ZEN, cpu="haswell", vector_bytes=32, l2=256 << 10, l3_cores=None)
MACHINES = {"AVX-512": ZEN, "AVX2": AVX2}


# --------------------------------------------------------------------------- the model


def test_shares_of_the_caches_that_a_machine_tells_of():
    model = CpuModel.of(ZEN)
    assert (model.threads, model.multiplies) == (2, 1)
    assert (model.of_l1(3 / 4), model.of_l2(5 / 8)) == (24 << 10, 640 << 10)
    assert (model.of_last(7 / 8), model.of_own_last(1 / 2)) == (28 << 20, 8 << 20)


def test_caches_that_a_machine_does_not_tell_of_are_assumed():
    model = CpuModel.of(Machine("arm64-apple-darwin", "apple-m1", "", 16, 2))
    assert (model.l1, model.l2, model.last) == (32 << 10, 1 << 20, 32 << 20)


@pytest.mark.parametrize(
    ("cores", "sharing", "l3", "last", "own"),
    [
        (1, 8, 32 << 20, 16 << 20, 16 << 20),  # the rest is for the seven others
        (8, 8, 32 << 20, 32 << 20, 4 << 20),
        (64, 8, 32 << 20, 256 << 20, 4 << 20),
        (60, 60, 260 << 20, 260 << 20, (260 << 20) // 60),
        (64, 64, 32 << 20, 32 << 20, 1 << 20),  # as much as each has alone
    ],
)
def test_the_last_caches_belong_to_the_cores_that_share_them(cores, sharing, l3, last, own):
    model = CpuModel.of(replace(ZEN, cores=cores, l3=l3, l3_cores=sharing))
    assert model.last == last
    assert model.of_own_last(1) == own


@pytest.mark.parametrize("threads", CORES)
def test_the_time_of_pieces_is_that_of_the_thread_that_has_most(threads):
    model = CpuModel(threads=threads, multiplies=2)
    for units in (1, 2, 3, 7, 16, 63, 64, 65, 1000, 5000):
        most = max((t + 1) * units // threads - t * units // threads for t in range(threads))
        assert model.time(units, units) == pytest.approx(most, rel=1 / 32)
        assert model.time(units, units) >= units / threads


@pytest.mark.parametrize("threads", CORES)
@pytest.mark.parametrize(
    ("total", "each", "times"), [(17, 16, 1), (100, 24, 3), (7, 8, 5), (9, 1, 40)]
)
def test_the_largest_share_is_that_of_runs_of_pieces(threads, total, each, times):
    model = CpuModel(threads=threads, multiplies=2)
    sizes = [min(each, total - start) for start in range(0, total, each)]
    units = [size for size in sizes for _ in range(times)]
    ends = [thread * len(units) // threads for thread in range(threads + 1)]
    most = max(sum(units[a:b]) for a, b in pairwise(ends))
    assert model.largest_share(total, each, times) * total * times == pytest.approx(most)


# --------------------------------------------------------------------------- the choice of forms

# Batch, channels, channels of the result, side, kernel, stride, groups.
CONVOLUTIONS = {
    "the first layer": (8, 3, 64, 112, 7, 2, 1),
    "3x3, large images": (8, 64, 64, 56, 3, 1, 1),
    "3x3, small images": (1, 512, 512, 7, 3, 1, 1),
    "3x3, many images": (32, 128, 128, 28, 3, 1, 1),
    "1x1": (8, 256, 64, 56, 1, 1, 1),
    "with a stride": (8, 128, 256, 28, 3, 2, 1),
    "groups": (4, 64, 64, 28, 3, 1, 4),
    "5x5, few channels": (16, 6, 16, 32, 5, 1, 1),
    "one image": (1, 32, 48, 64, 3, 1, 1),
}
LARGE = 1 << 28
"""Multiplications from which on a problem has work for any number of threads."""


@cache
def convolutions(name):
    """A convolution, and both of its gradients."""
    batch, channels, out, side, kernel, stride, groups = CONVOLUTIONS[name]
    g = Graph()
    x, w = (
        g.input("x", (batch, channels, side, side)),
        g.input("w", (out, channels // groups, kernel, kernel)),
    )
    how = {"stride": stride, "padding": kernel // 2, "groups": groups}
    y = g.conv(x, w, **how)
    dy = g.input("dy", y.shape)
    return (
        y,
        g.conv_input_grad(dy, w, sizes=(side, side), **how),
        g.conv_weight_grad(x, dy, kernel=(kernel, kernel), **how),
    )


def multiplications(name):
    batch, channels, out, side, kernel, stride, groups = CONVOLUTIONS[name]
    return batch * channels // groups * out * (side // stride) ** 2 * kernel**2


def layouts(node, machine, packed):
    """All forms that there is code for, Winograd's left out."""
    if node.op.name == "conv_weight_grad":
        found = [weight_gradient.Layout(node, machine), dots.Layout(node, machine)]
        return [layout for layout in found if layout.grid.possible]
    found = [direct.Layout(node, machine), channel_lanes.Layout(node, machine, packed)]
    found = [layout for layout in found if layout.possible]
    return [driver.Layout(node, machine, plain=True), *found]


def chosen(node, machine, packed):
    """The form that is taken where Winograd's is not."""
    if node.op.name == "conv_weight_grad":
        return conv._weights_form(node, machine)
    return conv._form(node, machine, packed)


def units_of(layout):
    """Pieces of work that threads share out."""
    groups = layout.patches.groups
    if isinstance(layout, driver.Layout):
        return layout.cut.units(layout.patches)
    if isinstance(layout, direct.Layout):
        return groups * layout.blocks * layout.cut.parts
    if isinstance(layout, channel_lanes.Layout):
        return groups * layout.cut.blocks.count * layout.cut.parts
    return groups * layout.turns * layout.splits * getattr(layout, "sections", 1)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_the_form_of_a_convolution_is_the_quickest_for_any_number_of_cores(name, machine, packed):
    for node in convolutions(name):
        before = None
        for cores in CORES:
            here = replace(MACHINES[machine], cores=cores)
            offered = layouts(node, here, packed)
            taken = next(
                item for item in offered if type(item) is chosen(node, here, packed).Layout
            )
            assert taken.cycles == min(item.cycles for item in offered)
            # Of cuts that differ by less than this the one with the usual tile is taken.
            assert before is None or taken.cycles <= before / 0.98
            if multiplications(name) >= LARGE:
                assert units_of(taken) >= cores
            before = taken.cycles


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", [name for name in CONVOLUTIONS if name.startswith("3x3")])
def test_winograds_form_is_the_quickest_of_its_kind_for_any_number_of_cores(name, packed):
    for node in convolutions(name):
        before = None
        for cores in CORES:
            here = replace(ZEN, cores=cores)
            form = winograd.winograd_of(node, here, packed)
            offered = winograd.forms_of(node, here, packed)
            if form is None:
                least = min(offered, key=lambda pair: pair[0])
                assert least[0] > winograd.WORTH * winograd._direct_cycles(least[1])
                continue
            cycles = {item: time for time, item in offered}[form]
            assert cycles == min(item for item, _ in offered)
            assert before is None or cycles <= before / 0.98
            before = cycles


SUMS_OF_CONVOLUTIONS = ("splits", "block", "blocks")


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_sums_of_a_weights_gradient_are_cut_by_sizes_alone(name):
    """In either form; which of them is taken may depend on the machine."""
    gradient = convolutions(name)[2]
    for form in (weight_gradient, dots):
        found = [form.Layout(gradient, replace(ZEN, cores=cores)) for cores in CORES]
        assert (
            len({tuple(getattr(item, key) for key in SUMS_OF_CONVOLUTIONS) for item in found}) == 1
        )


PRODUCTS = {
    "square": (1024, 1024, 1024),
    "few rows": (4, 2048, 2048),
    "few columns": (4096, 16, 1024),
    "long sums": (64, 64, 20000),
    "short sums": (4096, 512, 24),
    "rows that do not fit": (8192, 768, 3072),
    "a layer": (128, 2304, 768),
}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_cut_for_any_number_of_cores(name, transpose_b, machine):
    m, n, k = PRODUCTS[name]
    contraction = products.Contraction.dense("f32", m, n, k, transpose_b=transpose_b)
    sums = set()
    for cores in CORES:
        here = replace(MACHINES[machine], cores=cores)
        cut, parts = products.cut(contraction, here), _parts(contraction, here)
        sums.add((cut.block, cut.passes, cut.path, parts))
        pieces = cut.units * (parts.all if parts else 1)
        assert pieces >= min(cores, 16)
        if m * n * k >= LARGE and m > 64:
            assert pieces >= cores
        if can_claim(cut, packed_b=False):
            # Threads that claim panels have some each: nobody waits for a long time for the last.
            assert cut.runs or cut.panels >= 4 * cores
    # How sums are cut into parts and passes depends on no number of threads.
    assert len(sums) == 1


ATTENTIONS = {
    "a prompt": (1, 12, 512, 64, 12, 512, 64),
    "shared keys": (2, 16, 5, 32, 4, 300, 32),
    "many heads, few queries": (8, 64, 4, 64, 8, 2048, 64),
    "decoding": (1, 32, 1, 64, 8, 4096, 64),
}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_is_cut_for_any_number_of_cores(name, machine):
    batch, heads, queries, width, kv_heads, keys, value_width = ATTENTIONS[name]
    g = Graph()
    q = g.input("q", (batch, heads, queries, width))
    k = g.input("k", (batch, kv_heads, keys, width))
    y = g.scaled_dot_attention(q, k, g.input("v", (batch, kv_heads, keys, value_width)))
    cuts = set()
    for cores in CORES:
        here = replace(MACHINES[machine], cores=cores)
        whole = describe(y, here)
        cut = stacked(whole, here)
        cuts.add((whole.block, whole.part))
        units = cut.batch * cut.heads * cut.panels
        # Heads are stacked only where that leaves all threads enough to do.
        assert cut.stack == 1 or units >= max(8, 4 * cores)
    # Sums over keys are cut by sizes alone.
    assert len(cuts) == 1


# --------------------------------------------------------------------------- memory, code


def steps():
    """Graphs with kernels whose scratch memory depends on the number of cores."""
    for name in ("3x3, large images", "3x3, many images", "with a stride", "groups"):
        g = Graph()
        batch, channels, out, side, kernel, stride, groups = CONVOLUTIONS[name]
        x = g.input("x", (batch, channels, side, side))
        w = g.parameter("w", (out, channels // groups, kernel, kernel))
        how = {"stride": stride, "padding": kernel // 2, "groups": groups}
        y = g.conv(x, w, **how)
        dy = g.input("dy", y.shape)
        grad = g.conv_weight_grad(x, dy, kernel=(kernel, kernel), **how)
        g.set_outputs([y, grad])
        yield name, g
    for name, (m, n, k) in PRODUCTS.items():
        g = Graph()
        g.set_outputs([g.input("a", (m, k)) @ g.input("b", (k, n))])
        yield name, g
    g = Graph()
    x = g.input("x", (4, 8, 300, 64))
    g.set_outputs([g.scaled_dot_attention(x, x, x), x.transpose((0, 1, 3, 2)).exp(), x.softmax()])
    yield "attention, transposes, rows", g


STEPS = dict(steps())
OWN, SHARED = 8, 4
"""Megabytes of scratch memory: for each thread, and for all beside as many times the operands."""


@pytest.mark.parametrize("name", STEPS)
def test_scratch_of_all_threads_is_bounded_and_there_is_code_for_any_number_of_cores(name):
    plan = lower(STEPS[name], target="cpu")
    for cores in CORES:
        machine = replace(ZEN, cores=cores)
        functions = kernels.functions_of(plan, machine)
        operands = sum(buffer.nbytes for buffer in plan.buffers)
        for function in functions.all.values():
            needs = function.scratch
            assert needs.own <= OWN << 20
            assert needs.own * cores + needs.shared <= cores * (OWN << 20) + SHARED * operands + (
                16 << 20
            )
        assert "define" in str(kernels.emit_module(plan, functions, machine))


# --------------------------------------------------------------------------- what a model is made of


def test_all_that_the_model_is_made_of_is_in_the_key():
    """It is made of fields of the machine: each that is read, by the model or by what it asks the machine, makes another key."""
    read = set()

    class Watched(Machine):
        __slots__ = ()

        def __getattribute__(self, name):
            read.add(name)
            return super().__getattribute__(name)

    values = {item.name: getattr(ZEN, item.name) for item in fields(ZEN)}
    watched = Watched(**values)
    read.clear()
    made = model._model.__wrapped__(watched)
    assert made == CpuModel.of(ZEN)
    asked = {name for name in read if not name.startswith("__")}
    asked -= {name for name in asked if isinstance(getattr(Machine, name, None), property)}
    assert {"cores", "l1", "l2", "l3", "l3_cores"} <= asked
    assert asked <= values.keys()
    for name in asked:
        value = values[name]
        other = replace(ZEN, **{name: value + 1 if isinstance(value, int) else value + "x"})
        assert other.key() != ZEN.key()


def test_the_model_has_no_state_that_a_machine_has_not():
    """Two machines that are equal have one model; it can be compared, hashed, and not changed."""
    assert CpuModel.of(ZEN) is CpuModel.of(replace(ZEN))
    with pytest.raises(dataclasses.FrozenInstanceError):
        CpuModel.of(ZEN).threads = 3
    assert hash(CpuModel.of(ZEN)) == hash(replace(CpuModel.of(ZEN), cycles=Cycles()))
