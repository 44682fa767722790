"""Kernels that put elements in order: ``sort``, ``argsort`` and ``top_k``; and sorting itself, for kernels that need an order on the way.

What is sorted is a key with the number of its element. No two of these are equal, so the order is the stable one, whatever the threads do. A block of items is sorted in
the memory of a workgroup, by a bitonic network. Longer rows are blocks that are merged four at a time: an item's place is its place in its own run and, by
binary search, how many of each other run come before it. Where few of a row are wanted, only the first of every block go on, and blocks of these are sorted again.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from ....backends.wgpu.text import Text
from ....graph import dtypes
from ....graph.dtypes import DType
from ....graph.node import Node
from ....lower.plan import Spec
from ....lower.specs import sizes
from ...ir import sort_keys
from ..builder import Memory
from ..dispatch import Dispatch, Stage, Written
from ..elements import ThreadElements
from ..machine import GRANULE, Machine, power_above
from ..template import Template

NAMES = ("sort", "argsort", "top_k")
BLOCK_BYTES = 16384
"""Memory of a workgroup that a block of items may take: as much as any device has."""
TOGETHER = 512
"""Items of short rows that one workgroup sorts at the same time."""
WAYS = 4
"""Runs that are merged into one."""

Key = Callable[[Dispatch, ThreadElements, Text, Text], Text]
"""``key(shader, elements, row, number)``: the key of an element."""
Finish = Callable[[Dispatch, ThreadElements, Text, Text, Text, Text], None]
"""``finish(shader, elements, row, place, key, number)``: what is done with an item whose place is known."""


def word(text: str) -> Text:
    """A u32 expression as a value."""
    from llvmlite import ir

    return Text(ir.IntType(32), text)


def rounded(nbytes: int) -> int:
    """Bytes up to where the next part of scratch memory may begin."""
    return -(-nbytes // GRANULE) * GRANULE


class Sort:
    """Rows of items, and the dispatches that put each in order.

    Args:
        spec: the kernel that needs it.
        machine: for which GPU.
        rows: how many rows there are.
        length: items of each.
        key: what the items are ordered by.
        finish: what is done with each of them in the end.
        keep: how many of a row are wanted.
        wide: whether keys have 64 bits.
        start: the first byte of scratch memory that is free.
    """

    def __init__(
        self,
        spec: Spec,
        machine: Machine,
        rows: int,
        length: int,
        key: Key,
        finish: Finish,
        *,
        keep: int | None = None,
        wide: bool = False,
        start: int = 0,
    ) -> None:
        self.spec, self.machine = spec, machine
        self.rows, self.length = rows, length
        self.key, self.finish = key, finish
        self.keep = length if keep is None else keep
        self.dtype: DType = dtypes.i64 if wide else dtypes.u32
        self.kind = "u64" if wide else "u32"
        self.last = f"{(1 << 64) - 1}lu" if wide else f"{(1 << 32) - 1}u"
        self.block = BLOCK_BYTES // (16 if wide else 8)
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
        each = rounded(self.rows * items * self.dtype.itemsize) + rounded(self.rows * items * 4)
        self._areas = (self.end, self.end + each)
        self.end += 2 * each

    def _items(self, shader: Dispatch, area: int, items: int) -> tuple[Memory, Memory]:
        """The keys and the numbers of one of these parts."""
        start, count = self._areas[area], self.rows * items
        keys = shader.scratch(start, count, self.dtype)
        start += rounded(count * self.dtype.itemsize)
        return keys, shader.scratch(start, count, dtypes.u32)

    # ------------------------------------------------------------- blocks

    def _selection(self) -> list[Stage]:
        self._make_areas(-(-self.length // self.block) * self.keep)
        stages, items, level = [], self.length, 0
        while items > self.block:
            stages.append(self._blocks(items, level))
            items, level = -(-items // self.block) * self.keep, level + 1
        return [*stages, self._blocks(items, level, final=True)]

    def _blocks(self, length: int, level: int, *, final: bool = False) -> Stage:
        """Sort the blocks of all rows: of the elements at first, later of what was kept of the blocks before."""
        padded = min(power_above(length), self.block)
        blocks = -(-length // padded)
        segments = self.rows * blocks
        share = min(max(1, TOGETHER // padded), segments)
        items = share * padded
        kept = min(self.keep, padded)
        shader = Dispatch(self.spec, self.machine, threads=min(256, max(32, items // 2)))
        elements, writer = shader.elements(), shader.builder
        shader.text_shared("keys", f"array<{self.kind}, {items}>")
        shader.text_shared("numbers", f"array<u32, {items}>")
        before = self._items(shader, (level - 1) % 2, length) if level else None
        after = None if final else self._items(shader, level % 2, blocks * kept)
        step = f"{shader.threads}u"
        with writer.block(f"for (var i = local; i < {items}u; i += {step})"), elements.scope():
            writer.line(f"let segment = group * {share}u + i / {padded}u;")
            writer.line(f"let row = segment / {blocks}u;")
            writer.line(f"let place = segment % {blocks}u * {padded}u + i % {padded}u;")
            writer.line(f"var key = {self.last};")
            writer.line("var number = 0xffffffffu;")
            with writer.block(f"if (segment < {segments}u && place < {length}u)"), elements.scope():
                if before is None:
                    found = self.key(shader, elements, word("row"), word("place"))
                    writer.line(f"key = {writer.text(found)};")
                    writer.line("number = place;")
                else:
                    writer.line(f"key = {before[0].name}[row * {length}u + place];")
                    writer.line(f"number = {before[1].name}[row * {length}u + place];")
            writer.line("keys[i] = key;")
            writer.line("numbers[i] = number;")
        shader.barrier()
        self._network(shader, padded, items)
        with writer.block(f"for (var i = local; i < {share * kept}u; i += {step})"):
            writer.line(f"let segment = group * {share}u + i / {kept}u;")
            writer.line(f"let place = i % {kept}u;")
            writer.line(f"let at = i / {kept}u * {padded}u + place;")
            with writer.block(f"if (segment < {segments}u)"), elements.scope():
                if after is None:
                    # Blocks are rows here.
                    self._finish(shader, elements, "segment", "place", "keys[at]", "numbers[at]")
                else:
                    writer.line(f"{after[0].name}[segment * {kept}u + place] = keys[at];")
                    writer.line(f"{after[1].name}[segment * {kept}u + place] = numbers[at];")
        return shader.finish(-(-segments // share))

    def _network(self, shader: Dispatch, padded: int, items: int) -> None:
        """Sort every ``padded`` items of a workgroup's memory."""
        writer = shader.builder
        if padded < 2:
            return
        outer = writer.block(f"for (var size = 2u; size <= {padded}u; size <<= 1u)")
        with outer, writer.block("for (var apart = size >> 1u; apart > 0u; apart >>= 1u)"):
            head = f"for (var pair = local; pair < {items // 2}u; pair += {shader.threads}u)"
            with writer.block(head):
                writer.line("let low = pair & (apart - 1u);")
                writer.line("let i = ((pair - low) << 1u) | low;")
                writer.line("let j = i | apart;")
                writer.line("let a = keys[i]; let b = keys[j];")
                writer.line("let m = numbers[i]; let n = numbers[j];")
                writer.line("let wrong = a > b || (a == b && m > n);")
                with writer.block(f"if (wrong == ((i & {padded - 1}u & size) == 0u))"):
                    writer.line("keys[i] = b; keys[j] = a;")
                    writer.line("numbers[i] = n; numbers[j] = m;")
            shader.barrier()

    # ------------------------------------------------------------- merging

    def _merging(self) -> list[Stage]:
        keep, self.keep = self.keep, self.length
        self._make_areas(-(-self.length // self.block) * self.block)
        stages = [self._blocks(self.length, 0)]
        self.keep = keep
        run, area = self.block, 0
        while run < self.length:
            stages.append(self._merge(run, area, final=run * WAYS >= self.length))
            run, area = run * WAYS, 1 - area
        return stages

    def _merge(self, run: int, area: int, *, final: bool) -> Stage:
        """Make one of every few runs of a row: each item finds its own place."""
        stride = -(-self.length // self.block) * self.block
        shader = Dispatch(self.spec, self.machine)
        elements, writer = shader.elements(), shader.builder
        keys, numbers = self._items(shader, area, stride)
        after = None if final else self._items(shader, 1 - area, stride)
        with writer.block(f"if (thread < {self.rows * self.length}u)"), elements.scope():
            writer.line(f"let row = thread / {self.length}u;")
            writer.line(f"let at = thread % {self.length}u;")
            writer.line(f"let base = row * {stride}u;")
            writer.line(f"let key = {keys.name}[base + at];")
            writer.line(f"let own = at / {run}u;")
            writer.line(f"let first = own / {WAYS}u * {WAYS}u;")
            others = range(1, WAYS)
            for k in others:
                writer.line(f"let run{k} = first + (own - first + {k}u) % {WAYS}u;")
                writer.line(f"let start{k} = min(run{k} * {run}u, {self.length}u);")
                writer.line(f"let size{k} = min(start{k} + {run}u, {self.length}u) - start{k};")
                writer.line(f"var count{k} = 0u;")
            with writer.block(f"for (var step = {run}u; step > 0u; step >>= 1u)"):
                for k in others:
                    with writer.block(f"if (count{k} + step <= size{k})"):
                        at = f"{keys.name}[base + start{k} + count{k} + step - 1u]"
                        writer.line(f"let other = {at};")
                        # Of equals those of the runs before come first.
                        writer.line(
                            f"if (other < key || (other == key && run{k} < own)) {{ count{k} += step; }}"
                        )
            total = " + ".join(f"count{k}" for k in others)
            writer.line(f"let place = first * {run}u + at % {run}u + {total};")
            if after is None:
                with writer.block(f"if (place < {self.keep}u)"), elements.scope():
                    number = f"{numbers.name}[base + at]"
                    self._finish(shader, elements, "row", "place", "key", number)
            else:
                writer.line(f"{after[0].name}[base + place] = key;")
                writer.line(f"{after[1].name}[base + place] = {numbers.name}[base + at];")
        return shader.finish(-(-self.rows * self.length // shader.threads))

    def _finish(
        self,
        shader: Dispatch,
        elements: ThreadElements,
        row: str,
        place: str,
        key: str,
        number: str,
    ) -> None:
        from llvmlite import ir

        found = shader.builder.let_text(ir.IntType(64 if self.kind == "u64" else 32), key)
        which = shader.builder.let_text(ir.IntType(32), number)
        self.finish(shader, elements, word(row), word(place), found, which)


# --------------------------------------------------------------------------- kernels


def _main(spec: Spec) -> Node:
    output = spec.body.outputs[0]
    return output.operands[0] if output.op.name == "project" else output


def _fits(spec: Spec, machine: Machine) -> bool:
    return _main(spec).op.name in NAMES


def _write(spec: Spec, machine: Machine) -> Written:
    node = _main(spec)
    (x,) = node.operands
    whole, axis = sizes(x), int(node.attrs["axis"])
    outer = [size for k, size in enumerate(whole) if k != axis]
    length = whole[axis]
    keep = int(node.attrs["k"]) if node.op.name == "top_k" else length
    descending = bool(node.attrs.get("descending", node.op.name == "top_k"))
    kept = [keep if k == axis else size for k, size in enumerate(whole)]
    compared = dtypes.f32 if x.dtype.is_half else x.dtype

    def index(elements: ThreadElements, row: Text, place: Text) -> list[Any]:
        lead = elements.places.split(row, outer) if outer else []
        return [*lead[:axis], place, *lead[axis:]]

    def key(shader: Dispatch, elements: ThreadElements, row: Text, number: Text) -> Text:
        value: Any = elements.at(x, index(elements, row, number))
        value = elements.registers.cast(value, x.dtype, compared)
        found: Any = sort_keys.key_of(shader.builder, value, compared, descending)
        return found

    def finish(
        shader: Dispatch, elements: ThreadElements, row: Text, place: Text, _: Text, number: Text
    ) -> None:
        offset = elements.places.offset(index(elements, row, place), kept)
        for output, memory in zip(spec.body.outputs, shader.results, strict=True):
            value: Any = number
            if _is_values(output):
                value = elements.at(x, index(elements, row, number))
            elements.registers.store(value, memory, offset, output.dtype)

    wide = x.dtype.itemsize == 8
    sort = Sort(spec, machine, prod(outer), length, key, finish, keep=keep, wide=wide)
    stages = sort.stages()
    return Written(tuple(stages), sort.end)


def _is_values(output: Node) -> bool:
    """Whether a result has elements, and not their numbers."""
    if output.op.name == "project":
        return int(output.attrs["index"]) == 0
    return output.op.name == "sort"


SORTING = Template("sorting", _fits, _write)
