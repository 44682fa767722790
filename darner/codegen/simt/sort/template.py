"""Kernels that put elements in order: ``sort``, ``argsort`` and ``top_k``; and sorting itself, for kernels that need an order on the way.

What is sorted is a key with the number of its element. No two of these are equal, so the order is the stable one, whatever the threads do. A block of items is sorted in
the memory of a workgroup, by a bitonic network. Longer rows are blocks that are merged four at a time: an item's place is its place in its own run and, by
binary search, how many of each other run come before it. Where few of a row are wanted, only the first of every block go on, and blocks of these are sorted again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from ....graph import dtypes
from ....graph.dtypes import DType
from ....graph.integers import ceil_div, round_up
from ....graph.node import Node
from ....lower.plan import Spec
from ....lower.specs import sizes
from ...ir import sort_keys
from ...ir.index import Number
from ...problems.nodes import main_node
from ..builder import Memory, Operand, Value
from ..dispatch import Dispatch, Stage, Written
from ..elements import ThreadElements
from ..machine import GRANULE, Machine, power_above
from ..template import Template

NAMES = ("sort", "argsort", "top_k")
BLOCK_BYTES = 16384
"""Memory of a workgroup that a block of items may take: as much as any device has."""
TOGETHER = 512
"""Items of short rows that one workgroup sorts at the same time."""
MOST_THREADS = 1024
"""Of a workgroup that sorts: each has a pair of items at least, and all wait for each other after every step."""
WAYS = 4
"""Runs that are merged into one."""
NOTHING = -1
"""The key and the number of no item: behind all others, as all bits are set."""


@dataclass(frozen=True)
class Item:
    """What is sorted, in its place.

    Attributes:
        row: the number of its row.
        place: its place in it.
        key: what it is ordered by.
        number: its place before.
    """

    row: Value
    place: Value
    key: Value
    number: Value


Key = Callable[[Dispatch, ThreadElements, Value, Value], Operand]
"""``key(dispatch, elements, row, number)``: the key of an element."""
Finish = Callable[[Dispatch, ThreadElements, Item], None]
"""``finish(dispatch, elements, item)``: what is done with an item whose place is known."""


@dataclass(frozen=True)
class Rows:
    """Rows of items.

    Attributes:
        count: how many rows there are.
        length: items of each.
        key: what the items are ordered by.
        finish: what is done with each of them in the end.
        keep: how many of a row are wanted.
        wide: whether keys have 64 bits.
    """

    count: int
    length: int
    key: Key
    finish: Finish
    keep: int
    wide: bool = False


class Sort:
    """The dispatches that put each row in order.

    Args:
        spec: the kernel that needs it.
        machine: for which GPU.
        rows: what is sorted.
        start: the first byte of scratch memory that is free.
    """

    def __init__(self, spec: Spec, machine: Machine, rows: Rows, start: int = 0) -> None:
        self.spec, self.machine, self.sorted = spec, machine, rows
        self.rows, self.length, self.keep = rows.count, rows.length, rows.keep
        self.dtype: DType = dtypes.i64 if rows.wide else dtypes.u32
        self.block = BLOCK_BYTES // (16 if rows.wide else 8)
        self._areas = (start, start)
        self.end = start

    def stages(self) -> list[Stage]:
        """The dispatches; ``end`` is then where scratch memory is free."""
        if not self.rows or not self.length or not self.keep:
            return []
        if self.length <= self.block:
            return [self._blocks(self.length, 0, final=True)]
        if self.keep <= self.block // 4:
            return self._selection()
        return self._merging()

    def _make_areas(self, items: int) -> None:
        """Two parts of scratch memory for so many items."""
        count = self.rows * items
        each = round_up(count * self.dtype.itemsize, GRANULE) + round_up(count * 4, GRANULE)
        self._areas = (self.end, self.end + each)
        self.end += 2 * each

    def _items(self, dispatch: Dispatch, area: int, items: int) -> tuple[Memory, Memory]:
        """The keys and the numbers of one of these parts."""
        start, count = self._areas[area], self.rows * items
        keys = dispatch.scratch(start, count, self.dtype)
        start += round_up(count * self.dtype.itemsize, GRANULE)
        return keys, dispatch.scratch(start, count, dtypes.u32)

    # ------------------------------------------------------------- blocks

    def _selection(self) -> list[Stage]:
        self._make_areas(ceil_div(self.length, self.block) * self.keep)
        stages, items, level = [], self.length, 0
        while items > self.block:
            stages.append(self._blocks(items, level))
            items, level = ceil_div(items, self.block) * self.keep, level + 1
        return [*stages, self._blocks(items, level, final=True)]

    def _blocks(self, length: int, level: int, *, final: bool = False) -> Stage:
        """Sort the blocks of all rows: of the elements at first, later of what was kept of the blocks before."""
        padded = min(power_above(length), self.block)
        blocks = ceil_div(length, padded)
        segments = self.rows * blocks
        share = min(max(1, TOGETHER // padded), segments)
        items = share * padded
        kept = min(self.keep, padded)
        dispatch = Dispatch(self.spec, self.machine, threads=min(MOST_THREADS, max(32, items // 2)))
        elements, b = dispatch.elements(), dispatch.builder
        keys = b.shared(self.dtype, items, "keys")
        numbers = b.shared(dtypes.u32, items, "numbers")
        before = self._items(dispatch, (level - 1) % 2, length) if level else None
        after = None if final else self._items(dispatch, level % 2, blocks * kept)
        with b.for_(b.local, items, dispatch.threads) as i:
            segment = b.let(b.group * share + i // padded, "segment")
            row = b.let(segment // blocks, "row")
            place = b.let(segment % blocks * padded + i % padded, "place")
            key = b.variable(NOTHING, "key", self.dtype)
            number = b.variable(NOTHING, "number", dtypes.u32)
            with b.if_(segment < segments, place < length):
                if before is None:
                    key.set(self.sorted.key(dispatch, elements, row, place))
                    number.set(place)
                else:
                    at = row * length + place
                    key.set(before[0][at])
                    number.set(before[1][at])
            keys[i] = key
            numbers[i] = number
        b.barrier()
        self._network(dispatch, (keys, numbers), padded)
        with b.for_(b.local, share * kept, dispatch.threads) as i:
            segment = b.let(b.group * share + i // kept, "segment")
            place = b.let(i % kept, "place")
            at = b.let(i // kept * padded + place, "at")
            with b.if_(segment < segments):
                if after is None:
                    # Blocks are rows here.
                    item = Item(segment, place, keys[at], numbers[at])
                    self.sorted.finish(dispatch, elements, item)
                else:
                    to = segment * kept + place
                    after[0][to] = keys[at]
                    after[1][to] = numbers[at]
        return dispatch.finish(ceil_div(segments, share))

    def _network(self, dispatch: Dispatch, items: tuple[Memory, Memory], padded: int) -> None:
        """Sort every ``padded`` items of a workgroup's memory."""
        if padded < 2:
            return
        b, (keys, numbers) = dispatch.builder, items
        doubles = b.iterate(2, lambda size: size <= padded, lambda size: size << 1, "size")
        with doubles as size:
            steps = b.iterate(size >> 1, lambda apart: apart > 0, lambda apart: apart >> 1, "apart")
            with steps as apart:
                with b.for_(b.local, keys.shape[0] // 2, dispatch.threads, name="pair") as pair:
                    low = b.let(pair & (apart - 1), "low")
                    i = b.let(((pair - low) << 1) | low, "first")
                    j = b.let(i | apart, "second")
                    left, right = keys[i], keys[j]
                    of_left, of_right = numbers[i], numbers[j]
                    wrong = (left > right) | ((left == right) & (of_left > of_right))
                    with b.if_(b.let(wrong, "wrong") == ((i & (padded - 1) & size) == 0)):
                        keys[i], keys[j] = right, left
                        numbers[i], numbers[j] = of_right, of_left
                b.barrier()

    # ------------------------------------------------------------- merging

    def _merging(self) -> list[Stage]:
        keep, self.keep = self.keep, self.length
        self._make_areas(round_up(self.length, self.block))
        stages = [self._blocks(self.length, 0)]
        self.keep = keep
        run, area = self.block, 0
        while run < self.length:
            stages.append(self._merge(run, area, final=run * WAYS >= self.length))
            run, area = run * WAYS, 1 - area
        return stages

    def _merge(self, run: int, area: int, *, final: bool) -> Stage:
        """Make one of every few runs of a row: each item finds its own place."""
        stride = round_up(self.length, self.block)
        dispatch = Dispatch(self.spec, self.machine)
        elements, b = dispatch.elements(), dispatch.builder
        keys, numbers = self._items(dispatch, area, stride)
        after = None if final else self._items(dispatch, 1 - area, stride)
        with b.if_(b.thread < self.rows * self.length):
            row = b.let(b.thread // self.length, "row")
            at = b.let(b.thread % self.length, "at")
            base = b.let(row * stride, "base")
            key = keys[base + at]
            own = b.let(at // run, "own")
            first = b.let(own // WAYS * WAYS, "first")
            others = []
            for k in range(1, WAYS):
                other = b.let(first + (own - first + k) % WAYS, "run")
                start = b.let(b.min(other * run, self.length), "start")
                size = b.let(b.min(start + run, self.length) - start, "size")
                others.append((other, start, size, b.variable(0, "count", dtypes.u32)))
            steps = b.iterate(run, lambda step: step > 0, lambda step: step >> 1, "step")
            with steps as step:
                for other, start, size, count in others:
                    with b.if_(count + step <= size):
                        found = keys[base + start + count + step - 1]
                        # Of equals those of the runs before come first.
                        with b.if_((found < key) | ((found == key) & (other < own))):
                            count += step
            place: Number = first * run + at % run
            for *_, count in others:
                place = place + count
            place = b.let(place, "place")
            if after is None:
                with b.if_(place < self.keep):
                    item = Item(row, place, key, numbers[base + at])
                    self.sorted.finish(dispatch, elements, item)
            else:
                after[0][base + place] = key
                after[1][base + place] = numbers[base + at]
        return dispatch.finish(ceil_div(self.rows * self.length, dispatch.threads))


# --------------------------------------------------------------------------- kernels


def _fits(spec: Spec, machine: Machine) -> bool:
    return main_node(spec).op.name in NAMES


def _write(spec: Spec, machine: Machine) -> Written:
    node = main_node(spec)
    (x,) = node.operands
    whole, axis = sizes(x), int(node.attrs["axis"])
    outer = [size for k, size in enumerate(whole) if k != axis]
    length = whole[axis]
    keep = int(node.attrs["k"]) if node.op.name == "top_k" else length
    descending = bool(node.attrs.get("descending", node.op.name == "top_k"))
    kept = [keep if k == axis else size for k, size in enumerate(whole)]
    compared = dtypes.f32 if x.dtype.is_half else x.dtype

    def index(elements: ThreadElements, row: Value, place: Value) -> list[Number]:
        lead = elements.places.split(row, outer) if outer else []
        return [*lead[:axis], place, *lead[axis:]]

    def key(dispatch: Dispatch, elements: ThreadElements, row: Value, number: Value) -> Operand:
        value = elements.at(x, index(elements, row, number))
        value = elements.registers.cast(value, x.dtype, compared)
        return sort_keys.key_of(dispatch.builder, value, compared, descending)

    def finish(dispatch: Dispatch, elements: ThreadElements, item: Item) -> None:
        offset = elements.places.offset(index(elements, item.row, item.place), kept)
        for output, memory in zip(spec.body.outputs, dispatch.results, strict=True):
            value: Operand = item.number
            if _is_values(output):
                value = elements.at(x, index(elements, item.row, item.number))
            elements.registers.store(value, memory, offset, output.dtype)

    rows = Rows(prod(outer), length, key, finish, keep, wide=x.dtype.itemsize == 8)
    sort = Sort(spec, machine, rows)
    stages = sort.stages()
    return Written(tuple(stages), sort.end)


def _is_values(output: Node) -> bool:
    """Whether a result has elements, and not their numbers."""
    if output.op.name == "project":
        return int(output.attrs["index"]) == 0
    return output.op.name == "sort"


SORTING = Template("sorting", _fits, _write)
