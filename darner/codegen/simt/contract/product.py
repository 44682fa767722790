"""A ``dot_general`` as a product of matrices whose axes may be many: how each lies in the operands and in the result.

A number of a row is split into the indices of the row axes where an offset is computed, once for each thread. So axes need not follow each other in memory, and what the
batch repeats of one operand becomes rows or columns of the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from ....graph.dtypes import DType
from ....graph.graph import Graph
from ....graph.node import Node
from ....lower.plan import Spec
from ....lower.specs import sizes
from ....lower.strided import Strided, row_major, strided
from ...ir.registers import Registers

Steps = tuple[tuple[int, int], ...]
"""Sizes and strides of axes, the outermost first."""


@dataclass(frozen=True)
class Axis:
    """An axis of a product.

    Attributes:
        size: how many there are along it.
        strides: the distance of neighbours in the first operand and in the second.
        place: which axis of the result it is; -1 where it is summed over.
        apart: the distance of neighbours in the result.
        start: the index of the first in the result.
        every: how far apart neighbours' indices are in the result.
        real: how many of them there are in the result, where operands are filled up with more; -1 for all.
    """

    size: int
    strides: tuple[int, int]
    place: int = -1
    apart: int = 0
    start: int = 0
    every: int = 1
    real: int = -1

    @property
    def plain(self) -> bool:
        """Whether numbers along it are indices of the result."""
        return self.start == 0 and self.every == 1 and self.real < 0

    @property
    def first(self) -> int:
        """How far the first is from the beginning of the result."""
        return self.start * self.apart // self.every

    @property
    def count(self) -> int:
        """How many there are in the result."""
        return self.size if self.real < 0 else self.real


@dataclass(frozen=True)
class Operand:
    """What an operand of a product is read from: an input of the kernel, or what is decoded from some; and the offset of the first element."""

    leaf: Node
    offset: int


@dataclass(frozen=True)
class Product:
    """A ``dot_general``: ``C[batch, row, column]`` is the sum of ``A[batch, row, k] * B[batch, k, column]``.

    Attributes:
        node: the product in the kernel's body.
        operands: A and B.
        batch: the axes that both operands and the result have.
        rows: the axes that A and the result have.
        columns: the axes that B and the result have.
        summed: the axes that A and B have.
        beside: bytes for each element of the result that go to or from memory beside it: what the nodes after the product read, and further results.
        halves: slices of the columns whose elements are taken in pairs, as by a gate; none where each element is taken by itself.
    """

    node: Node
    operands: tuple[Operand, Operand]
    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    summed: tuple[Axis, ...]
    beside: int = 0
    halves: tuple[Node, ...] = ()

    @property
    def count(self) -> int:
        """Matrices of the batch."""
        return prod(axis.size for axis in self.batch)

    @property
    def m(self) -> int:
        """Rows."""
        return prod(axis.size for axis in self.rows)

    @property
    def n(self) -> int:
        """Columns."""
        return prod(axis.size for axis in self.columns)

    @property
    def k(self) -> int:
        """Terms of each sum."""
        return prod(axis.size for axis in self.summed)

    @property
    def in_fours(self) -> bool:
        """Whether four columns, from a multiple of four on, are neighbours in the result."""
        if not self.columns:
            return False
        last = self.columns[-1]
        return last.apart == 1 and last.count % 4 == 0 and last.start % 4 == 0

    @property
    def taken(self) -> Product:
        """What sums are taken to: the product, or the columns of one half where they are taken in pairs."""
        if not self.halves:
            return self
        count = len(self.halves)

        def narrow(axes: Sequence[Axis]) -> tuple[Axis, ...]:
            return tuple(replace(axis, apart=axis.apart // count) for axis in axes)

        (columns,) = self.columns
        return replace(
            self,
            node=self.halves[0],
            batch=narrow(self.batch),
            rows=narrow(self.rows),
            columns=(replace(columns, size=columns.size // count),),
            halves=(),
        )

    def interleaved(self, group: int) -> Product:
        """The same with columns in another order: of halves by turns, so many of each."""
        (whole,) = self.columns
        count = len(self.halves)
        each = whole.size // count
        sizes_of = ((each // group, group), (count, each), (group, 1))
        axes = (
            Axis(size, (0, step * whole.strides[1]), whole.place, step * whole.apart)
            for size, step in sizes_of
        )
        return replace(self, columns=long([*axes]))

    def turned(self) -> Product:
        """The same with columns for rows."""

        def turn(axes: Sequence[Axis]) -> tuple[Axis, ...]:
            return tuple(replace(axis, strides=axis.strides[::-1]) for axis in axes)

        return Product(
            self.node,
            self.operands[::-1],
            turn(self.batch),
            turn(self.columns),
            turn(self.rows),
            turn(self.summed),
            self.beside,
        )

    def free(self, side: int) -> tuple[Axis, ...]:
        """The axes that only one operand has."""
        return self.columns if side else self.rows


def product_of(spec: Spec, *, tf32: bool = False, halves: bool = False) -> Product | None:
    """The product of a body, if its operands are views of what lies in memory and all results have its shape.

    With ``tf32``, what is rounded to that is seen as what lies in memory: who reads it rounds it. With ``halves``, results may also have half of its columns, and be
    made of both halves.
    """
    found = [node for node in spec.body.nodes if node.op.name == "dot_general"]
    if len(found) != 1:
        return None
    (node,) = found
    left, right = node.operands
    if left.dtype is not right.dtype or node.dtype.kind not in ("float", "int"):
        return None
    pairs: tuple[Node, ...] = ()
    if any(joined(output, (node,)) is None for output in spec.body.outputs):
        pairs = _halves(spec.body, node) if halves else ()
        if not pairs or any(joined(output, pairs) is None for output in spec.body.outputs):
            return None
    seen = [strided(operand, widened=True, tf32=tf32) for operand in (left, right)]
    if any(view is None or not _is_read(view.base) for view in seen):
        return None
    a, b = (view for view in seen if view is not None)
    beside = bytes_beside(spec, node, (a.base, b.base), all_=bool(pairs))
    product = replace(_product(node, a, b), beside=beside, halves=pairs)
    in_rows = [(axis.place, axis.apart) for axis in product.columns] == [(node.rank - 1, 1)]
    return product if in_rows or not pairs else None


def product_at(node: Node) -> Product | None:
    """The product that a node is, whatever its kernel makes of it, if its operands are views of what lies in memory."""
    seen = [strided(operand, widened=True) for operand in node.operands]
    views = [view for view in seen if view is not None and _is_read(view.base)]
    return _product(node, *views) if len(views) == len(seen) else None


def in_halves(spec: Spec) -> bool:
    """Whether a kernel is a product whose sums are taken in pairs, from both halves of the columns."""
    if spec.kind != "contract":
        return False
    products = (node for node in spec.body.nodes if node.op.name == "dot_general")
    return any(
        _halves(spec.body, node) and any(joined(x, (node,)) is None for x in spec.body.outputs)
        for node in products
    )


def _halves(body: Graph, node: Node) -> tuple[Node, ...]:
    """The slices of both halves of a product's columns, where a body has both and no other."""
    found = [user for user in body.users(node) if user.op.name == "slice"]
    if not node.rank:
        return ()
    starts = {first_column(user): user for user in found}
    half = sizes(node)[-1] // 2
    alike = all(sizes(user)[-1] == half for user in found)
    if len(found) != 2 or set(starts) != {0, half} or not alike or 2 * half != sizes(node)[-1]:
        return ()
    return starts[0], starts[half]


