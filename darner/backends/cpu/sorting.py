"""Kernels that put elements in order: ``sort``, ``argsort`` and ``top_k``.

Rows are shared out among the threads. Where there are few long ones, each is divided into parts that do not depend on the number of threads; the
parts are sorted side by side and merged. Where only values of 32 bits are asked for, they are sorted by themselves, without the numbers of their elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from ...graph.dtypes import u32
from ...graph.node import Node
from ...lower.plan import Spec
from . import sorters
from .elements import Elements
from .gemm_ir import loop
from .jit import Machine
from .lanes import Lane
from .networks import merge_function as merge_vectors
from .networks import network_function
from .places import Lanes, Number, as_value
from .template import Code, Scratch, Template, sizes
from .vectors import copy_bytes, each, moved, store

PARTS = 16
"""Into how many parts a long row is divided."""

LONG = 8192
"""A row of so many elements is worth dividing."""

FEW = 16
"""Fewer rows than this cannot keep all threads busy."""

SELECTED = 128
"""Up to so many largest are selected one by one; more are taken from the sorted row."""

MOST_BY_NETWORK = 12
"""The exponent of the most items that a network sorts faster than going by their bytes."""

NAMES = ("sort", "argsort", "top_k")


def _main(spec: Spec) -> Node | None:
    """The node that sorts, if that is what a body does."""
    output = spec.body.outputs[0]
    node = output.operands[0] if output.op.name == "project" else output
    return node if node.op.name in NAMES and _kept(node) > 0 else None


def _fits(spec: Spec) -> bool:
    output = spec.body.outputs[0]
    node = output.operands[0] if output.op.name == "project" else output
    return node.op.name in NAMES


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
        self.bits = 32 if self.plain else sorters.item_bits(self.x.dtype)
        self.lanes = code.machine.vector_bytes * 8 // self.bits
        self.descending = bool(node.attrs.get("descending", node.op.name == "top_k"))
        self.results = [
            (_is_values(output), output.dtype, pointer)
            for output, pointer in zip(code.body.outputs, code.results, strict=True)
        ]

    def index(self, row: Number, place: Number) -> list[Number]:
        """The index of an element of a row."""
        outer = self.code.places.split(row, self.outer) if self.outer else []
        return [*outer[: self.axis], place, *outer[self.axis :]]

    def value(self, row: Number, place: Number) -> Any:
        """An element of a row."""
        code = self.code
        return Elements(code.builder, code.body, code.operands).at(self.x, self.index(row, place))

    def item(self, row: Number, place: Any) -> Any:
        """An element as what is sorted."""
        b = self.code.builder
        key = sorters.key_of(b, self.value(row, place), self.x.dtype, self.descending)
        return sorters.item(b, key, place, self.bits)

    def fill(self, row: Number, data: Any, first: Number, last: Number, to: Number) -> None:
        """Write what is sorted of a part of a row to ``data``, from ``to`` on."""
        code, b = self.code, self.code.builder
        places = code.places
        if not self.plain:

            def one(i: Any) -> None:
                at = places.add(to, places.sub(i, first))
                sorters.write(b, self.item(row, i), data, at, self.bits)

            each(b, first, last, one)
            return
        e = Elements(b, code.body, code.operands)

        def some(lanes: Lanes, _: Any) -> Sequence[Any]:
            value = e.places.spread(e.at(self.x, self.index(row, lanes)), self.lanes)
            key = sorters.plain_key(Lane(b, value), self.x.dtype, self.descending)
            at = Lanes(places.add(to, places.sub(lanes.start, first)), self.lanes)
            e.registers.store(key.value, data, at, u32, e.mask)
            return []

        e.blocks(first, last, self.lanes, some, aligned=False)

    def sort(self, data: Any, other: Any, count: Any, most: int) -> None:
        """Put ``count`` items in order, ``most`` at the most; by a network there is room for as many as it takes."""
        code, b = self.code, self.code.builder
        exponent = _exponent(most, self.lanes)
        if not _by_network(self.plain, self.bits, exponent):
            b.call(self._by_parts, [data, other, count])
            return
        from llvmlite import ir  # type: ignore[import-untyped]

        none = ir.Constant(ir.IntType(self.bits), -1)
        each(b, count, 1 << exponent, lambda i: sorters.write(b, none, data, i, self.bits))
        function = network_function(code.module, self.bits, self.lanes)
        b.call(function, [data, as_value(exponent)])

    def write(self, row: Number, data: Any, first: Number, last: Number) -> None:
        """The results of a row from its sorted items."""
        code, b = self.code, self.code.builder
        shape = [self.count if k == self.axis else n for k, n in enumerate(self.sizes)]
        if self.plain:
            e = Elements(b, code.body, code.operands)

            def some(lanes: Lanes, _: Any) -> Sequence[Any]:
                key = e.registers.load(data, Lanes(lanes.start, self.lanes), u32, e.mask)
                value = sorters.plain_value(Lane(b, key), self.x.dtype, self.descending).value
                offset = code.places.offset(self.index(row, lanes), shape)
                for _, dtype, pointer in self.results:
                    e.registers.store(value, pointer, offset, dtype, e.mask)
                return []

            e.blocks(first, last, self.lanes, some, aligned=False)
            return

        def one(i: Any) -> None:
            number = sorters.number_of(b, sorters.read(b, data, i, self.bits))
            offset = code.places.offset(self.index(row, i), shape)
            for is_values, dtype, pointer in self.results:
                found = self.value(row, number) if is_values else b.trunc(number, _word())
                store(b, found, pointer, offset, dtype)

        each(b, first, last, one)

    def restore(self, row: Number) -> None:
        """Give zeros their signs and NaN their bits again, in the order they have in the row; few rows have any."""
        if not self.plain or not self.x.dtype.is_float:
            return
        code, b = self.code, self.code.builder
        e = Elements(b, code.body, code.operands)
        nothing = Lane(b, e.registers.constant(0, u32, self.lanes))

        def look(lanes: Lanes, seen: list[Any]) -> Sequence[Any]:
            value = e.places.spread(e.at(self.x, self.index(row, lanes)), self.lanes)
            raw = Lane(b, value).as_integer()
            special = raw.equals(-(1 << 31)) | ((raw & 0x7FFFFFFF) > (0xFF << 23))
            if e.mask is not None:
                special = Lane(b, b.and_(special.value, e.mask))
            return [(Lane(b, seen[0]) | special.choose(nothing.constant(1), nothing)).value]

        (seen,) = e.blocks(0, self.length, self.lanes, look, [nothing.value])
        with b.if_then(Lane(b, seen).differs(0).any().value, likely=False):
            self._put_back(row)

    def _put_back(self, row: Number) -> None:
        code, b = self.code, self.code.builder
        wide = as_value(0).type

        def kinds(i: Any) -> tuple[Lane, Lane, Lane]:
            raw = Lane(b, self.value(row, i)).as_integer()
            size = raw & 0x7FFFFFFF
            return raw, size.equals(0), size > (0xFF << 23)

        def count(i: Any, held: Sequence[Any]) -> Sequence[Any]:
            raw, is_zero, is_nan = kinds(i)
            first = is_nan | (raw > 0) if self.descending else (raw < 0) & ~is_nan
            before = [first & ~is_zero, is_nan & is_zero if self.descending else ~is_nan]
            return [
                b.add(total, b.zext(mask.value, wide))
                for total, mask in zip(held, before, strict=True)
            ]

        start = loop(b, as_value(0), as_value(self.length), 1, count, [as_value(0)] * 2)
        shape = [self.count if k == self.axis else n for k, n in enumerate(self.sizes)]

        def put(i: Any, held: Sequence[Any]) -> Sequence[Any]:
            following = []
            for at, mask in zip(held, kinds(i)[1:], strict=True):
                with b.if_then(mask.value):
                    offset = code.places.offset(self.index(row, at), shape)
                    for _, dtype, pointer in self.results:
                        store(b, self.value(row, i), pointer, offset, dtype)
                following.append(b.add(at, b.zext(mask.value, wide)))
            return following

        loop(b, as_value(0), as_value(self.length), 1, put, start)

    @property
    def _by_parts(self) -> Any:
        """The function that sorts items byte by byte of their keys."""
        bytes_ = sorters.key_bytes(self.x.dtype)
        return sorters.sort_function(self.code.module, self.bits, bytes_)


def _is_plain(node: Node, outputs: Sequence[Node]) -> bool:
    """Whether values of 32 bits are all that is asked for."""
    kind = node.operands[0].dtype
    values = node.op.name == "sort" and all(_is_values(output) for output in outputs)
    return values and kind.bits == 32 and kind.kind in ("float", "int")


def _exponent(count: int, lanes: int) -> int:
    """Of the power of two that has room for so many."""
    return (max(count, lanes) - 1).bit_length()


def _by_network(plain: bool, bits: int, exponent: int) -> bool:
    return plain or (bits == 64 and exponent <= MOST_BY_NETWORK)


def _word() -> Any:
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
    selects = node.op.name == "top_k" and _kept(node) <= min(SELECTED, length // 4)
    # To select takes one look at most elements: it is not worth dividing as soon.
    return selects, rows < FEW and length >= (8 * LONG if selects else LONG)


def _scratch(spec: Spec, machine: Machine) -> Scratch:
    node = _main(spec)
    if node is None:
        return Scratch()
    selects, divided = _ways(node)
    x = node.operands[0]
    plain = _is_plain(node, spec.body.outputs)
    size = 4 if plain else sorters.item_bits(x.dtype) // 8
    length = sizes(x)[int(node.attrs["axis"])]
    if selects:
        room = _kept(node) * size
        return Scratch(shared=PARTS * room) if divided else Scratch(own=room)
    most = -(-length // PARTS) if divided else length
    most = _part(length, machine.vector_bytes // size) if divided and plain else most
    exponent = _exponent(most, machine.vector_bytes // size)
    network = _by_network(plain, 8 * size, exponent)
    own = (1 << exponent if network else 2 * most) * size
    room = PARTS * _part(length, machine.vector_bytes // size) if plain else length
    return Scratch(own, shared=2 * room * size) if divided else Scratch(own)


def _emit(code: Code) -> None:
    node = _main(code.spec)
    if node is None or not prod(sizes(node.operands[0])):
        return
    selects, divided = _ways(node)
    row = _Row(code, node)
    rows = prod(row.outer)
    ways: dict[tuple[bool, bool], Callable[[_Row, Any], None]] = {
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


def _sorted_row(row: _Row, number: Any) -> None:
    b, data = row.code.builder, row.code.own
    other = moved(b, data, row.length * row.bits // 8)
    row.fill(number, data, 0, row.length, 0)
    row.sort(data, other, as_value(row.length), row.length)
    row.write(number, data, 0, row.count)
    row.restore(number)


def _part(length: int, lanes: int) -> int:
    """The length of a row's parts, whole vectors, the last of them perhaps empty."""
    return -(-length // (PARTS * lanes)) * lanes


def _divided_values(row: _Row, number: Any) -> None:
    """Parts of equal length, filled up with what comes last; they are merged a vector at a time."""
    code, b, bits = row.code, row.code.builder, row.bits
    part_size = _part(row.length, row.lanes)
    data = code.shared
    other = moved(b, data, PARTS * part_size * bits // 8)

    def one_part(part: Any) -> None:
        first = b.mul(part, as_value(part_size))
        last = code.places.clamp(b.add(first, as_value(part_size)), 0, row.length)
        begin = code.places.clamp(first, 0, row.length)
        row.fill(number, code.own, begin, last, 0)
        row.sort(code.own, None, b.sub(last, begin), part_size)
        target = sorters.place(b, data, first, bits)
        copy_bytes(b, target, code.own, part_size * bits // 8)

    code.each(PARTS, one_part)
    code.barrier()
    merge = merge_vectors(code.module, bits, row.lanes)
    source, target, width = data, other, part_size
    while width < PARTS * part_size:

        def one_merge(
            pair: Any, source: Any = source, target: Any = target, n: int = width
        ) -> None:
            first = b.mul(pair, as_value(2 * n))
            run, to = (sorters.place(b, memory, first, bits) for memory in (source, target))
            b.call(merge, [run, as_value(n), to])

        code.each(PARTS * part_size // (2 * width), one_merge)
        code.barrier()
        source, target, width = target, source, 2 * width
    first, last = code.share(row.count)
    row.write(number, source, first, last)
    code.barrier()
    with code.alone():
        row.restore(number)


def _divided_row(row: _Row, number: Any) -> None:
    if row.plain:
        _divided_values(row, number)
        return
    code, b, bits = row.code, row.code.builder, row.bits
    data = code.shared
    other = moved(b, data, row.length * bits // 8)
    merge = sorters.merge_function(code.module, bits)

    def begin(part: Any) -> Any:
        return b.udiv(b.mul(part, as_value(row.length)), as_value(PARTS))

    def one_part(part: Any) -> None:
        first, last = begin(part), begin(b.add(part, as_value(1)))
        count, most = b.sub(last, first), -(-row.length // PARTS)
        row.fill(number, code.own, first, last, 0)
        row.sort(code.own, moved(b, code.own, most * bits // 8), count, most)
        target = sorters.place(b, data, first, bits)
        copy_bytes(b, target, code.own, b.mul(count, as_value(bits // 8)))

    code.each(PARTS, one_part)
    code.barrier()
    source, target, width = data, other, 1
    while width < PARTS:

        def one_merge(
            pair: Any, source: Any = source, target: Any = target, n: int = width
        ) -> None:
            part = b.mul(pair, as_value(2 * n))
            first, middle = begin(part), begin(b.add(part, as_value(n)))
            last = begin(b.add(part, as_value(2 * n)))
            left, right = (sorters.place(b, source, at, bits) for at in (first, middle))
            counts = b.sub(middle, first), b.sub(last, middle)
            to = sorters.place(b, target, first, bits)
            b.call(merge, [left, counts[0], right, counts[1], to])

        code.each(PARTS // (2 * width), one_merge)
        code.barrier()
        source, target, width = target, source, 2 * width
    first, last = code.share(row.count)
    row.write(number, source, first, last)
    code.barrier()


# --------------------------------------------------------------------------- the first few


def _select(row: _Row, number: Any, best: Any, first: Number, last: Number) -> None:
    """The smallest items of part of a row, in order."""
    from llvmlite import ir

    b, bits = row.code.builder, row.bits
    none = ir.Constant(ir.IntType(bits), (1 << bits) - 1)
    each(b, 0, row.count, lambda i: sorters.write(b, none, best, i, bits))
    if row.x.dtype.bits != 32 or row.x.dtype.kind not in ("float", "int"):
        each(b, first, last, lambda i: _consider(row, best, row.item(number, i)))
        return
    code = row.code
    lanes = code.width
    e = Elements(b, code.body, code.operands)

    def some(place: Lanes, _: Any) -> Sequence[Any]:
        # Few are among the best: a vector is looked at closer only if one of its lanes is.
        value = Lane(b, e.places.spread(e.at(row.x, row.index(number, place)), lanes))
        key = sorters.plain_key(value, row.x.dtype, row.descending)
        worst = sorters.read(b, best, row.count - 1, bits)
        bound = b.trunc(b.lshr(worst, ir.Constant(worst.type, sorters.INDEX_BITS)), _word())
        limit = Lane(b, e.places.spread(bound, lanes))
        found = key.compare("<=", limit, signed=False)
        if e.mask is not None:
            found = Lane(b, b.and_(found.value, e.mask))
        with b.if_then(found.any().value, likely=False):
            stop = as_value(code.places.add(place.start, lanes))
            end = b.select(b.icmp_signed("<", stop, as_value(last)), stop, as_value(last))
            each(b, place.start, end, lambda i: _consider(row, best, row.item(number, i)))
        return []

    e.blocks(first, last, lanes, some, aligned=False)


def _consider(row: _Row, best: Any, value: Any) -> None:
    """Put an item among the best if it is better than the last of them."""
    b, bits = row.code.builder, row.bits
    insert = sorters.insert_function(row.code.module, bits)
    worst = sorters.read(b, best, row.count - 1, bits)
    with b.if_then(b.icmp_unsigned("<", value, worst), likely=False):
        b.call(insert, [best, as_value(row.count - 1), value])


def _selected_row(row: _Row, number: Any) -> None:
    _select(row, number, row.code.own, 0, row.length)
    row.write(number, row.code.own, 0, row.count)


def _divided_selection(row: _Row, number: Any) -> None:
    code, b, bits = row.code, row.code.builder, row.bits
    best = code.shared

    def begin(part: Any) -> Any:
        return b.udiv(b.mul(part, as_value(row.length)), as_value(PARTS))

    def one_part(part: Any) -> None:
        own = sorters.place(b, best, b.mul(part, as_value(row.count)), bits)
        _select(row, number, own, begin(part), begin(b.add(part, as_value(1))))

    code.each(PARTS, one_part)
    code.barrier()
    with code.alone():

        def other(i: Any, _: Any) -> None:
            _consider(row, best, sorters.read(b, best, i, bits))

        loop(b, as_value(row.count), as_value(PARTS * row.count), 1, other)
        row.write(number, best, 0, row.count)
    code.barrier()


SORTING = Template("sorting", _fits, _emit, _scratch)
