"""Matrix products as kernels: ``dot_general`` through the tiles of contractions, with element-wise nodes as epilogues.

Operands are strided views, so every layout is a matter of strides. The axes of an operand that are not summed are merged
into one row (or column) axis, those that are summed into another, and batch axes may have any strides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from ....codegen.elements.elements import Elements, can_emit
from ....codegen.ir.emit import (
    Spacing,
    accumulator_of,
    lane_mask,
    load,
    loop,
    narrow,
    offset,
    store,
    store_strided,
)
from ....codegen.ir.index import Index, IndexMath, Lanes, i64
from ....codegen.ir.types import STORAGE_BYTES, Pointer, Value
from ....graph.errors import InternalError
from ....graph.integers import ceil_div, round_up
from ....graph.node import Node
from ....lower.plan import Spec, may_share
from ....lower.specs import operand_number, sizes
from ..emit.panels import Offer, Panels
from ..emit.template import Code, Packing, Scratch, Template
from ..model import CpuModel
from ..runtime.jit import Machine
from .decoded import Decoder
from .decoded_elements import Decoded, no_address
from .driver import Driver, Operands, Target, Write
from .panel import emit_pack_panel
from .pieces import fair_share
from .plan import ROLLING, Contraction, Cut, cut
from .product import Product, Side, decoded_axis, product_of
from .queued import FEWEST_PANELS, can_claim, can_claim_parts, emit_claimed, scratch_of
from .tile import choose_tile

# --------------------------------------------------------------------------- sums cut into parts
# By sizes, and by what of them fits a cache: never by the number of threads, on which no bit of a result may depend.

MANY_TILES = 64
"""Products of fewer tiles than this cut long sums into parts, so that threads have something to share."""
DOTS_AS_TILES = 4
"""Tiles that a piece of work counts for which is dot products: it takes no packing, and needs no others to share that."""
LEAST_PART = 512
"""Terms that a part has at least."""
MOST_PARTS = 16
FEW_PACKED_FOR = 256
"""Rows up to which packing B takes a good part of the time, if every thread does it."""
LEAST_KEPT = 1 / 8
"""Share of the cache next to a core of a matrix B that is worth keeping there, row by row,"""
ROWS_KEPT = 4
"""and how many times as many rows as A it has then."""
LONGEST_RUN = 1 << 14
"""Bytes of a row of B up to which threads that read it from memory, for a few rows of A, do so by rows: memory is quickest where they read on and on."""
LEAST_RUN = 64
"""Rows of B that one reads at least."""
MOST_RUNS = 4
"""Parts that this makes at most: adding up more costs what it gains where weights are in the cache after all."""


@dataclass(frozen=True)
class Parts:
    """How sums are cut: how much is added up is the same for any number of threads.

    Attributes:
        count: equal parts.
        length: terms of each.
        rest: terms of one more part, 0 where there is none.
    """

    count: int
    length: int
    rest: int

    @property
    def all(self) -> int:
        """Parts, the shorter one included."""
        return self.count + bool(self.rest)


def _parts(contraction: Contraction, machine: Machine, packing: bool = True) -> Parts | None:
    """The parts of long sums that make few elements; None where they stay whole. ``packing`` says that B is not packed before."""
    if contraction.strided_terms:
        return None
    whole, model = cut(contraction, machine), CpuModel.of(machine)
    tiles = contraction.batch * whole.tiles * whole.panels
    if whole.path == "dots":
        tiles = DOTS_AS_TILES * whole.units
    count = min(MOST_PARTS, contraction.k // LEAST_PART, MANY_TILES // max(tiles, 1))
    # Panels that are packed are read at the speed of memory, if there are some for every thread: parts would only ask for more sums.
    enough = not packing and _has_panels(contraction, machine)
    count = 0 if enough else count
    # Threads that share out few rows would each pack all of B: they share out parts of the sums instead, all but the last, shorter one.
    if packing and whole.by_rows and not whole.direct and contraction.m <= FEW_PACKED_FOR:
        wanted = 1 - (-FEWEST_PANELS // (contraction.batch * whole.panels))
        count = max(count, min(wanted, contraction.k // LEAST_PART))
    if whole.path == "rows" and contraction.batch == 1 and not enough:
        count = max(count, _runs(contraction, model))
    # Rows that are too long for the cache go through it a part at a time, if enough of them fit at once.
    size = STORAGE_BYTES[accumulator_of(contraction.dtype)]
    length = model.of_l2(ROLLING) // ((contraction.m + 2 * whole.tile.width) * size)
    too_long = whole.rows < contraction.m or (packing and whole.blocked)
    if too_long and length >= LEAST_PART and contraction.k >= 2 * length:
        count = max(count, min(MOST_PARTS, ceil_div(contraction.k, length)))
    if count < 2:
        half = contraction.k // 2
        kept = packing and whole.by_rows and whole.direct and _keeps_rows(contraction, model)
        return Parts(2, half, contraction.k - 2 * half) if kept else None
    # Whole vectors, which are transposed at once.
    length = contraction.whole_terms(ceil_div(contraction.k, count), whole.tile.lanes)
    count = contraction.k // length
    return Parts(count, length, contraction.k - count * length)


def _has_panels(contraction: Contraction, machine: Machine) -> bool:
    """Whether there are panels of the usual width for every thread."""
    width = choose_tile(machine, contraction.dtype).width
    return contraction.batch * ceil_div(contraction.n, width) >= FEWEST_PANELS


def _keeps_rows(contraction: Contraction, model: CpuModel) -> bool:
    """Whether halves of the sums have threads read their own rows of B, where they would else all read the whole of it.

    Weights are often updated by rows in the same step: lines that another core has read take long to write.
    """
    size = STORAGE_BYTES[contraction.dtype]
    large = contraction.k * contraction.n * size >= model.of_l2(LEAST_KEPT)
    return large and contraction.k >= ROWS_KEPT * contraction.m


def _runs(contraction: Contraction, model: CpuModel) -> int:
    """Parts of the sums of a few rows, so that each thread reads rows of B one after the other, and not its own columns of all of them: 0 where it makes no odds."""
    row = STORAGE_BYTES[contraction.dtype] * contraction.n
    if row > LONGEST_RUN or row * contraction.k < model.l2:
        return 0
    return min(MOST_RUNS, contraction.k // LEAST_RUN)


def _cuts(
    spec: Spec, product: Product, machine: Machine, packed: bool = False
) -> tuple[Parts | None, list[Cut]]:
    """The parts of a product's sums, and how each kind of part is cut; one where they are whole."""
    contraction = product.contraction
    parts = None if packed else _parts(contraction, machine)
    if parts is None:
        streams = len(_read_leaves(spec, product)) if contraction.c_strides[2] == 1 else 0
        return None, [cut(contraction, machine, packed, streams)]
    # Parts lie row by row, whatever the order of the result.
    steps = (contraction.m * contraction.n, contraction.n, 1)
    dense = replace(contraction, c_strides=steps, c_panels=None)
    some = [dense.part(contraction.batch * parts.count, parts.length)]
    if parts.rest:
        some.append(dense.part(contraction.batch, parts.rest))
    return parts, [cut(part, machine) for part in some]


