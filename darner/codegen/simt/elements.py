"""Elements of a kernel's values in a shader: the CPU's walk over a body, one element at a time.

Numbers of indices are 32 bits wide: no tensor of a device has more than 2**31 elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...backends.wgpu.lanes import high_product
from ...backends.wgpu.writer import Text, Writer, spelled, width
from ...graph import dtypes
from ...graph.dtypes import DType
from ...graph.errors import InternalError
from ...graph.graph import Graph
from ...graph.node import Node
from ...ops.faults import ordinal
from ..elements.elements import Elements
from ..ir.index import IndexMath, Number
from ..ir.math import register_type
from ..ir.philox import MASK, MULTIPLIERS, ROUNDS, WEYL
from ..ir.registers import Registers

NEVER = 1 << 62
"""More elements than any row has: nothing is computed in vectors."""


@dataclass(frozen=True)
class Memory:
    """A buffer that a shader has bound.

    Attributes:
        name: in the shader.
        dtype: of its elements.
        atomic: whether its words are written bit by bit, because elements of several threads share them.
        vector: elements of each item that the shader sees, where it is declared as vectors.
    """

    name: str
    dtype: DType
    atomic: bool = False
    vector: int = 1

    @property
    def words(self) -> int:
        """Words of each item, where elements share them."""
        return max(1, self.vector * self.dtype.itemsize // 4)

    @property
    def item(self) -> str:
        """The type of its items in WGSL."""
        if self.dtype.itemsize < 4:
            word = "atomic<u32>" if self.atomic else "u32"
            return word if self.words == 1 else f"vec{self.words}<u32>"
        kind = "f64" if self.dtype is dtypes.f64 else spelled(register_type(self.dtype))
        return kind if self.vector == 1 else f"vec{self.vector}<{kind}>"


def is_packed(dtype: DType) -> bool:
    """Whether several elements share a word of memory."""
    return dtype.itemsize < 4


class ShaderPlaces(IndexMath):
    """Arithmetic on indices of 32 bits."""

    def plain(self, number: Number) -> Any:
        """A number as a value."""
        from llvmlite import ir  # type: ignore[import-untyped]

        return ir.Constant(ir.IntType(32), number) if isinstance(number, int) else number

    def _both(self, a: Number, b: Number) -> tuple[Any, Any]:
        return self.plain(a), self.plain(b)

    def text(self, number: Number) -> str:
        """A number as a u32 expression."""
        return str(self.builder.text(self.plain(number)))


class ShaderRegisters(Registers):
    """Loads, stores and numbers of a shader."""

    builder: Writer

    def __init__(self, builder: Writer) -> None:
        super().__init__(builder)
        self.places: ShaderPlaces = ShaderPlaces(builder)
        self.indices = self.places

    def load(self, pointer: Memory, offset: Number, dtype: DType, mask: Any = None) -> Any:
        """The element at an offset."""
        text = self.places.text(offset)
        kind = register_type(dtype)
        if not is_packed(dtype):
            if pointer.vector == 1:
                return self.builder.let(kind, f"{pointer.name}[{text}]")
            shift = pointer.vector.bit_length() - 1
            return self.builder.let(
                kind, f"{pointer.name}[{text} >> {shift}u][{text} & {pointer.vector - 1}u]"
            )
        at = f"{text} >> {self._shift(dtype)}u"
        word = f"{pointer.name}[{at}]"
        if pointer.words > 1:
            item = f"{text} >> {pointer.vector.bit_length() - 1}u"
            word = f"{pointer.name}[{item}][({at}) & {pointer.words - 1}u]"
        if pointer.atomic:
            word = f"atomicLoad(&{word})"
        return self.unpacked(word, text, dtype)

    @staticmethod
    def _shift(dtype: DType) -> int:
        """Elements of a word, as a power of two."""
        return 2 if dtype.itemsize == 1 else 1

    def unpacked(self, word: str, offset: str, dtype: DType) -> Text:
        """One of the elements of a word: which is told by the lowest bits of its offset."""
        kind, bits = register_type(dtype), 8 * dtype.itemsize
        low = f"({word} >> (({offset} & {32 // bits - 1}u) * {bits}u)) & {(1 << bits) - 1}u"
        if dtype is dtypes.f16:
            return self.builder.let(kind, f"unpack2x16float({low}).x")
        return self.builder.let(kind, f"({low}) != 0u" if dtype is dtypes.bool_ else low)

    def packed(self, value: Any, dtype: DType) -> str:
        """The bits of an element that shares a word, as a u32 expression."""
        text = self.builder.text(value)
        if dtype is dtypes.f16:
            return f"pack2x16float(vec2<f32>({text}, 0.0f))"
        return f"u32({text})" if dtype is dtypes.bool_ else text

    def store(
        self,
        value: Any,
        pointer: Memory,
        offset: Number,
        dtype: DType,
        mask: Any = None,
        *,
        non_temporal: bool = False,
    ) -> None:
        """Write the element at an offset; one that shares a word takes only its own bits of it."""
        text = self.places.text(offset)
        if not is_packed(dtype):
            at = f"[{text}]"
            if pointer.vector > 1:
                shift = pointer.vector.bit_length() - 1
                at = f"[{text} >> {shift}u][{text} & {pointer.vector - 1}u]"
            self.builder.line(f"{pointer.name}{at} = {self.builder.text(value)};")
            return
        if not pointer.atomic:
            raise InternalError(f"elements of {dtype} are written in whole words, or atomically")
        bits = 8 * dtype.itemsize
        by = self.builder.name("by")
        self.builder.line(f"let {by} = ({text} & {32 // bits - 1}u) * {bits}u;")
        word = f"&{pointer.name}[{text} >> {self._shift(dtype)}u]"
        self.builder.line(f"atomicAnd({word}, ~({(1 << bits) - 1}u << {by}));")
        self.builder.line(f"atomicOr({word}, {self.packed(value, dtype)} << {by});")

    def of_index(self, index: Number, dtype: DType) -> Any:
        """An index as an element."""
        return self.cast(self.places.plain(index), dtypes.i32, dtype)

    def as_index(self, value: Any, dtype: DType) -> Any:
        """An element of integers as an index."""
        if width(value.type) < 64:
            return self.cast(value, dtype, dtypes.i32)
        # What 32 bits cannot hold is outside of every axis, and stays so.
        wide = self.builder.signed(value)
        text = f"bitcast<u32>(i32(clamp({wide}, -2147483648li, 2147483647li)))"
        return self.builder.let(register_type(dtypes.i32), text)


class ShaderElements(Elements):
    """The elements of a body's nodes in the code of a shader.

    Args:
        writer: where the code goes.
        body: what is computed.
        operands: the buffers of the body's inputs.
        fault: the name of the buffer where faults of data are told of; without it, an index outside its axis counts as the nearest inside.
        whole: the kernel's body, where ``body`` was made of it.
    """

    def __init__(
        self,
        writer: Writer,
        body: Graph,
        operands: Sequence[Memory],
        fault: str | None = None,
        whole: Graph | None = None,
    ) -> None:
        super().__init__(writer, body, operands, width=NEVER)
        self.whole = whole or body
        self.places: ShaderPlaces = ShaderPlaces(writer)
        self.indices = self.places
        self.registers: ShaderRegisters = ShaderRegisters(writer)
        self.fault = fault

    def loop(
        self,
        start: Number,
        stop: Number,
        inside: Callable[[Any, list[Any]], Sequence[Any]],
        carried: Sequence[Any] = (),
        step: int = 1,
    ) -> list[Any]:
        """``for i in range(start, stop, step)``; ``inside`` maps the carried values to their next ones."""

        def scoped(index: Text, values: list[Any]) -> Sequence[Any]:
            with self.scope():
                return inside(index, values)

        limits = self.places.text(start), self.places.text(stop)
        return list(self.builder.loop(*limits, step, scoped, carried))

    def place(self, node: Node, indices: Node, index: Sequence[Number], size: int) -> Any:
        """An element of a node's indices as a place on an axis: inside it, and told of where it was not."""
        found = self.integer(indices, index)
        self.check(node, found, size)
        return self.places.clamp(found, 0, max(size - 1, 0))

    def check(self, node: Node, index: Any, size: int) -> None:
        """Tell of an index of a node that is not from 0 to before ``size``; the program raises."""
        text = self.builder.text(index)
        self.tell_if(f"{text} >= {size}u", node, text, size)

    def check_exponent(self, node: Node, exponent: Any) -> None:
        """Tell of a negative exponent of a power of integers, where it is not a number that is known."""
        given = node.operands[1]
        if given.op.name != "constant":
            text = self.builder.text(self.registers.as_index(exponent, given.dtype))
            self.tell_if(f"({text} >> 31u) != 0u", node, text)

    def tell_if(self, wrong: str, node: Node, value: str, size: int = 0) -> None:
        """Tell of a fault of a node where ``wrong`` holds: what it met, and the size of an axis."""
        if self.fault is None:
            return
        with self.builder.block(f"if ({wrong})"):
            self.builder.line(f"{self.fault}[1] = {value};")
            self.builder.line(f"{self.fault}[2] = {size}u;")
            self.builder.line(f"{self.fault}[0] = {ordinal(self.whole, node)}u;")

    def random_bits(self, offset: Any, step: Any, seed: int, stream: int) -> Any:
        """The random bits of the element at a place: Philox 4x32-10, with products of 32 bits in two words."""
        writer = self.builder
        writer.declare("high_product_u32", high_product(32))
        writer.declare("philox", _PHILOX)
        texts = [writer.text(value) for value in (offset, step)]
        keys = [f"{part}u" for part in (seed & MASK, seed >> 32, stream & MASK)]
        return writer.let(register_type(dtypes.u32), f"philox({', '.join([*texts, *keys])})")


_PHILOX = f"""fn philox(offset: u32, step: u32, seed_low: u32, seed_high: u32, stream: u32) -> u32 {{
  var x = vec4<u32>(offset >> 2u, 0u, stream, step);
  var key = vec2<u32>(seed_low, seed_high);
  for (var round = 0u; round < {ROUNDS}u; round++) {{
    let p = high_product_u32(x.x, {MULTIPLIERS[0]}u);
    let q = high_product_u32(x.z, {MULTIPLIERS[1]}u);
    x = vec4<u32>(q ^ x.y ^ key.x, x.z * {MULTIPLIERS[1]}u, p ^ x.w ^ key.y, x.x * {MULTIPLIERS[0]}u);
    key = key + vec2<u32>({WEYL[0]}u, {WEYL[1]}u);
  }}
  return x[offset & 3u];
}}"""