def bytes_beside(spec: Spec, node: Node, factors: Sequence[Node], all_: bool = False) -> int:
    """See ``Product.beside``; where ``all_`` results are written beside it, those that are the product itself too."""
    whole, body = prod(sizes(node)), spec.body
    read = [leaf for leaf in body.inputs.values() if all(leaf is not one for one in factors)]
    found = sum(_share(leaf, whole) for leaf in read)
    written = body.outputs if all_ or body.outputs[0].shape != node.shape else body.outputs[1:]
    return found + sum(_share(one, whole) for one in written)


def _share(value: Node, whole: int) -> int:
    """Bytes of a value for each of so many elements; of what is spread over them none."""
    size = value.dtype.itemsize * prod(sizes(value))
    return size // whole if whole and size % whole == 0 else 0


def first_column(node: Node) -> int | None:
    """Where the columns begin of which a node is a slice, with all rows; None where it is something else."""
    if node.op.name != "slice" or set(node.attrs["steps"] or (1,)) != {1}:
        return None
    (whole,) = node.operands
    if not node.rank or node.shape[:-1] != whole.shape[:-1]:
        return None
    return int(node.attrs["starts"][-1])


@dataclass(frozen=True)
class Joined:
    """A result of a product's kernel: values of the product's shape, side by side along the last axis, and the casts that come after that.

    Attributes:
        parts: the values; one where nothing is put side by side.
        casts: nodes, the first that is done first.
    """

    parts: tuple[Node, ...]
    casts: tuple[Node, ...] = ()


def joined(output: Node, values: Sequence[Node]) -> Joined | None:
    """What a result is made of, of a product or its halves; None where it is neither of their shape nor several such values side by side."""
    first = values[0]
    if output.shape == first.shape:
        return Joined((output,))
    casts: list[Node] = []
    while output.op.name == "cast":
        casts.insert(0, output)
        (output,) = output.operands
    if len(values) > 1 and output.id == values[0].inputs[0]:
        return Joined(tuple(values), tuple(casts))
    if output.op.name != "concat" or output.attrs["axis"] != first.rank - 1:
        return None
    alike = all(part.shape == first.shape for part in output.operands)
    return Joined(tuple(output.operands), tuple(casts)) if alike else None


def _is_read(base: Node) -> bool:
    """Whether elements are read from memory, or decoded from what is."""
    return base.op.name == "input" or base.op.facts.decodes