def order_of_sums(spec: Spec, machine: Machine, packed: bool) -> Hashable:
    """What the order of a product's sums depends on: products of other rows of A, where it is the same, make the same bits."""
    parts, cuts = _cuts(spec, _known(spec), machine, packed)
    return parts, *((some.path == "dots", some.block) for some in cuts)


# --------------------------------------------------------------------------- the template


def _fits(spec: Spec) -> bool:
    return spec.kind == "contract" and product_of(spec) is not None and can_emit(spec.body)


def _scratch(spec: Spec, machine: Machine) -> Scratch:
    product = _known(spec)
    contraction = product.contraction
    if contraction.empty:
        return Scratch()
    own = shared = 0
    # Enough for operands as they are, and for those that may lie in panels.
    offer = _panels_of(spec, machine)
    for one in (product, _laid(spec, product, {**offer.alone, **offer.together})[0]):
        straight = _goes_straight(spec, one)
        # What is packed before stays whole, whatever is done to what is not.
        _, packed = _cuts(spec, one, machine, True)
        needs = [scratch_of(packed[0], True, straight)]
        parts, cuts = _cuts(spec, one, machine)
        if parts is None:
            needs.append(scratch_of(cuts[0], False, straight))
        else:
            sums = contraction.batch * contraction.m * contraction.n
            sums *= parts.all * STORAGE_BYTES[_accumulator(product)]
            needs += [(some.scratch_bytes, sums) for some in cuts]
        own, shared = (max(sizes) for sizes in zip((own, shared), *needs, strict=True))
    return Scratch(own, shared)


