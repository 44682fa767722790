"""Kernels that put elements in order: ``sort``, ``argsort`` and ``top_k``.

Rows are shared among the threads. Where there are few long rows, each is divided into parts that do not depend on the number of threads; the
parts are sorted in parallel and merged. Where only values of 32 bits are needed, they are sorted without the indices of their elements.
``top_k`` skips elements that are no better than the worst of the best so far.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from ....codegen.elements.elements import Elements
from ....codegen.ir import sort_keys
from ....codegen.ir.emit import loop
from ....codegen.ir.index import Index, Lanes, i64
from ....codegen.ir.lanes import Lane
from ....codegen.ir.registers import Registers
from ....codegen.ir.types import Pointer, Type, Value
from ....codegen.problems.nodes import main_node
from ....graph import dtypes
from ....graph.dtypes import u32
from ....graph.integers import ceil_div
from ....graph.node import Node
from ....lower.plan import Spec
from ....lower.specs import sizes
from ..emit.template import Code, Scratch, Template
from ..emit.vectors import clear_bytes, copy_bytes, each, moved, same_pointer
from ..runtime.jit import Machine
from . import memory as sorters
from . import networks

PARTS = 16
"""Into how many parts a long row is divided, at the most."""

LONG = 8192
"""A row of so many elements is worth dividing, into a few parts."""

FEW = 4
"""Fewer rows than this cannot keep all threads busy."""

INSERTED = 32
"""Up to so many best are kept in order one by one; of more, a batch is sorted with them."""

SHORT, MANY = 512, 20
"""Of a row that is no longer than this, more than so many are found sooner by sorting all of it."""

BATCH = 256
"""How many others there is room for beside the best, at least."""

MOST_BY_NETWORK = 1 << 16
"""The most items with their numbers that a network sorts faster than going by their bytes."""

NAMES = ("sort", "argsort", "top_k")


def _main(spec: Spec) -> Node | None:
    """The node that sorts, if that is what a body does."""
    node = main_node(spec)
    return node if node.op.name in NAMES and _kept(node) > 0 else None


def _fits(spec: Spec) -> bool:
    return main_node(spec).op.name in NAMES


class _Row:
    """A row to be sorted, and how its elements are read and its results written."""

    def __init__(self, code: Code, node: Node) -> None:
        self.code = code
        self.x = node.operands[0]
        self.sizes = sizes(self.x)
        self.axis = int(node.attrs["axis"])
        self.length = self.sizes[self.axis]
        self.outer = [size for k, size in enumerate(self.sizes) if k != self.axis]
        self.count = _kept(node)
        self.plain = _is_plain(node, code.body.outputs)
        self.bits = 32 if self.plain else sort_keys.item_bits(self.x.dtype)
        self.lanes = code.machine.vector_bytes * 8 // self.bits
        self.by_vectors = self.x.dtype.bits == 32 and self.x.dtype.kind in ("float", "int")
        self.descending = bool(node.attrs.get("descending", node.op.name == "top_k"))
        self.results = [
            (_is_values(output), output.dtype, pointer)
            for output, pointer in zip(code.body.outputs, code.results, strict=True)
        ]

    def index(self, row: Index, position: Index) -> list[Index]:
        """The index of an element of a row."""
        outer = self.code.indices.split(row, self.outer) if self.outer else []
        return [*outer[: self.axis], position, *outer[self.axis :]]

    def value(self, row: Index, position: Index) -> Value:
        """An element of a row."""
        code = self.code
        return Elements.of(code).at(self.x, self.index(row, position))

    def item(self, row: Index, address: Value) -> Value:
        """An element as what is sorted."""
        b = self.code.builder
        key = sort_keys.key_of(b, self.value(row, address), self.x.dtype, self.descending)
        return sort_keys.item(b, key, address, self.bits)

    def fill(self, row: Index, data: Pointer, first: Index, last: Index) -> None:
        """Write what is sorted of a part of a row to ``data``."""
        code, b = self.code, self.code.builder
        indices = code.indices
        if not self.by_vectors:

            def write_item(i: Value) -> None:
                sorters.write(b, self.item(row, i), data, indices.sub(i, first), self.bits)

            each(b, first, last, write_item)
            return
        e = Elements.of(code)

        def write_lanes(lanes: Lanes, _: Sequence[Value]) -> Sequence[Value]:
            at = Lanes(indices.sub(lanes.start, first), self.lanes)
            kind = dtypes.u32 if self.plain else dtypes.i64
            e.registers.store(self.keys(e, row, lanes).value, data, at, kind, e.mask)
            return []

        e.blocks(first, last, self.lanes, write_lanes, aligned=False)

    def keys(self, e: Elements, row: Index, lanes: Lanes) -> Lane:
        """Elements of 32 bits as what is sorted."""
        b = self.code.builder
        value = Lane(b, e.indices.spread(e.at(self.x, self.index(row, lanes)), lanes.count))
        if self.plain:
            return sort_keys.plain_key(value, self.x.dtype, self.descending)
        # With 0 added, both zeros are one, as they are where numbers decide among equals.
        value = value + 0.0 if self.x.dtype.is_float else value
        key = sort_keys.plain_key(value, self.x.dtype, self.descending)
        return sort_keys.items(key, Lane(b, e.indices.vector(lanes, lanes.count)))

    def sort(self, data: Pointer, other: Pointer, count: Index, most: int) -> Pointer:
        """Put ``count`` items in order, ``most`` at the most, in one of two places that have ``_room`` for them; which, is returned."""
        code, b = self.code, self.code.builder
        if not _by_network(self.bits, most):
            b.call(self._by_parts, [data, other, i64(count)])
            return data
        block = networks.block_size(self.bits, self.lanes, most)
        indices, nbytes = code.indices, self.bits // 8
        blocks = indices.div(indices.add(count, block - 1), block)
        whole = indices.mul(blocks, block)
        end = moved(b, data, indices.mul(count, nbytes))
        clear_bytes(b, end, indices.mul(indices.sub(whole, count), nbytes), 255)
        function = networks.sort_function(code.module, self.bits, self.lanes, most)
        return b.call(function, [data, other, i64(whole)])

    def write(self, row: Index, data: Pointer, first: Index, last: Index) -> None:
        """The results of a row from its sorted items."""
        code, b = self.code, self.code.builder
        shape = [self.count if k == self.axis else n for k, n in enumerate(self.sizes)]
        if self.plain:
            e = Elements.of(code)

            def write_lanes(lanes: Lanes, _: Sequence[Value]) -> Sequence[Value]:
                key = e.registers.load(data, Lanes(lanes.start, self.lanes), u32, e.mask)
                value = sort_keys.plain_value(Lane(b, key), self.x.dtype, self.descending).value
                offset = code.indices.offset(self.index(row, lanes), shape)
                for _values, dtype, pointer in self.results:
                    e.registers.store(value, pointer, offset, dtype, e.mask)
                return []

            e.blocks(first, last, self.lanes, write_lanes, aligned=False)
            return

        def write_item(i: Value) -> None:
            number = sort_keys.number_of(b, sorters.read(b, data, i, self.bits))
            offset = code.indices.offset(self.index(row, i), shape)
            for is_values, dtype, pointer in self.results:
                found = self.value(row, number) if is_values else b.trunc(number, _word())
                Registers(b).store(found, pointer, offset, dtype)

        each(b, first, last, write_item)

    def restore(self, row: Index) -> None:
        """Give zeros their signs and NaN their bits again, in the order they have in the row; few rows have any."""
        if not self.plain or not self.x.dtype.is_float:
            return
        code, b = self.code, self.code.builder
        e = Elements.of(code)
        nothing = Lane(b, e.registers.constant(0, u32, self.lanes))

        def look(lanes: Lanes, seen: list[Value]) -> Sequence[Value]:
            value = e.indices.spread(e.at(self.x, self.index(row, lanes)), self.lanes)
            raw = Lane(b, value).as_integer()
            special = raw.equals(-(1 << 31)) | ((raw & 0x7FFFFFFF) > (0xFF << 23))
            if e.mask is not None:
                special = Lane(b, b.and_(special.value, e.mask))
            return [(Lane(b, seen[0]) | special.choose(nothing.constant(1), nothing)).value]

        (seen,) = e.blocks(0, self.length, self.lanes, look, [nothing.value])
        with b.if_then(Lane(b, seen).differs(0).any().value, likely=False):
            self._put_back(row)

    def _put_back(self, row: Index) -> None:
        code, b = self.code, self.code.builder
        wide = i64(0).type

        def kinds(i: Value) -> tuple[Lane, Lane, Lane]:
            raw = Lane(b, self.value(row, i)).as_integer()
            size = raw & 0x7FFFFFFF
            return raw, size.equals(0), size > (0xFF << 23)

        def count(i: Value, held: Sequence[Value]) -> Sequence[Value]:
            raw, is_zero, is_nan = kinds(i)
            first = is_nan | (raw > 0) if self.descending else (raw < 0) & ~is_nan
            before = [first & ~is_zero, is_nan & is_zero if self.descending else ~is_nan]
            return [
                b.add(total, b.zext(mask.value, wide))
                for total, mask in zip(held, before, strict=True)
            ]

        start = loop(b, i64(0), i64(self.length), 1, count, [i64(0)] * 2)
        shape = [self.count if k == self.axis else n for k, n in enumerate(self.sizes)]

        def put(i: Value, held: Sequence[Value]) -> Sequence[Value]:
            following = []
            for at, mask in zip(held, kinds(i)[1:], strict=True):
                with b.if_then(mask.value):
                    offset = code.indices.offset(self.index(row, at), shape)
                    for _, dtype, pointer in self.results:
                        Registers(b).store(self.value(row, i), pointer, offset, dtype)
                following.append(b.add(at, b.zext(mask.value, wide)))
            return following

        loop(b, i64(0), i64(self.length), 1, put, start)

    @property
    def _by_parts(self) -> Value:
        """The function that sorts items byte by byte of their keys."""
        bytes_ = sort_keys.key_bytes(self.x.dtype)
        return sorters.sort_function(self.code.module, self.bits, bytes_)


def _is_plain(node: Node, outputs: Sequence[Node]) -> bool:
    """Whether values of 32 bits are all that is asked for."""
    kind = node.operands[0].dtype
    values = node.op.name == "sort" and all(_is_values(output) for output in outputs)
    return values and kind.bits == 32 and kind.kind in ("float", "int")


def _by_network(bits: int, most: int) -> bool:
    return bits == 32 or (bits == 64 and most <= MOST_BY_NETWORK)


def _room(bits: int, machine: Machine, most: int) -> int:
    """Bytes of one of the two places that items are sorted in."""
    lanes = machine.vector_bytes * 8 // bits
    count = networks.rounded(bits, lanes, most) if _by_network(bits, most) else most
    return count * bits // 8


def _word() -> Type:
    from llvmlite import ir

    return ir.IntType(32)


def _is_values(output: Node) -> bool:
    return output.op.name == "sort" or (
        output.op.name == "project" and int(output.attrs["index"]) == 0
    )


def _kept(node: Node) -> int:
    """How many elements of a row are wanted."""
    if node.op.name == "top_k":
        return int(node.attrs["k"])
    return sizes(node.operands[0])[int(node.attrs["axis"])]


def _ways(node: Node) -> tuple[bool, bool]:
    """Whether elements are selected rather than all sorted, and whether rows are divided."""
    whole = sizes(node.operands[0])
    length = whole[int(node.attrs["axis"])]
    rows = prod(size for k, size in enumerate(whole) if k != int(node.attrs["axis"]))
    few = rows < FEW
    # To select takes one look at most elements: it is not worth dividing as soon.
    divided = few and length >= 8 * LONG
    least = length // PARTS if divided else length
    sorts = length <= SHORT and _kept(node) > MANY
    if node.op.name == "top_k" and _kept(node) <= least // 4 and not sorts:
        return True, divided
    return False, few and length >= LONG


def _candidates(count: int) -> int:
    """Room for the best, and for what is sorted with them."""
    return count if count <= INSERTED else count + max(count, BATCH)


STATE = 64
"""Bytes before the candidates: how many there are, and the last of the best so far."""


def _scratch(spec: Spec, machine: Machine) -> Scratch:
    node = _main(spec)
    if node is None:
        return Scratch()
    selects, divided = _ways(node)
    x = node.operands[0]
    bits = 32 if _is_plain(node, spec.body.outputs) else sort_keys.item_bits(x.dtype)
    length = sizes(x)[int(node.attrs["axis"])]
    if selects:
        own = STATE + 2 * _room(bits, machine, _candidates(_kept(node)))
        return Scratch(own, 2 * _room(bits, machine, PARTS * _kept(node)) if divided else 0)
    if not divided:
        return Scratch(2 * _room(bits, machine, length))
    parts, part = _parts(length, machine.vector_bytes * 8 // bits)
    return Scratch(2 * _room(bits, machine, part), 2 * parts * part * bits // 8)


def _emit(code: Code) -> None:
    node = _main(code.spec)
    if node is None or not prod(sizes(node.operands[0])):
        return
    selects, divided = _ways(node)
    row = _Row(code, node)
    rows = prod(row.outer)
    ways: dict[tuple[bool, bool], Callable[[_Row, Value], None]] = {
        (False, False): _sorted_row,
        (False, True): _divided_row,
        (True, False): _selected_row,
        (True, True): _divided_selection,
    }
    way = ways[selects, divided]
    if divided:
        each(code.builder, 0, rows, lambda number: way(row, number))
    else:
        code.each(rows, lambda number: way(row, number))


# --------------------------------------------------------------------------- all in order


def _sorted_row(row: _Row, number: Value) -> None:
    code, data = row.code, row.code.own
    other = moved(code.builder, data, _room(row.bits, code.machine, row.length))
    row.fill(number, data, 0, row.length)
    found = row.sort(data, other, row.length, row.length)
    row.write(number, found, 0, row.count)
    row.restore(number)


def _parts(length: int, lanes: int) -> tuple[int, int]:
    """How many parts a row is sorted in, a power of two, and their length, whole vectors; the last are perhaps empty.

    >>> _parts(8221, 16), _parts(262144, 16)
    ((4, 2064), (16, 16384))
    """
    parts = min(PARTS, 1 << (4 * length // LONG).bit_length() - 1)
    return parts, ceil_div(length, parts * lanes) * lanes


def _divided_row(row: _Row, number: Value) -> None:
    """Parts of equal length, filled up with what comes last, are sorted and merged."""
    code, b, bits = row.code, row.code.builder, row.bits
    parts, part_size = _parts(row.length, row.lanes)
    data = code.shared
    other = moved(b, data, parts * part_size * bits // 8)

    def emit_part(part: Value) -> None:
        first = b.mul(part, i64(part_size))
        last = code.indices.clamp(b.add(first, i64(part_size)), 0, row.length)
        begin = code.indices.clamp(first, 0, row.length)
        room = moved(b, code.own, _room(bits, code.machine, part_size))
        row.fill(number, code.own, begin, last)
        target = sorters.item_address(b, data, first, bits)
        count = b.sub(i64(last), i64(begin))
        found = row.sort(code.own, room, count, part_size)
        copy_bytes(b, target, found, b.mul(count, i64(bits // 8)))
        end = moved(b, target, b.mul(count, i64(bits // 8)))
        clear_bytes(b, end, b.mul(b.sub(i64(part_size), count), i64(bits // 8)), 255)

    code.each(parts, emit_part)
    code.barrier()
    source, target, width = data, other, part_size
    while width < parts * part_size:
        _merge_runs(row, source, target, width, parts * part_size // (2 * width))
        code.barrier()
        source, target, width = target, source, 2 * width
    first, last = code.share(row.count)
    row.write(number, source, first, last)
    code.barrier()
    if row.plain:
        with code.alone():
            row.restore(number)


def _merge_runs(row: _Row, source: Pointer, target: Pointer, width: int, pairs: int) -> None:
    """Merge runs two by two, each pair by a thread, and the only pair by two, from both ends."""
    code, b, bits = row.code, row.code.builder, row.bits

    def merge(pair: Value, function: Value) -> None:
        first = b.mul(pair, i64(2 * width))
        left = sorters.item_address(b, source, first, bits)
        right = sorters.item_address(b, left, width, bits)
        to = sorters.item_address(b, target, first, bits)
        b.call(function, [left, i64(width), right, i64(width), to])

    if bits > 64:
        code.each(pairs, lambda pair: merge(pair, sorters.merge_function(code.module, bits)))
        return
    if pairs > 1:
        whole = networks.merge_function(code.module, bits, row.lanes)
        code.each(pairs, lambda pair: merge(pair, whole))
        return
    ends = [networks.merge_function(code.module, bits, row.lanes, [end]) for end in (1, -1)]

    def emit_end(end: Value) -> None:
        with b.if_else(b.icmp_signed("==", end, i64(0))) as branches:
            for branch, function in zip(branches, ends, strict=True):
                with branch:
                    merge(i64(0), function)

    code.each(2, emit_end)


# --------------------------------------------------------------------------- the first few


def _select(row: _Row, number: Value, first: Index, last: Index) -> Value:
    """The smallest items of part of a row, in order; returned is where they lie, in this thread's memory."""
    from llvmlite import ir

    code, b = row.code, row.code.builder
    best = _Best(row)
    if not row.by_vectors:
        each(b, first, last, lambda i: best.consider(i, b.add(i, i64(1)), number))
        return best.found()
    lanes = code.width
    e = Elements.of(code)

    def consider_lanes(place: Lanes, _: object) -> Sequence[Value]:
        # Few are among the best: a vector is looked at closer only if one of its lanes is.
        value = Lane(b, e.indices.spread(e.at(row.x, row.index(number, place)), lanes))
        key = sort_keys.plain_key(value, row.x.dtype, row.descending)
        worst = best.last()
        bound = b.trunc(b.lshr(worst, ir.Constant(worst.type, sort_keys.INDEX_BITS)), _word())
        limit = Lane(b, e.indices.spread(bound, lanes))
        found = key.compare("<=", limit, signed=False)
        if e.mask is not None:
            found = Lane(b, b.and_(found.value, e.mask))
        with b.if_then(found.any().value, likely=False):
            stop = i64(code.indices.add(place.start, lanes))
            end = b.select(b.icmp_signed("<", stop, i64(last)), stop, i64(last))
            best.consider(i64(place.start), end, number)
        return []

    e.blocks(first, last, lanes, consider_lanes, aligned=False)
    return best.found()


