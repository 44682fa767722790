"""What a dispatch has bound, where it has more buffers than a shader of the GPU can have, or larger ones than it can see at once.

Templates load and store, and know nothing of this: how an ``Access`` is written goes by what is decided here, when a kernel is written to its end.

* A tensor of more bytes than a binding shows is bound several times, in windows; a function of the shader chooses the window.
* Of too many buffers, the smallest are copied side by side into scratch memory before the dispatch, results back after it. Those of one type are then one binding, a
  shelf. What the kernel has as scratch memory anyway needs no copy for that.

A result is copied there too, not only back: some kernels write only what changes of an operand whose memory their result has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...codegen.simt.dispatch import FAULT_BYTES, Binding, Written
from ...codegen.simt.machine import GRANULE
from ...graph.errors import InternalError, UnsupportedError
from ...graph.integers import ceil_div, round_up
from ...lower.plan import Spec
from .access import Shelf, Windows
from .machine import Machine
from .stage import Move, Stage


def fitted(kernel: Written, spec: Spec, machine: Machine) -> Written:
    """A kernel that the GPU can have bound: the same one where it can already."""
    stages, scratch = [], kernel.scratch
    for stage in kernel.stages:
        made, used = _fitted(stage, kernel.scratch, spec, machine)
        stages.append(made)
        scratch = max(scratch, used)
    return (
        kernel
        if scratch == kernel.scratch and stages == list(kernel.stages)
        else replace(kernel, stages=tuple(stages), scratch=scratch)
    )


@dataclass(frozen=True)
class _Bound:
    """A buffer of a dispatch: its name and type in the text, what it is, its bytes, and where it lies in scratch memory if it does."""

    name: str
    item: str
    binding: Binding
    nbytes: int
    start: int | None = None

    @property
    def end(self) -> int:
        return (self.start or 0) + self.nbytes


def _fitted(stage: Stage, scratch: int, spec: Spec, machine: Machine) -> tuple[Stage, int]:
    """A dispatch that fits, and the bytes of scratch memory that are in use during it."""
    sizes = [_nbytes(binding, spec) for binding in stage.bindings]
    if len(sizes) <= machine.most_buffers and max(sizes, default=0) <= machine.most_bound:
        return stage, scratch
    bound = [
        _Bound(name, item, binding, nbytes, binding.number if binding.what == "scratch" else None)
        for (name, item), binding, nbytes in zip(stage.buffers, stage.bindings, sizes, strict=True)
    ]
    large = [one for one in bound if one.nbytes > machine.most_bound]
    others = [one for one in bound if one.nbytes <= machine.most_bound]
    room = machine.most_buffers - sum(_windows(one, machine) for one in large)
    alone, shelves, end = _shelved(others, room, scratch, machine)
    if len(alone) + len(shelves) > room:
        total = sum(one.nbytes for one in bound)
        raise UnsupportedError(
            f"a kernel has {len(bound)} buffers of {total:,} bytes bound, and '{machine.name}' allows {machine.most_buffers} (max-storage-buffers-per-shader-stage) "
            f"of {machine.most_bound:,} bytes (max-storage-buffer-binding-size)",
            hint="a smaller batch, or the largest tensors in several pieces; device='cpu' has no such limit",
        )
    return _bound_anew(stage, large, alone, shelves, machine), end


def _nbytes(binding: Binding, spec: Spec) -> int:
    if binding.what == "fault":
        return FAULT_BYTES
    if binding.what == "scratch":
        return binding.nbytes
    nodes = spec.inputs if binding.what == "operand" else spec.body.outputs
    return int(nodes[binding.number].type.nbytes)


def _window(machine: Machine) -> int:
    return machine.most_bound // GRANULE * GRANULE


def _windows(one: _Bound, machine: Machine) -> int:
    return ceil_div(one.nbytes, _window(machine))


# Shelves -------------------------------------------------------------------------------------------


def _shelved(
    bound: Sequence[_Bound], room: int, scratch: int, machine: Machine
) -> tuple[list[_Bound], list[list[_Bound]], int]:
    """Which buffers stay alone, which lie side by side in scratch memory, and the bytes of that."""
    order = sorted(bound, key=lambda one: (one.start is None, one.nbytes))
    for count in range(len(order) + 1):
        shelves, end = _on_shelves(order[:count], scratch, machine)
        if len(order) - count + len(shelves) <= room or count == len(order):
            # What has a shelf for itself may as well stay where it is.
            useful = {one.name for shelf in shelves if len(shelf) > 1 for one in shelf}
            chosen = [one for one in order if one.name in useful]
            shelves, end = _on_shelves(chosen, scratch, machine)
            return [one for one in order if one.name not in useful], shelves, end
    raise InternalError("nothing was tried")


def _on_shelves(
    chosen: Sequence[_Bound], scratch: int, machine: Machine
) -> tuple[list[list[_Bound]], int]:
    """Buffers of one type beside each other, as far as one binding reaches."""
    placed, end = [], round_up(scratch, GRANULE)
    for one in sorted(chosen, key=lambda one: (one.start is None, one.item)):
        if one.start is None:
            one = replace(one, start=end)
            end += round_up(one.nbytes, GRANULE)
        placed.append(one)
    shelves: list[list[_Bound]] = []
    last: dict[str, list[_Bound]] = {}
    for one in sorted(placed, key=lambda one: one.start or 0):
        shelf = last.get(one.item)
        if (
            shelf is None
            or max(one.end, shelf[-1].end) - (shelf[0].start or 0) > machine.most_bound
        ):
            shelf = last[one.item] = []
            shelves.append(shelf)
        shelf.append(one)
    return shelves, end if any(one.binding.what != "scratch" for one in chosen) else scratch


# Bindings ------------------------------------------------------------------------------------------


def _bound_anew(
    stage: Stage,
    large: Sequence[_Bound],
    alone: Sequence[_Bound],
    shelves: Sequence[Sequence[_Bound]],
    machine: Machine,
) -> Stage:
    """A dispatch with other bindings."""
    ways: dict[str, Shelf | Windows] = {}
    bound = [(one.name, one.item, one.binding) for one in alone]
    moves = []
    for number, shelf in enumerate(shelves):
        first = shelf[0].start or 0
        nbytes = max(one.end for one in shelf) - first
        bound.append((f"shelf{number}", shelf[0].item, Binding("scratch", first, nbytes)))
        for one in shelf:
            start = one.start or 0
            ways[one.name] = Shelf(f"shelf{number}", (start - first) // item_bytes(one.item))
            if one.binding.what != "scratch":
                moves.append(Move(one.binding, Binding("scratch", start, one.nbytes)))
    window = _window(machine)
    for one in large:
        ways[one.name] = Windows(
            one.name, one.item, window // item_bytes(one.item), _windows(one, machine)
        )
        for k in range(_windows(one, machine)):
            nbytes = min(window, one.nbytes - k * window)
            part = replace(one.binding, nbytes=nbytes, offset=k * window)
            if one.start is not None:
                part = Binding("scratch", one.start + k * window, nbytes)
            bound.append((f"{one.name}_{k}", one.item, part))
    return stage.bound_anew(bound, ways, moves)


def item_bytes(item: str) -> int:
    """Bytes of a WGSL type that a buffer can be an array of.

    >>> [item_bytes(item) for item in ("u32", "atomic<u32>", "f64", "vec4<f32>", "vec2<u64>")]
    [4, 4, 8, 16, 16]
    """
    width = 8 if "64" in item else 2 if "f16" in item else 4
    return width * int(item[3]) if item.startswith("vec") else width