def _known(spec: Spec) -> Product:
    product = product_of(spec)
    if product is None:
        raise InternalError("a kernel that is no product of matrices came to the template of those")
    return product


def _accumulator(product: Product) -> str:
    return accumulator_of(product.contraction.dtype)


def _emit(code: Code) -> None:
    product, packed = _laid(code.spec, _known(code.spec), code.panels)
    code = replace(code, packed=code.packed or packed)
    if product.contraction.empty:
        return
    parts, cuts = _cuts(code.spec, product, code.machine, code.packed)
    if parts is None:
        leaves = _read_leaves(code.spec, product)
        target = Target(
            _writer(code, product),
            _straight(code, product),
            _reads(code, product),
            leaves[0].dtype.itemsize if leaves else 0,
            _written(code, product),
            code.body.outputs[0].dtype.itemsize,
        )
        _emit_cut(code, product, cuts[0], 0, target)
        return
    for number, plan in enumerate(cuts):
        first = number * parts.count
        _emit_cut(code, product, plan, first * parts.length, _part_target(code, product, first))
    code.barrier()
    _emit_sum_of_parts(code, product, parts)


def _emit_cut(code: Code, product: Product, plan: Cut, skipped: int, target: Target) -> None:
    """The code of one contraction, from term ``skipped`` on; batches beyond the product's are parts of its sums."""
    builder, indices, batches = code.builder, code.indices, product.contraction.batch
    dtype = product.contraction.dtype
    # Whole panels of terms lie behind each other.
    panels = product.contraction.b_panels
    step = product.b.summed if panels is None else panels.rows

    def offsets(batch: Value) -> tuple[Value, Value]:
        part: Index = 0
        within: Index = batch
        if plan.contraction.batch != batches:
            part, within = indices.div(batch, batches), indices.mod(batch, batches)
        index = indices.split(within, product.shape)
        length = plan.contraction.k
        a: Index = indices.mul(part, product.a.summed * length)
        b: Index = indices.mul(part, step * length)
        for number, axis in zip(index, product.loops, strict=True):
            a = indices.add(a, indices.mul(number, axis.a))
            b = indices.add(b, indices.mul(number, axis.b))
        return i64(a), i64(b)

    a, b = (
        offset(builder, _address(code, side), dtype, side.offset + skipped * distance)
        for side, distance in ((product.a, product.a.summed), (product.b, step))
    )
    if product.b.decoded:
        plan = replace(plan, decoder=Decoder(Decoded(code, product.b.leaf, decoded_axis(product))))
    if code.packed:
        b = code.operand_of(product.b.leaf)
    operands = Operands(a, b, offsets, code.packed)
    driver = Driver(builder, plan, operands, code.own, target)
    whole = plan.contraction == product.contraction
    # Claims are counted once in a kernel: a part that is shorter than the others is shared out evenly.
    if skipped == 0 and (can_claim(plan, code.packed) if whole else can_claim_parts(plan)):
        emit_claimed(driver, code)
    else:
        driver.emit(*fair_share(builder, code.share, plan))


def _address(code: Code, side: Side) -> Pointer:
    """Where an operand lies."""
    return no_address(code.builder) if side.decoded else code.operand_of(side.leaf)


def _offset_of(
    code: Code, product: Product, batch: Index, row: Index = 0, column: Index = 0
) -> Index:
    """The place of an element of the product in row-major order, or in panels."""
    indices = code.indices
    _, down, across = product.contraction.c_strides
    panels = product.contraction.c_panels
    if panels is not None:
        return _offset_in_panels(indices, panels, row, column)
    total = indices.add(indices.mul(row, down), indices.mul(column, across))
    for number, axis in zip(indices.split(batch, product.shape), product.loops, strict=True):
        total = indices.add(total, indices.mul(number, axis.c))
    return total


def _offset_in_panels(indices: IndexMath, panels: Panels, row: Index, column: Index) -> Index:
    """The place of an element of a matrix that lies in panels."""
    width = panels.width
    number = indices.div(column, width)
    within = indices.sub(column, indices.mul(number, width))
    before = indices.mul(number, width * panels.rows)
    down: Index = width
    if panels.last:
        b, last = indices.builder, panels.columns // width
        is_last = b.icmp_signed("==", i64(number), i64(last))
        down = b.select(is_last, i64(panels.last), i64(width))
    return indices.add(indices.add(before, indices.mul(row, down)), within)


