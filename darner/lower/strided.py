"""Views as strides: where the elements of a view lie in the value that it views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from ..graph.node import Node
from ..graph.op import OPS
from ..graph.precision import TF32


@dataclass(frozen=True)
class Multipliers:
    """Which contractions of a target read operands of fewer bits than f32 where they lie, and add their products in f32: by the names of the ops.

    Attributes:
        halves: those that read 16-bit floats, both operands of one type. What others multiply is f32 in memory, rounded where it is computed.
        tf32: those that round what they read to tf32. For others it is rounded where it is computed.
        tf32_along_sums: whether these read operands that are contiguous along what is summed, and turn others first.
    """

    halves: frozenset[str]
    tf32: frozenset[str] = frozenset()
    tf32_along_sums: bool = False


def contractions() -> frozenset[str]:
    """The ops that have kernels of their own in which operands are multiplied.

    >>> "dot_general" in contractions(), "matmul" in contractions()
    (True, False)
    """
    return frozenset(name for name, op in OPS.items() if op.facts.whole and op.facts.multiplies)


def is_view(node: Node) -> bool:
    """Whether a node is the same elements, found elsewhere."""
    return node.op.facts.role == "view"


@dataclass(frozen=True)
class Strided:
    """The element at index ``i`` is the one at ``offset + sum(i * strides)`` of ``base``, in row-major order.

    Attributes:
        base: the value in memory.
        offset: of the first element, in elements.
        strides: the distance of neighbours along each axis; 0 repeats, and a negative one goes backwards.
    """

    base: Node
    offset: int
    strides: tuple[int, ...]


def is_widening(node: Node) -> bool:
    """Whether a node is a 16-bit float as f32: the same number, read from half the memory."""
    return node.op.name == "cast" and node.dtype.name == "f32" and node.operands[0].dtype.is_half


def is_rounding(node: Node) -> bool:
    """Whether a node is a float in fewer bits: what a product reads, and no product can make of what it reads."""
    if node.op.name == "reduce_precision":
        return True
    return node.op.name == "cast" and node.dtype.is_half and node.operands[0].dtype.name == "f32"


def is_tf32(node: Node) -> bool:
    """Whether a node is an f32 with as many bits as tf32 has."""
    attrs = node.attrs
    return (
        node.op.name == "reduce_precision"
        and node.dtype.name == "f32"
        and (attrs["exponent_bits"], attrs["mantissa_bits"]) == TF32
    )


def strided(node: Node, *, widened: bool = False, tf32: bool = False) -> Strided | None:
    """A node as strides over what it views, or None where no strides say it.

    With ``widened``, an f32 that is a 16-bit float in memory is seen there: contractions read it so. With ``tf32``, so is what a contraction rounds to
    tf32 as it reads it.

    >>> import darner
    >>> g = darner.Graph()
    >>> x = g.input("x", (2, 3, 4))
    >>> view = strided(x.transpose((0, 2, 1))[:, 1:])
    >>> view.offset, view.strides
    (1, (12, 1, 4))
    >>> strided(x.transpose((0, 2, 1)).reshape((8, 3))) is None
    True
    """
    if (widened and is_widening(node)) or (tf32 and is_tf32(node)):
        return strided(node.operands[0])
    if not is_view(node):
        return Strided(node, 0, row_major(_sizes(node)))
    (x,) = node.operands
    seen = strided(x, widened=widened, tf32=tf32)
    if seen is None:
        return None
    attrs, name = node.attrs, node.op.name
    offset, strides = seen.offset, seen.strides
    if name == "transpose":
        return Strided(seen.base, offset, tuple(strides[axis] for axis in attrs["perm"]))
    if name == "broadcast_to":
        missing = node.rank - x.rank
        own = [0 if n == 1 else stride for n, stride in zip(_sizes(x), strides, strict=True)]
        return Strided(seen.base, offset, (*[0] * missing, *own))
    if name == "slice":
        steps = attrs["steps"] or (1,) * node.rank
        starts = [int(start) for start in attrs["starts"]]
        moved = sum(start * stride for start, stride in zip(starts, strides, strict=True))
        taken = (stride * step for stride, step in zip(strides, steps, strict=True))
        return Strided(seen.base, offset + moved, tuple(taken))
    if name == "flip":
        sizes = _sizes(x)
        turned = list(strides)
        for axis in attrs["axes"]:
            offset += (sizes[axis] - 1) * strides[axis]
            turned[axis] = -strides[axis]
        return Strided(seen.base, offset, tuple(turned))
    if name == "windows":
        lead = x.rank - len(attrs["window"])
        inner = strides[lead:]
        outer = [s * step for s, step in zip(inner, attrs["stride"], strict=True)]
        within = [s * step for s, step in zip(inner, attrs["dilation"], strict=True)]
        return Strided(seen.base, offset, (*strides[:lead], *outer, *within))
    again = reshaped(_sizes(x), strides, _sizes(node))
    return None if again is None else Strided(seen.base, offset, again)


def is_readable(user: Node, operand: Node, multipliers: Multipliers) -> bool:
    """Whether a kernel that works on matrices can read an operand as it lies; it is copied first where not.

    A product of matrices needs its free axes to be one, and its summed axes; attention and convolutions need rows without gaps, and a loop steps without.
    """
    name = user.op.name
    seen = strided(operand, widened=name in multipliers.halves, tf32=name in multipliers.tf32)
    if seen is None:
        return False
    if user.op.facts.role == "loop":
        slots = [slot for i, slot in zip(user.inputs, user.slots, strict=True) if i == operand.id]
        return all(is_stepwise(operand, slot == "xs") for slot in slots)
    sizes = _sizes(operand)
    if name != "dot_general":
        contiguous = operand.rank < 2 or seen.strides[-1] == 1 or sizes[-1] == 1
        return contiguous if user.op.facts.reads_rows else seen.strides == row_major(sizes)
    for side, place in (("a", 0), ("b", 1)):
        if user.inputs[place] != operand.id:
            continue
        summed = user.attrs[f"{side}_contract"]
        used = (*user.attrs[f"{side}_batch"], *summed)
        free = [axis for axis in range(operand.rank) if axis not in used]
        for axes in (free, summed):
            taken = [sizes[axis] for axis in axes], [seen.strides[axis] for axis in axes]
            if merged_stride(*taken) is None:
                return False
    return True


def is_stepwise(node: Node, stepped: bool) -> bool:
    """Whether a loop can read an operand where it lies: all its elements without gaps, or where it is ``stepped`` those of each step."""
    seen = strided(node)
    if seen is None:
        return False
    sizes = _sizes(node)[int(stepped) :]
    strides = zip(sizes, seen.strides[int(stepped) :], row_major(sizes), strict=True)
    return all(size == 1 or found == wanted for size, found, wanted in strides)


def row_major(sizes: Sequence[int]) -> tuple[int, ...]:
    """The strides of elements without gaps.

    >>> row_major((2, 3, 4))
    (12, 4, 1)
    """
    return tuple(prod(sizes[axis + 1 :]) for axis in range(len(sizes)))


def merged_stride(sizes: Sequence[int], strides: Sequence[int]) -> int | None:
    """The stride of some neighbouring axes taken as one, or None where they do not follow each other.

    >>> merged_stride((2, 3), (6, 2)), merged_stride((2, 3), (6, 1))
    (2, None)
    """
    if 0 in sizes:
        return 0
    real = [(size, stride) for size, stride in zip(sizes, strides, strict=True) if size != 1]
    if not real:
        return 0
    for (_, outer), (size, inner) in pairwise(real):
        if outer != size * inner:
            return None
    return real[-1][1]


def reshaped(
    sizes: Sequence[int], strides: Sequence[int], other: Sequence[int]
) -> tuple[int, ...] | None:
    """The strides of the same elements under another shape, or None where there are none.

    >>> reshaped((4, 6), (6, 1), (2, 2, 6)), reshaped((4, 6), (1, 4), (24,))
    ((12, 6, 1), None)
    """
    if not prod(sizes):
        return (0,) * len(other)
    old = [(size, stride) for size, stride in zip(sizes, strides, strict=True) if size != 1]
    result: list[int] = []
    taken = at = 0
    while at < len(other):
        if other[at] == 1:
            result.append(0)
            at += 1
            continue
        first, begin = taken, at
        taken, at = taken + 1, at + 1
        while prod(size for size, _ in old[first:taken]) != prod(other[begin:at]):
            if prod(size for size, _ in old[first:taken]) < prod(other[begin:at]):
                taken += 1
            else:
                at += 1
        group = old[first:taken]
        stride = merged_stride([size for size, _ in group], [step for _, step in group])
        if stride is None:
            return None
        result += [stride * within for within in row_major(other[begin:at])]
    return tuple(result)


def _sizes(node: Node) -> tuple[int, ...]:
    return tuple(int(size) for size in node.shape)
