"""Code that the kernels of attention share: products over panels, which keys are seen, results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from ....codegen.elements.elements import Elements
from ....codegen.ir.emit import (
    broadcast,
    i64,
    ir,
    load,
    loop,
    maximum,
    minimum,
    narrow,
    offset,
    store,
)
from ....codegen.ir.index import Lanes, Number, as_value
from ....codegen.ir.lanes import Lane
from ..contract.pack import pack_kernel
from ..contract.tile import Tile, tile_kernel
from .plan import row_tile
from .writer import Writer

Index = Sequence[Number]


class Parts(Writer):
    """An attention's code in the making: what forward, decoding and gradients have in common."""

    # ------------------------------------------------------------- products

    def tiles(
        self, count: Number, longest: int, tile: Tile, inside: Callable[[Tile, Any], None]
    ) -> None:
        """``inside(tile, row)`` for ``count`` rows by tiles.

        ``count`` is a multiple of a tile's rows, or ends at the last of ``longest`` rows.
        """
        b = self.builder
        rest = longest % tile.rows
        whole = b.mul(b.sdiv(as_value(count), i64(tile.rows)), i64(tile.rows))

        def one(row: Any, _: Sequence[Any]) -> None:
            inside(tile, row)

        loop(b, i64(0), whole, tile.rows, one)
        if rest:
            with b.if_then(b.icmp_signed("<", whole, as_value(count))):
                inside(Tile(rest, tile.vectors, tile.lanes), whole)

    def product(
        self,
        form: str,
        tile: Tile,
        length: Number,
        a: tuple[Any, Number],
        panel: Any,
        out: tuple[Any, Number],
        keep: bool,
        following: Any = None,
    ) -> None:
        """One tile: rows of ``a`` (address, stride) times a panel, into or added to ``out`` (address, stride)."""
        function = tile_kernel(self.code.module, tile, self.dtype, form)
        self.builder.call(
            function,
            [
                as_value(length),
                a[0],
                as_value(a[1]),
                panel,
                out[0],
                as_value(out[1]),
                ir().Constant(ir().IntType(1), int(keep)),
                a[0] if following is None else following,
            ],
        )

    def scores(self, count: Any, a: tuple[Any, Number], length: int, panel: Any, out: Any) -> None:
        """Products of ``count`` rows of keys (or values) with a panel of queries (or gradients)."""
        width = self.attention.panel

        def one(tile: Tile, row: Any) -> None:
            source = offset(self.builder, a[0], self.dtype, self.places.mul(row, a[1]))
            ahead = offset(
                self.builder, source, self.dtype, self.places.mul(tile.rows, as_value(a[1]))
            )
            target = offset(self.builder, out, self.dtype, self.places.mul(row, width))
            self.product("rows", tile, length, (source, a[1]), panel, (target, width), False, ahead)

        self.tiles(count, self.attention.keys, self.attention.tile, one)

    def mixture(self, count: Any, a: tuple[Any, Number], width: int, panel: Any, out: Any) -> None:
        """Add the sum of ``count`` rows of values (or keys), weighted by a panel, to its transposed result."""

        def one(tile: Tile, row: Any) -> None:
            source = offset(self.builder, a[0], self.dtype, row)
            target = offset(
                self.builder, out, self.dtype, self.places.mul(row, self.attention.panel)
            )
            into = (target, self.attention.panel)
            self.product("columns", tile, count, (source, a[1]), panel, into, True)

        self.tiles(width, width, row_tile(self.attention, self.attention.tile.rows), one)

    def transposed_panel(self, name: str, width: int, first: Index, valid: Any, panel: Any) -> None:
        """Pack the rows of queries (or of their gradients) from an index on as columns of a panel."""
        item = self.attention.operands[name]
        rows = self.address(name, *first), item.strides[2]
        self.pack_panel(item.dtype, width, rows, valid, panel)

    def pack_panel(
        self, dtype: str, width: int, rows: tuple[Any, int], valid: Any, panel: Any
    ) -> None:
        """Pack rows, given by their address and distance, as columns of a panel."""
        pack = pack_kernel(
            *(self.code.module, dtype, self.dtype),
            *(self.attention.panel, self.attention.lanes, "k"),
        )
        source, stride = rows
        self.builder.call(pack, [i64(width), valid, source, i64(1), as_value(stride), panel])

    def block_rows(
        self, name: str, width: int, index: Index, count: Any, room: Any
    ) -> tuple[Any, Number]:
        """The rows of keys or values from an index on, as numbers to compute with: (address, stride)."""
        item = self.attention.operands[name]
        source = self.address(name, *index)
        if not self.attention.is_narrow:
            return source, item.strides[2]
        wide = self.attention.padded(width)
        pack = pack_kernel(
            *(self.code.module, item.dtype, self.dtype, wide, self.attention.lanes, "columns")
        )
        stride = as_value(item.strides[2])
        self.builder.call(pack, [count, i64(width), source, stride, i64(1), room])
        return room, wide

    def turned_back(self, width: int, source: Any, target: Any) -> None:
        """A transposed result, one column for each query, as rows."""
        wide = self.attention.padded(width)
        pack = pack_kernel(
            *(self.code.module, self.dtype, self.dtype, wide, self.attention.lanes, "k")
        )
        columns = self.attention.panel
        self.builder.call(pack, [i64(columns), i64(wide), source, i64(1), i64(columns), target])

    # ------------------------------------------------------------- which keys are seen

    def start(self, batch: Number) -> Number:
        """The key at which the first query stands."""
        attention = self.attention
        if attention.offset is None:
            return attention.keys - attention.queries_of_head
        node = attention.offset
        elements = Elements.of(self.code)
        index = [] if node.rank == 0 else [0 if int(node.shape[0]) == 1 else batch]
        # Far beyond any key, and still exact in 32 bits.
        return self.places.clamp(elements.integer(node, index), -(1 << 29), 1 << 29)

    def key_range(self, start: Number, first: Number, after: Number) -> tuple[Any, Any]:
        """The keys that queries from ``first`` to before ``after`` can see, in whole tiles."""
        b, attention, places = self.builder, self.attention, self.places
        low, high = as_value(0), as_value(attention.keys)
        window = attention.window
        if attention.causal:
            high = minimum(b, high, as_value(places.add(start, after)))
        if window is not None:
            low = maximum(b, low, as_value(places.add(places.add(start, first), 1 - window)))
            if not attention.causal:
                end = places.add(places.add(start, after), window - 1)
                high = minimum(b, high, as_value(end))
        rows = i64(attention.tile.rows)
        low = b.mul(b.sdiv(low, rows), rows)
        high = maximum(b, high, as_value(0))
        up = b.mul(b.sdiv(b.add(high, i64(attention.tile.rows - 1)), rows), rows)
        return low, minimum(b, up, as_value(attention.keys))

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

    def integers(self, first: Number) -> Lane:
        """Consecutive 32-bit numbers."""
        types = ir()
        lanes = self.attention.lanes
        narrow_type = types.IntType(32)
        value = self.builder.trunc(as_value(first), narrow_type)
        steps = types.Constant(types.VectorType(narrow_type, lanes), list(range(lanes)))
        return self.spread(value) + Lane(self.builder, steps)

    def truth(self, value: Any) -> Lane:
        """Bytes as a mask."""
        return Lane(self.builder, value).differs(0)

    def scalar(self, name: str, place: Any) -> Lane:
        """One element of a mask or bias, in every lane."""
        item = self.attention.operands[name]
        if item.dtype == "bool":
            value = self.builder.load(place, typ=ir().IntType(8))
            return self.truth(broadcast(self.builder, value, self.attention.lanes))
        return self.spread(load(self.builder, place, item.dtype, 1))

    def along(self, name: str, place: Any, stride: int, limit: Lane | None) -> Lane:
        """Elements of a mask or bias at a distance of ``stride``; where ``limit`` is not set nothing is read."""
        item = self.attention.operands[name]
        lanes = self.attention.lanes
        if stride == 0:
            return self.scalar(name, place)
        if item.dtype != "bool":
            mask = None if limit is None else limit.value
            value = load(self.builder, place, item.dtype, lanes, mask, stride)
            return Lane(self.builder, value)
        types = ir()
        kind = types.VectorType(types.IntType(8), lanes)
        if stride == 1 and limit is None:
            return self.truth(self.builder.load(place, typ=kind, align=1))
        steps = types.Constant(
            types.VectorType(types.IntType(64), lanes), [lane * stride for lane in range(lanes)]
        )
        places = self.builder.gep(place, [steps], source_etype=types.IntType(8))
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

    def narrowed(self, value: Lane) -> Any:
        """A vector in the type of the results."""
        return narrow(self.builder, value.value, self.attention.dtype)

    def result_index(
        self, batch: Number, head: Number, row: Number, column: Number
    ) -> list[Number]:
        """Where an element is in the order of the layout."""
        if self.attention.layout == "bhsd":
            return [batch, head, row, column]
        return [batch, row, head, column]

    def write_row(self, width: int, inside: Callable[[Number, int, Any], None]) -> None:
        """``inside(column, lanes that exist, mask)`` for a row of results in vectors; no mask where all exist."""
        lanes = self.attention.lanes
        whole, rest = width // lanes * lanes, width % lanes

        def one(column: Any, _: Sequence[Any]) -> None:
            inside(column, lanes, None)

        loop(self.builder, i64(0), i64(whole), lanes, one)
        if rest:
            types = ir()
            bits = [int(lane < rest) for lane in range(lanes)]
            mask = types.Constant(types.VectorType(types.IntType(1), lanes), bits)
            inside(whole, rest, mask)

    def write(
        self, value: Lane, pointer: Any, place: Number, dtype: str, mask: Any, count: int
    ) -> None:
        """Round a vector to a result's type and store it."""
        target = offset(self.builder, pointer, dtype, place)
        store(self.builder, value.value, target, dtype, mask, alone=mask is not None and count == 1)

    def write_gradient(
        self, number: int, index: Index, width: int, value_at: Callable[[Number], Lane]
    ) -> None:
        """A row of a plain result, ``value_at(column)``, at the first three indices of its layout."""
        output = self.code.body.outputs[number]
        sizes = [int(size) for size in output.shape]
        row = self.places.mul(self.places.offset(index, sizes[:-1]), sizes[-1])

        def one(column: Number, count: int, mask: Any) -> None:
            place = self.places.add(row, column)
            self.write(
                value_at(column), self.code.results[number], place, output.dtype.name, mask, count
            )

        self.write_row(width, one)

    def write_result(
        self, batch: Number, head: Number, row: Number, value_at: Callable[[Number], Lane]
    ) -> None:
        """A row of the result, and what the body computes of it element by element."""
        code, attention = self.code, self.attention
        node = attention.node
        sizes = [int(size) for size in node.shape]

        def one(column: Number, count: int, mask: Any) -> None:
            value = value_at(column)
            index = self.result_index(batch, head, row, column)
            if [output.id for output in code.body.outputs] == [node.id]:
                place = self.places.offset(index, sizes)
                self.write(value, code.results[0], place, attention.dtype, mask, count)
                return
            index[3] = Lanes(column, attention.lanes)
            elements = Elements.of(code, mask)
            elements.give(node, self.narrowed(value))
            values = [elements.at(output, index) for output in code.body.outputs]
            for output, pointer, item in zip(code.body.outputs, code.results, values, strict=True):
                place = self.places.offset(index, sizes)
                elements.registers.store(item, pointer, place, output.dtype, mask)

        self.write_row(attention.value_width, one)