def _part_target(code: Code, product: Product, first: int) -> Target:
    """Where parts of sums go, from part ``first`` on."""
    builder, indices, contraction = code.builder, code.indices, product.contraction
    dtype = _accumulator(product)

    def straight(batch: Index) -> Pointer:
        position = indices.mul(
            indices.add(batch, first * contraction.batch), contraction.m * contraction.n
        )
        return offset(builder, code.shared, dtype, i64(position))

    def write(values: Value, batch: Index, row: Index, column: Index, mask: Value | None) -> None:
        within = indices.add(indices.mul(row, contraction.n), column)
        at = offset(builder, straight(batch), dtype, i64(within))
        store(builder, values, at, dtype, mask)

    return Target(write, straight)


def _emit_sum_of_parts(code: Code, product: Product, parts: Parts) -> None:
    """Add up the parts, in their order, and take the sums to the results."""
    builder, indices, contraction = code.builder, code.indices, product.contraction
    dtype = _accumulator(product)
    lanes = choose_tile(code.machine, contraction.dtype).lanes
    vectors = ceil_div(contraction.n, lanes)
    write = _writer(code, product)
    size = contraction.batch * contraction.m * contraction.n

    def emit_unit(number: Value) -> None:
        batch, row, vector = indices.split(number, (contraction.batch, contraction.m, vectors))
        column = indices.mul(vector, lanes)
        mask = None
        if contraction.n % lanes:
            mask = lane_mask(builder, builder.sub(i64(contraction.n), i64(column)), lanes)
        line = indices.add(indices.mul(batch, contraction.m), row)
        position = i64(indices.add(indices.mul(line, contraction.n), column))

        def add(part: Value, totals: Sequence[Value]) -> list[Value]:
            at = offset(builder, code.shared, dtype, builder.mul(part, i64(size)), position)
            return [builder.fadd(totals[0], load(builder, at, dtype, lanes, mask))]

        first = load(builder, offset(builder, code.shared, dtype, position), dtype, lanes, mask)
        (total,) = loop(builder, i64(1), i64(parts.all), 1, add, [first])
        write(total, batch, row, column, mask)

    code.each(contraction.batch * contraction.m * vectors, emit_unit)


# --------------------------------------------------------------------------- results


def _is_plain(spec: Spec, product: Product) -> bool:
    """Whether the sums are all there is to write."""
    return [output.id for output in spec.body.outputs] == [product.node.id]


def _goes_straight(spec: Spec, product: Product) -> bool:
    """Whether sums are written as they are, and side by side."""
    contraction = product.contraction
    if not _is_plain(spec, product) or product.node.dtype.name != _accumulator(product):
        return False
    return contraction.c_strides[2] == 1 and contraction.c_panels is None


def _straight(code: Code, product: Product) -> Callable[[Value], Pointer] | None:
    """The place of a batch of the result, where sums are written as they are."""
    builder, dtype = code.builder, product.node.dtype.name
    if not _goes_straight(code.spec, product):
        return None
    return lambda batch: offset(
        builder, code.results[0], dtype, i64(_offset_of(code, product, batch))
    )


def _read_leaves(spec: Spec, product: Product) -> list[Node]:
    """The operands of which an element is read where the same element of the product is written."""
    sides = (product.a.leaf.id, product.b.leaf.id)
    leaves = [
        leaf
        for leaf in spec.inputs
        if leaf.shape == product.node.shape
        and leaf.id not in sides
        and leaf.dtype.name in STORAGE_BYTES
    ]
    # Those of one size are asked for together: the largest.
    size = max((leaf.dtype.itemsize for leaf in leaves), default=0)
    return [leaf for leaf in leaves if leaf.dtype.itemsize == size]


def _reads(code: Code, product: Product) -> Callable[[Value, Value, Value], list[Pointer]] | None:
    """Where the elements lie that are read where a tile is written: moments, residuals."""
    leaves = _read_leaves(code.spec, product)
    if not leaves or product.contraction.c_strides[2] != 1:
        return None

    def read_addresses(batch: Value, row: Value, column: Value) -> list[Pointer]:
        position = i64(_offset_of(code, product, batch, row, column))
        return [
            offset(code.builder, code.operand_of(leaf), leaf.dtype.name, position)
            for leaf in leaves
        ]

    return read_addresses