class _Best:
    """The best items so far in the memory of a thread: in order where they are few, else with others that were better than the last of them."""

    def __init__(self, row: _Row) -> None:
        self.row = row
        self.builder = b = row.code.builder
        self.few = row.count <= INSERTED
        self.data = moved(b, row.code.own, STATE)
        nbytes = row.count * row.bits // 8
        if self.few:
            clear_bytes(b, self.data, nbytes, 255)
            return
        self.most = _candidates(row.count)
        self.other = moved(b, self.data, _room(row.bits, row.code.machine, self.most))
        self._note(i64(0), self._none)

    @property
    def _none(self) -> Value:
        from llvmlite import ir

        return ir.Constant(ir.IntType(self.row.bits), (1 << self.row.bits) - 1)

    def _note(self, count: Value, last: Value) -> None:
        sorters.write(self.builder, count, self.row.code.own, 0, 64)
        sorters.write(self.builder, last, self.row.code.own, 1, self.row.bits)

    def last(self) -> Value:
        """What an item must be better than."""
        if self.few:
            return sorters.read(self.builder, self.data, self.row.count - 1, self.row.bits)
        return sorters.read(self.builder, self.row.code.own, 1, self.row.bits)

    def consider(self, first: Value, end: Value, number: Index) -> None:
        """Take what is better than the last of the best, of these elements of a row, no more than a vector has."""
        row, b, bits = self.row, self.builder, self.row.bits
        if self.few:
            each(b, first, end, lambda i: self._insert(row.item(number, i)))
            return
        worst = self.last()

        def append(i: Value, held: Sequence[Value]) -> Sequence[Value]:
            item = row.item(number, i)
            sorters.write(b, item, self.data, held[0], bits)
            better = b.icmp_unsigned("<", item, worst)
            return [b.add(held[0], b.zext(better, i64(0).type))]

        count = sorters.read(b, row.code.own, 0, 64)
        (count,) = loop(b, i64(first), i64(end), 1, append, [count])
        sorters.write(b, count, row.code.own, 0, 64)
        full = i64(self.most - row.code.width)
        with b.if_then(b.icmp_signed(">=", count, full), likely=False):
            self._sort(count)

    def _insert(self, item: Value) -> None:
        b, row = self.builder, self.row
        insert = sorters.insert_function(row.code.module, row.bits)
        with b.if_then(b.icmp_unsigned("<", item, self.last()), likely=False):
            b.call(insert, [self.data, i64(row.count - 1), item])

    def _sort(self, count: Value) -> None:
        """Keep the best of all candidates."""
        row, b = self.row, self.builder
        found = row.sort(self.data, self.other, count, self.most)
        with b.if_then(b.not_(same_pointer(b, found, self.data))):
            copy_bytes(b, self.data, found, row.count * row.bits // 8)
        self._note(i64(row.count), sorters.read(b, self.data, row.count - 1, row.bits))

    def found(self) -> Value:
        """Where the best lie in order."""
        if not self.few:
            self._sort(sorters.read(self.builder, self.row.code.own, 0, 64))
        return self.data


def _selected_row(row: _Row, number: Value) -> None:
    row.write(number, _select(row, number, 0, row.length), 0, row.count)


def _divided_selection(row: _Row, number: Value) -> None:
    code, b, bits = row.code, row.code.builder, row.bits
    most, data = PARTS * row.count, code.shared

    def begin(part: Value) -> Value:
        return b.udiv(b.mul(part, i64(row.length)), i64(PARTS))

    def emit_part(part: Value) -> None:
        found = _select(row, number, begin(part), begin(b.add(part, i64(1))))
        target = sorters.item_address(b, data, b.mul(part, i64(row.count)), bits)
        copy_bytes(b, target, found, row.count * bits // 8)

    code.each(PARTS, emit_part)
    code.barrier()
    with code.alone():
        other = moved(b, data, _room(bits, code.machine, most))
        row.write(number, row.sort(data, other, most, most), 0, row.count)
    code.barrier()


SORTING = Template("sorting", _fits, _emit, _scratch)
