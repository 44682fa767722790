"""Code that all attention kernels share: products with panels, which keys a query may see, and stores of results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from ....codegen.elements.elements import Elements
from ....codegen.ir.emit import (
    broadcast,
    ir,
    load,
    loop,
    maximum,
    minimum,
    narrow,
    offset,
    store,
    store_first_lane,
)
from ....codegen.ir.index import Index, Lanes, i64
from ....codegen.ir.lanes import Lane
from ....codegen.ir.types import Pointer, Value
from ..contract.pack import PackKernel
from ..contract.tile import MicroKernel, Tile
from .plan import row_tile
from .writer import Writer

Indices = Sequence[Index]


@dataclass(frozen=True)
class TileProduct:
    """Rows of a tile times a panel.

    Attributes:
        form: how the rows lie; see ``MicroKernel``.
        tile: how many rows and columns.
        length: terms of each sum.
        a: the address of the rows, and their stride.
        panel: the address of the panel.
        out: the address of the sums, and the stride of their rows.
        keep: whether they are added to what stands there.
        following: what is prefetched; the rows themselves when left out.
    """

    form: str
    tile: Tile
    length: Index
    a: tuple[Pointer, Index]
    panel: Pointer
    out: tuple[Pointer, Index]
    keep: bool
    following: Pointer | None = None


class Parts(Writer):
    """An attention's code in the making: what forward, decoding and gradients have in common."""

    # ------------------------------------------------------------- products

    def tiles(
        self, count: Index, longest: int, tile: Tile, body: Callable[[Tile, Value], None]
    ) -> None:
        """``body(tile, row)`` for ``count`` rows by tiles.

        ``count`` is a multiple of a tile's rows, or ends at the last of ``longest`` rows.
        """
        b = self.builder
        rest = longest % tile.rows
        whole = b.mul(b.sdiv(i64(count), i64(tile.rows)), i64(tile.rows))

        def emit_row(row: Value, _: Sequence[Value]) -> None:
            body(tile, row)

        loop(b, i64(0), whole, tile.rows, emit_row)
        if rest:
            with b.if_then(b.icmp_signed("<", whole, i64(count))):
                body(Tile(rest, tile.vectors, tile.lanes), whole)

    def product(self, work: TileProduct) -> None:
        """One tile: rows times a panel."""
        function = MicroKernel(work.tile, self.dtype, work.form).function(self.code.module)
        (a, a_stride), (out, out_stride) = work.a, work.out
        self.builder.call(
            function,
            [
                i64(work.length),
                a,
                i64(a_stride),
                work.panel,
                out,
                i64(out_stride),
                ir().Constant(ir().IntType(1), int(work.keep)),
                a if work.following is None else work.following,
            ],
        )

    def scores(
        self, count: Value, a: tuple[Pointer, Index], length: int, panel: Pointer, out: Pointer
    ) -> None:
        """Products of ``count`` rows of keys (or values) with a panel of queries (or gradients)."""
        width = self.attention.panel

        def emit_tile(tile: Tile, row: Value) -> None:
            source = offset(self.builder, a[0], self.dtype, self.indices.mul(row, a[1]))
            ahead = offset(self.builder, source, self.dtype, self.indices.mul(tile.rows, i64(a[1])))
            target = offset(self.builder, out, self.dtype, self.indices.mul(row, width))
            into = (target, width)
            self.product(
                TileProduct("rows", tile, length, (source, a[1]), panel, into, False, ahead)
            )

        self.tiles(count, self.attention.keys, self.attention.tile, emit_tile)

    def mixture(
        self, count: Value, a: tuple[Pointer, Index], width: int, panel: Pointer, out: Pointer
    ) -> None:
        """Add the sum of ``count`` rows of values (or keys), weighted by a panel, to its transposed result."""

        def emit_tile(tile: Tile, row: Value) -> None:
            source = offset(self.builder, a[0], self.dtype, row)
            target = offset(
                self.builder, out, self.dtype, self.indices.mul(row, self.attention.panel)
            )
            into = (target, self.attention.panel)
            self.product(TileProduct("columns", tile, count, (source, a[1]), panel, into, True))

        self.tiles(width, width, row_tile(self.attention, self.attention.tile.rows), emit_tile)

    def transposed_panel(
        self, name: str, width: int, first: Indices, valid: Value, panel: Pointer
    ) -> None:
        """Pack the rows of queries (or of their gradients) from an index on as columns of a panel."""
        item = self.attention.operands[name]
        rows = self.address(name, *first), item.strides[2]
        self.pack_panel(item.dtype, width, rows, valid, panel)

    def pack_panel(
        self, dtype: str, width: int, rows: tuple[Pointer, int], valid: Value, panel: Pointer
    ) -> None:
        """Pack rows, given by their address and distance, as columns of a panel."""
        kernel = PackKernel(dtype, self.dtype, self.attention.panel, self.attention.lanes, "k")
        pack = kernel.function(self.code.module)
        source, stride = rows
        self.builder.call(pack, [i64(width), valid, source, i64(1), i64(stride), panel])

    def block_rows(
        self, name: str, width: int, index: Indices, count: Value, room: Pointer
    ) -> tuple[Pointer, Index]:
        """The rows of keys or values from an index on, as numbers to compute with: (address, stride)."""
        item = self.attention.operands[name]
        source = self.address(name, *index)
        if not self.attention.is_narrow:
            return source, item.strides[2]
        wide = self.attention.padded(width)
        kernel = PackKernel(item.dtype, self.dtype, wide, self.attention.lanes, "columns")
        pack = kernel.function(self.code.module)
        stride = i64(item.strides[2])
        self.builder.call(pack, [count, i64(width), source, stride, i64(1), room])
        return room, wide

    def transposed_back(self, width: int, source: Pointer, target: Pointer) -> None:
        """A transposed result, one column for each query, as rows."""
        wide = self.attention.padded(width)
        kernel = PackKernel(self.dtype, self.dtype, wide, self.attention.lanes, "k")
        pack = kernel.function(self.code.module)
        columns = self.attention.panel
        self.builder.call(pack, [i64(columns), i64(wide), source, i64(1), i64(columns), target])

    # ------------------------------------------------------------- which keys are seen

    def start(self, batch: Index) -> Index:
        """The key at which the first query stands."""
        attention = self.attention
        if attention.offset is None:
            return attention.keys - attention.queries_of_head
        node = attention.offset
        elements = Elements.of(self.code)
        index = [] if node.rank == 0 else [0 if int(node.shape[0]) == 1 else batch]
        # Far beyond any key, and still exact in 32 bits.
        return self.indices.clamp(elements.integer(node, index), -(1 << 29), 1 << 29)

    def key_range(self, start: Index, first: Index, after: Index) -> tuple[Value, Value]:
        """The keys that queries from ``first`` to before ``after`` can see, in whole tiles."""
        b, attention, indices = self.builder, self.attention, self.indices
        low, high = i64(0), i64(attention.keys)
        window = attention.window
        if attention.causal:
            high = minimum(b, high, i64(indices.add(start, after)))
        if window is not None:
            low = maximum(b, low, i64(indices.add(indices.add(start, first), 1 - window)))
            if not attention.causal:
                end = indices.add(indices.add(start, after), window - 1)
                high = minimum(b, high, i64(end))
        rows = i64(attention.tile.rows)
        low = b.mul(b.sdiv(low, rows), rows)
        high = maximum(b, high, i64(0))
        up = b.mul(b.sdiv(b.add(high, i64(attention.tile.rows - 1)), rows), rows)
        return low, minimum(b, up, i64(attention.keys))

    def seen(self, positions: Lane, key: Lane) -> Lane | None:
        """Where a key is not hidden by the causal mask or the window; 32-bit numbers."""
        window = self.attention.window
        if not self.attention.causal and window is None:
            return None
        distance = positions - key
        found = None
        if self.attention.causal:
            found = distance >= 0
        if window is not None:
            window = min(window, 1 << 30)
            near = distance < window
            if not self.attention.causal:
                near = near & (distance > -window)
            found = near if found is None else found & near
        return found

    def finished(
        self,
        product: Lane,
        seen: Lane | None,
        mask: Lane | None,
        bias: Lane | None,
    ) -> tuple[Lane, Lane | None]:
        """A score from a product, and tanh(score / softcap) where there is a cap."""
        score, squashed = product * self.number(self.attention.scale), None
        if self.attention.softcap is not None:
            cap = self.number(self.attention.softcap)
            squashed = self.tanh(score / cap)
            score = squashed * cap
        if bias is not None:
            score = score + bias
        for visible in (seen, mask):
            if visible is not None:
                score = visible.choose(score, -inf)
        return score, squashed

    def integers(self, first: Index) -> Lane:
        """Consecutive 32-bit numbers."""
        types = ir()
        lanes = self.attention.lanes
        narrow_type = types.IntType(32)
        value = self.builder.trunc(i64(first), narrow_type)
        steps = types.Constant(types.VectorType(narrow_type, lanes), list(range(lanes)))
        return self.spread(value) + Lane(self.builder, steps)

    def truth(self, value: Value) -> Lane:
        """Bytes as a mask."""
        return Lane(self.builder, value).differs(0)

    def scalar(self, name: str, address: Pointer) -> Lane:
        """One element of a mask or bias, in every lane."""
        item = self.attention.operands[name]
        if item.dtype == "bool":
            value = self.builder.load(address, typ=ir().IntType(8))
            return self.truth(broadcast(self.builder, value, self.attention.lanes))
        return self.spread(load(self.builder, address, item.dtype, 1))

    def along(self, name: str, address: Pointer, stride: int, limit: Lane | None) -> Lane:
        """Elements of a mask or bias at a distance of ``stride``; where ``limit`` is not set nothing is read."""
        item = self.attention.operands[name]
        lanes = self.attention.lanes
        if stride == 0:
            return self.scalar(name, address)
        if item.dtype != "bool":
            mask = None if limit is None else limit.value
            value = load(self.builder, address, item.dtype, lanes, mask, stride)
            return Lane(self.builder, value)
        types = ir()
        kind = types.VectorType(types.IntType(8), lanes)
        if stride == 1 and limit is None:
            return self.truth(self.builder.load(address, typ=kind, align=1))
        steps = types.Constant(
            types.VectorType(types.IntType(64), lanes), [lane * stride for lane in range(lanes)]
        )
        places = self.builder.gep(address, [steps], source_etype=types.IntType(8))
        # A gep by a vector gives a vector of pointers, which llvmlite does not infer.
        places.type = types.VectorType(types.PointerType(), lanes)
        bit = types.VectorType(types.IntType(1), lanes)
        every = types.Constant(bit, [1] * lanes) if limit is None else limit.value
        name = f"llvm.masked.gather.v{lanes}i8.v{lanes}p0"
        arguments = [places.type, types.IntType(32), bit, kind]
        function = self.code.module.globals.get(name)
        if function is None:
            function = types.Function(self.code.module, types.FunctionType(kind, arguments), name)
        nothing, one = types.Constant(kind, None), types.Constant(types.IntType(32), 1)
        return self.truth(self.builder.call(function, [places, one, every, nothing]))

    # ------------------------------------------------------------- results

    def narrowed(self, value: Lane) -> Value:
        """A vector in the type of the results."""
        return narrow(self.builder, value.value, self.attention.result)

    def result_index(self, batch: Index, head: Index, row: Index, column: Index) -> list[Index]:
        """Where an element is in the order of the layout."""
        if self.attention.layout == "bhsd":
            return [batch, head, row, column]
        return [batch, row, head, column]

    def write_row(self, width: int, body: Callable[[Index, int, Value | None], None]) -> None:
        """``body(column, lanes that exist, mask)`` for a row of results in vectors; no mask where all exist."""
        lanes = self.attention.lanes
        whole, rest = width // lanes * lanes, width % lanes

        def emit_column(column: Value, _: Sequence[Value]) -> None:
            body(column, lanes, None)

        loop(self.builder, i64(0), i64(whole), lanes, emit_column)
        if rest:
            types = ir()
            bits = [int(lane < rest) for lane in range(lanes)]
            mask = types.Constant(types.VectorType(types.IntType(1), lanes), bits)
            body(whole, rest, mask)

    def write(
        self,
        value: Lane,
        pointer: Pointer,
        position: Index,
        dtype: str,
        mask: Value | None,
        count: int,
    ) -> None:
        """Round a vector to a result's type and store it."""
        target = offset(self.builder, pointer, dtype, position)
        if mask is not None and count == 1:
            store_first_lane(self.builder, value.value, target, dtype)
        else:
            store(self.builder, value.value, target, dtype, mask)

    def write_gradient(
        self, number: int, index: Indices, width: int, value_at: Callable[[Index], Lane]
    ) -> None:
        """A row of a plain result, ``value_at(column)``, at the first three indices of its layout."""
        output = self.code.body.outputs[number]
        sizes = [int(size) for size in output.shape]
        row = self.indices.mul(self.indices.offset(index, sizes[:-1]), sizes[-1])

        def emit_column(column: Index, count: int, mask: Value | None) -> None:
            position = self.indices.add(row, column)
            self.write(
                value_at(column),
                self.code.results[number],
                position,
                output.dtype.name,
                mask,
                count,
            )

        self.write_row(width, emit_column)

    def write_result(
        self, batch: Index, head: Index, row: Index, value_at: Callable[[Index], Lane]
    ) -> None:
        """A row of the result, and what the body computes of it element by element."""
        code, attention = self.code, self.attention
        node = attention.node
        sizes = [int(size) for size in node.shape]

        def emit_column(column: Index, count: int, mask: Value | None) -> None:
            value = value_at(column)
            index = self.result_index(batch, head, row, column)
            if [output.id for output in code.body.outputs] == [node.id]:
                position = self.indices.offset(index, sizes)
                self.write(value, code.results[0], position, attention.result, mask, count)
                return
            index[3] = Lanes(column, attention.lanes)
            elements = Elements.of(code, mask)
            elements.give(node, self.narrowed(value))
            values = [elements.at(output, index) for output in code.body.outputs]
            for output, pointer, item in zip(code.body.outputs, code.results, values, strict=True):
                position = self.indices.offset(index, sizes)
                elements.registers.store(item, pointer, position, output.dtype, mask)

        self.write_row(attention.value_width, emit_column)