def _written(code: Code, product: Product) -> Callable[[Value, Value, Value], Pointer] | None:
    """Where an element of the first result goes, if its rows lie as the product's do."""
    dtype = code.body.outputs[0].dtype.name
    if product.contraction.c_strides[2] != 1 or dtype not in STORAGE_BYTES:
        return None
    return lambda batch, row, column: offset(
        code.builder, code.results[0], dtype, i64(_offset_of(code, product, batch, row, column))
    )


def _writer(code: Code, product: Product) -> Write:
    """What takes a vector of sums to the results, through the element-wise nodes after the product."""
    builder, body, dtype = code.builder, code.body, product.node.dtype.name
    across = product.contraction.c_strides[2]

    def write(values: Value, batch: Index, row: Index, column: Index, mask: Value | None) -> None:
        lanes = values.type.count
        address = _offset_of(code, product, batch, row, column)
        if _is_plain(code.spec, product):
            at = offset(builder, code.results[0], dtype, i64(address))
            store_strided(builder, values, at, dtype, Spacing(across), mask)
            return
        elements = Elements.of(code, mask)
        elements.give(product.node, narrow(builder, values, dtype))
        if product.contraction.c_panels is not None:
            for leaf in _read_leaves(code.spec, product):
                at = offset(builder, code.operand_of(leaf), dtype, i64(address))
                elements.give(leaf, load(builder, at, dtype, lanes, mask))
        columns = Lanes(column, lanes, 1, lanes)
        index = _index(elements.indices, product, batch, row, columns)
        # All are computed before any is written: a result may lie where an operand does.
        found = [elements.at(output, index) for output in body.outputs]
        for output, value, pointer in zip(body.outputs, found, code.results, strict=True):
            elements.registers.store(
                value, pointer, Lanes(address, lanes, across), output.dtype, mask
            )

    return write


def _index(
    indices: IndexMath, product: Product, batch: Index, row: Index, column: Index
) -> list[Index]:
    """The index of an element of the product's node."""
    around = indices.split(batch, product.shape)
    count = len(product.loops) - len(product.a.outer) - len(product.b.outer)
    turn = count + len(product.a.outer)
    rows = [*around[count:turn], *indices.split(row, product.a.inner)]
    columns = [*around[turn:], *indices.split(column, product.b.inner)]
    both = (columns, rows) if product.transposed else (rows, columns)
    return [*around[:count], *both[0], *both[1]]


# --------------------------------------------------------------------------- operands and results in panels


def _panels_of(spec: Spec, machine: Machine) -> Offer:
    """B, if it may lie in panels, or its transpose; and all that lies as C does, if that may.

    Sums of 16-bit floats are made of panels of wider ones: those are packed as they are used.
    """
    product = _known(spec)
    contraction, b = product.contraction, product.b
    dtype = contraction.dtype
    if contraction.empty or contraction.batch != 1 or dtype != accumulator_of(dtype):
        return Offer()
    if contraction.decoded:
        return Offer()
    alone: dict[int, Panels] = {}
    together: dict[int, Panels] = {}
    if _can_pack_b(spec, product) and contraction.m >= FEWEST_ROWS and not b.offset:
        within = contraction.b_strides[1:]
        transposed = within == (1, contraction.k)
        rows, columns = (
            (contraction.n, contraction.k) if transposed else (contraction.k, contraction.n)
        )
        whole = math.prod(sizes(b.leaf)) == rows * columns and within in (
            (columns, 1),
            (1, columns),
        )
        # What was packed before is not cut into parts of sums, which few tiles want.
        if whole and (transposed or _parts(contraction, machine, False) is None):
            alone[operand_number(b.leaf)] = _panels_for(machine, dtype, rows, columns)
    beside = _read_leaves(spec, product)
    alike = all(may_share(spec, operand_number(leaf), 0) for leaf in beside)
    others = {operand_number(leaf) for leaf in spec.inputs if leaf.shape == product.node.shape}
    others -= {operand_number(side.leaf) for side in (product.a, product.b)}
    types = {node.dtype.name for node in (*beside, *spec.body.outputs)}
    flat = contraction.c_strides[1:] == (contraction.n, 1) and not product.loops
    if flat and alike and types == {dtype} and others == {operand_number(leaf) for leaf in beside}:
        panels = _panels_for(machine, dtype, contraction.m, contraction.n)
        results = range(len(spec.inputs), len(spec.inputs) + len(spec.body.outputs))
        together = dict.fromkeys([*sorted(others), *results], panels)
    return Offer(alone, together)