def _product(node: Node, a: Strided, b: Strided) -> Product:
    attrs = node.attrs
    left, right = (sizes(operand) for operand in node.operands)
    apart = row_major(sizes(node))
    batch, rows, columns = [], [], []
    place = 0
    for i, j in zip(attrs["a_batch"], attrs["b_batch"], strict=True):
        axis = Axis(left[i], (a.strides[i], b.strides[j]), place, apart[place])
        # What only one operand has along the batch are rows or columns of it.
        if axis.strides[1] == 0:
            rows.append(axis)
        elif axis.strides[0] == 0:
            columns.append(axis)
        else:
            batch.append(axis)
        place += 1
    for i in _free(attrs, "a", len(left)):
        rows.append(Axis(left[i], (a.strides[i], 0), place, apart[place]))
        place += 1
    for j in _free(attrs, "b", len(right)):
        columns.append(Axis(right[j], (0, b.strides[j]), place, apart[place]))
        place += 1
    summed = [
        Axis(left[i], (a.strides[i], b.strides[j]))
        for i, j in zip(attrs["a_contract"], attrs["b_contract"], strict=True)
    ]
    operands = Operand(a.base, a.offset), Operand(b.base, b.offset)
    return Product(node, operands, long(batch), long(rows), long(columns), long(summed))


def long(axes: Sequence[Axis]) -> tuple[Axis, ...]:
    """The axes along which there is more than one, or one that is not the result's first."""
    return tuple(axis for axis in axes if axis.size != 1 or not axis.plain)


def _free(attrs: dict[str, tuple[int, ...]], side: str, rank: int) -> list[int]:
    used = (*attrs[f"{side}_batch"], *attrs[f"{side}_contract"])
    return [axis for axis in range(rank) if axis not in used]


def kept_in(product: Product) -> DType:
    """The type that sums are kept in."""
    return Registers.kept_in(product.node.dtype)


def part_elements(product: Product) -> int:
    """Elements of all sums."""
    return product.count * product.m * product.n


def part_bytes(product: Product) -> int:
    """Bytes of all sums."""
    return part_elements(product) * kept_in(product).itemsize


# --------------------------------------------------------------------------- operands as vectors


@dataclass(frozen=True)
class View:
    """An operand as vectors: where the one of an index lies, counted in vectors.

    Attributes:
        leaf: the input that it views, or what is decoded; that counts as lying row by row.
        along: whether the elements of a vector are neighbours along the ``summed`` axes or along the ``free`` ones.
        vector: elements of a vector; 1 where elements are read one by one.
        offset: of the first vector.
        batch: sizes and strides, in vectors, of the batch axes.
        free: those of the rows or columns.
        summed: those of the summed axes.
    """

    leaf: Node
    along: str
    vector: int
    offset: int
    batch: Steps
    free: Steps
    summed: Steps


def view_of(product: Product, side: int, *, free: bool = True) -> View:
    """An operand as it is read best: in fours where they lie together; ``free`` allows them along rows or columns."""
    operand = product.operands[side]
    groups = {
        "batch": steps(product.batch, side),
        "free": steps(product.free(side), side),
        "summed": steps(product.summed, side),
    }
    if operand.leaf.dtype.name in IN_FOURS and prod(sizes(operand.leaf)) % 4 == 0:
        for along in ("summed", "free") if free else ("summed",):
            found = _in_fours(groups, along, operand.offset)
            if found is not None:
                return View(operand.leaf, along, 4, operand.offset // 4, **found)
    nearest = {name: abs(groups[name][-1][1]) if groups[name] else 0 for name in groups}
    # Neighbouring threads read neighbouring elements.
    along = "free" if nearest["free"] == 1 != nearest["summed"] else "summed"
    return View(operand.leaf, along, 1, operand.offset, **groups)


IN_FOURS = ("f32", "f16", "bf16", "f64", "i32", "u32")
"""The types of elements that are read four at once."""


def _in_fours(groups: dict[str, Steps], along: str, offset: int) -> dict[str, Steps] | None:
    """The axes counted in vectors of four, if they lie so."""
    inner = groups[along]
    if not inner or inner[-1][1] != 1 or inner[-1][0] % 4 or offset % 4:
        return None
    others = [
        stride
        for name, axes in groups.items()
        for _, stride in axes[: -1 if name == along else None]
    ]
    if any(stride % 4 for stride in others):
        return None
    found = {
        name: tuple((size, stride // 4) for size, stride in axes) for name, axes in groups.items()
    }
    found[along] = (*found[along][:-1], (inner[-1][0] // 4, 1))
    return found


def steps(axes: Sequence[Axis], side: int) -> Steps:
    """Sizes and strides in one operand, axes that follow each other taken as one."""
    found: list[tuple[int, int]] = []
    for axis in axes:
        size, stride = axis.size, axis.strides[side]
        if found and found[-1][1] == size * stride:
            found[-1] = (found[-1][0] * size, stride)
        else:
            found.append((size, stride))
    return tuple(found)