def _panels_for(machine: Machine, dtype: str, rows: int, columns: int) -> Panels:
    """The panels of a matrix that the usual tile reads."""
    tile = choose_tile(machine, dtype)
    last = round_up(columns % tile.width, tile.lanes)
    return Panels(rows, columns, tile.width, last, False)


def _laid(spec: Spec, product: Product, panels: Mapping[int, Panels]) -> tuple[Product, bool]:
    """A product with what lies in panels, and whether B needs no packing."""
    if product.b.decoded:
        return product, False
    contraction, b = product.contraction, panels.get(operand_number(product.b.leaf))
    c = panels.get(len(spec.inputs))
    whole = b is not None and contraction.b_strides[2] == 1
    if b is not None and not whole:
        contraction = replace(contraction, b_strides=(0, 1, b.width), b_panels=b)
    if c is not None:
        steps = (contraction.m * contraction.n, c.width, 1)
        contraction = replace(contraction, c_strides=steps, c_panels=c)
    return replace(product, contraction=contraction), whole


# --------------------------------------------------------------------------- packed once

FEWEST_ROWS = 8
"""From so many rows on, panels are worth keeping beside what they were made of, and weights that are trained are worth keeping in panels."""
LEAST_PACKED = 1.0
"""Share of the cache next to a core from which on a B is packed for fewer rows than that: it comes from memory."""


def _can_pack_b(spec: Spec, product: Product) -> bool:
    """Whether B is one matrix for the whole product and nothing else reads it."""
    contraction, b = product.contraction, product.b
    repeated = any(axis.b for axis in product.loops)
    if contraction.empty or repeated or contraction.strided_terms or contraction.decoded:
        return False
    uses = [node for node in spec.body.nodes if b.leaf.id in node.inputs]
    return len(uses) == 1 and product.a.leaf.id != b.leaf.id


def _packing(spec: Spec, machine: Machine) -> Packing | None:
    """The panels of B, where it is one matrix for the whole product and nothing else reads it."""
    product = _known(spec)
    contraction, b = product.contraction, product.b
    if not _can_pack_b(spec, product) or _parts(contraction, machine, False):
        return None
    few = contraction.m < FEWEST_ROWS
    # A few rows read panels faster where these come from memory, and each thread has some.
    near = contraction.k * contraction.n * STORAGE_BYTES[contraction.dtype] < CpuModel.of(
        machine
    ).of_l2(LEAST_PACKED)
    repeated = few and (near or not _has_panels(contraction, machine))
    if repeated and (contraction.m == 1 or contraction.b_strides[2] == 1):
        return None  # a row is made of dot products, and columns that lie side by side are read as they are
    one = replace(contraction, batch=1)
    plan = cut(one, machine, True)
    order = (contraction.dtype, contraction.k, contraction.n, one.b_strides, b.offset)

    def emit(code: Code) -> None:
        source = offset(code.builder, code.operands[0], contraction.dtype, b.offset)

        def panel(number: Value) -> None:
            width = plan.tile.width * contraction.k
            at = code.builder.mul(number, i64(width))
            target = offset(code.builder, code.results[0], plan.panel, at)
            emit_pack_panel(code.builder, plan, source, number, target)

        code.each(plan.panels, panel)

    nbytes = plan.packed_elements * STORAGE_BYTES[plan.panel]
    key = f"panels of {plan.tile.width}: {order}"
    panels = _panels(plan, b.leaf, b.offset)
    return Packing(operand_number(b.leaf), nbytes, key, emit, panels, few, repeated)


def _panels(plan: Cut, leaf: Node, first: int) -> Panels | None:
    """How B is read back from its panels, where they hold all of the operand as it is."""
    one = plan.contraction
    dense = {(one.n, 1): False, (1, one.k): True}
    transposed = dense.get((one.b_strides[1], one.b_strides[2]))
    whole = not first and math.prod(sizes(leaf)) == one.k * one.n
    if transposed is None or not whole or not leaf.dtype.name == one.dtype == plan.panel:
        return None
    return Panels(one.k, one.n, plan.tile.width, plan.last.width, transposed)


CONTRACT = Template("contract", _fits, _emit, _scratch, _packing, _panels_of)
