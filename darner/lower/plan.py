"""The plan: kernels in their order, over buffers in one arena. It is what every backend compiles.

A kernel says *what* it computes by its ``Spec``: a small frozen graph whose inputs are named ``0``, ``1``, ... in
order and whose outputs are the results. Kernels of equal specs share one, so a model of thirty equal layers has
the specs of one layer. A buffer is one value: an input, a parameter, a state, a constant, or bytes of the arena that
one kernel writes. A plan needs nothing of the graph it came from.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

from .._version import __version__
from ..graph.cached import cached_property
from ..graph.data import Data
from ..graph.errors import Calling, Source, VerifyError
from ..graph.graph import LEAVES, Graph
from ..graph.node import Node
from ..graph.parts import Parts
from ..graph.types import TensorType, TupleType
from .loops import shares_carry

VERSION = 3
"""The version of the plan's saved form; a plan of a newer one is refused."""

ALIGNMENT = 64
"""Every value of the arena begins at a multiple of this many bytes: a cache line, and the widest vector."""

Kind = Literal["map", "rows", "contract", "attention", "index", "scan", "loop", "library", "host"]
Place = Literal["arena", "input", "parameter", "state", "constant"]
KINDS: tuple[str, ...] = get_args(Kind)
HOST: Kind = "host"
PLACES: tuple[str, ...] = get_args(Place)

TOGETHER = ("map", "contract", "attention", "index")
"""Kinds whose kernels compute every result of an element before they write any of them."""


@dataclass(frozen=True)
class Spec:
    """What a kernel computes: the template a backend has for it, and the computation as a graph.

    ``inner`` is the plan of one step, where the kernel is a loop (``lower/loops.py``).
    """

    kind: str
    body: Graph
    inner: Plan | None = None

    @cached_property
    def digest(self) -> str:
        """The kind and the body's digest: equal for equal computations, in every process; of a loop also that of its plan."""
        whole = f"{self.kind}-{self.body.digest()}"
        return whole if self.inner is None else f"{whole}.{self.inner.digest()}"

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def is_host(self) -> bool:
        """Whether it is the function of a user's op, which the process calls between kernels."""
        return self.kind == HOST

    @cached_property
    def inputs(self) -> tuple[Node, ...]:
        """The body's inputs, in the order of a kernel's operands."""
        return tuple(self.body.inputs.values())

    @cached_property
    def ops(self) -> tuple[str, ...]:
        """The names of what the body computes, in order; its inputs and constants left out."""
        plain = (*LEAVES, "constant")
        return tuple(node.op.name for node in self.body.nodes if node.op.name not in plain)


@lru_cache(maxsize=1024)
def copy_spec(type_: TensorType) -> Spec:
    """What a kernel computes that copies a value."""
    body = Graph("kernel")
    x = body.input("0", type_.shape, type_.dtype)
    body.set_outputs([x.reshape(type_.shape)])
    return Spec("map", body.freeze())


@dataclass(frozen=True)
class Buffer:
    """One value and where it lies.

    Attributes:
        type: shape and element type; no size is a symbol.
        place: the arena, or what it is outside of it.
        name: the leaf's name, or the constant's key in ``Plan.constants``.
        offset: bytes from the start of the arena.
        init: what every element of a state is before the first run.
        parts: the parameters or states that stand side by side in it, where it is not one of them by itself.
    """

    type: TensorType
    place: Place
    name: str | None = None
    offset: int | None = None
    init: float = 0.0
    parts: Parts | None = None

    @property
    def nbytes(self) -> int:
        """Bytes when stored densely."""
        if self.type.symbols:
            raise VerifyError(symbolic(self.type.symbols))
        return int(self.type.nbytes)

    @property
    def range(self) -> tuple[int, int]:
        """The first byte in the arena, and the one after the last."""
        if self.offset is None:
            raise VerifyError(f"a buffer of the {self.place} has no place in the arena")
        return self.offset, self.offset + self.nbytes

    @property
    def leaf_attrs(self) -> dict[str, Any]:
        """The attributes of an input, parameter or state as a node of a graph."""
        attrs = {"name": self.name, "shape": self.type.shape, "dtype": self.type.dtype}
        if self.place == "parameter":
            return {**attrs, "storage": "dense", "init": None}
        return {**attrs, "init": float(self.init)} if self.place == "state" else attrs


@dataclass(frozen=True)
class Kernel:
    """One step of a plan: a spec applied to buffers.

    Attributes:
        spec: the digest of what it computes.
        operands: the buffers it reads, in the order of the body's inputs.
        results: the buffers it writes, in the order of the body's outputs.
        nodes: ids of the nodes of the graph that it computes.
        label: the user's label of the most telling of them.
        source: the user's line.
        checks: label and line of each node that data can make fail (``ops.faults.can_fail``), in the order of the body.
    """

    spec: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    nodes: tuple[int, ...] = ()
    label: str | None = None
    source: Source | None = None
    checks: tuple[tuple[str | None, Source | None], ...] = ()


@dataclass(frozen=True)
class Plan:
    """Kernels in the order they run, the buffers they read and write, and what is left at the end.

    After the last kernel the outputs are read, and then each leaf of ``updates`` takes the value of its buffer, all of
    them at once. There is a buffer for every input, parameter and state of the graph, used or not.

    A step changes leaves or fails, never both: kernels before ``commit`` write none, and those from there on cannot fail where inputs keep to ``bounds``.

    Attributes:
        name: the graph's name.
        target: what it was lowered for: ``cpu``, ``reference``, ...
        specs: what kernels compute, by digest.
        buffers: all values; kernels name them by position.
        kernels: the steps, in order.
        outputs: the buffers of the results.
        output_names: the label of each output, where it has one.
        updates: a state's or parameter's buffer, and the one whose value it takes; equal where a kernel wrote it in place.
        constants: values by key.
        arena_bytes: the size of the arena.
        naive_bytes: what the values would take if each had a place of its own.
        commit: how many kernels come before the point at which a program looks for faults; 0 where none can fail.
        bounds: inputs that are indices, what they must lie below, and then numbers that stand for none: checked before a step begins.
        options: what was asked for: level, mode, ...; values that JSON has.
        version: of the saved form.
    """

    name: str
    target: str
    specs: Mapping[str, Spec]
    buffers: tuple[Buffer, ...]
    kernels: tuple[Kernel, ...]
    outputs: tuple[int, ...]
    output_names: tuple[str | None, ...]
    updates: tuple[tuple[int, int], ...] = ()
    constants: Mapping[str, Data] = field(default_factory=dict)
    arena_bytes: int = 0
    naive_bytes: int = 0
    commit: int = 0
    bounds: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    version: int = VERSION

    # ------------------------------------------------------------- reading

    @cached_property
    def host_kernels(self) -> tuple[int, ...]:
        """The kernels that call the function of a user's op, by number."""
        # By digest: a plan that was kept has its specs as text until somebody needs them.
        found = (k for k, kernel in enumerate(self.kernels) if kernel.spec.startswith(f"{HOST}-"))
        return tuple(found)

    def spec(self, kernel: Kernel | int) -> Spec:
        """What a kernel, or the kernel at a position, computes."""
        return self.specs[(self.kernels[kernel] if isinstance(kernel, int) else kernel).spec]

    def leaves(self, place: str) -> dict[str, int]:
        """The buffers of all inputs, parameters or states, by name."""
        found = enumerate(self.buffers)
        return {str(buffer.name): i for i, buffer in found if buffer.place == place}

    def stored(self, place: str) -> dict[str, Buffer]:
        """The inputs, parameters or states by their own names, also those that are parts of a buffer: each as if it were one by itself."""
        found: dict[str, Buffer] = {}
        for buffer in self.buffers:
            if buffer.place != place:
                continue
            if buffer.parts is None:
                found[str(buffer.name)] = buffer
                continue
            for name, type_ in buffer.parts.types(buffer.type).items():
                found[name] = replace(buffer, type=type_, name=name, parts=None)
        return found

    @cached_property
    def step_bytes(self) -> int:
        """Bytes beside the arena that the steps of a loop need: no two loops run at once, but loops within a step do."""
        inner = [spec.inner for spec in self.specs.values() if spec.inner is not None]
        return max((plan.arena_bytes + plan.step_bytes for plan in inner), default=0)

    @property
    def saved_bytes(self) -> int:
        """Bytes that sharing the arena saves."""
        return self.naive_bytes - self.arena_bytes

    def lifetimes(self) -> list[tuple[int, int] | None]:
        """For each buffer of the arena the kernel that writes it and the last that reads it, else None.

        What outlasts the kernels (an output, an update) is read at ``len(kernels)``.
        """
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for k, kernel in enumerate(self.kernels):
            last.update(dict.fromkeys(kernel.operands, k))
            for i in kernel.results:
                first.setdefault(i, k)
                last[i] = max(k, last.get(i, k))
        last.update(dict.fromkeys(self.outputs, len(self.kernels)))
        last.update(dict.fromkeys((source for _, source in self.updates), len(self.kernels)))
        return [
            (first[i], last[i]) if buffer.place == "arena" and i in first else None
            for i, buffer in enumerate(self.buffers)
        ]

    def hazards(self) -> tuple[tuple[int, ...], ...]:
        """For each kernel the earlier kernels it must follow.

        It follows the last to write what it reads or writes, and those that have read what it writes. What these follow
        in their turn is not repeated.
        """
        bytes_ = _Bytes()
        outside: dict[int, tuple[int | None, tuple[int, ...]]] = {}
        found = []
        for k, kernel in enumerate(self.kernels):
            before: set[int] = set()
            for ids, writes in ((kernel.operands, False), (kernel.results, True)):
                for i in ids:
                    if self.buffers[i].place == "arena":
                        before |= bytes_.touch(*self.buffers[i].range, k, writes)
                        continue
                    writer, readers = outside.get(i, (None, ()))
                    before |= _must_follow(writer, readers, writes)
                    outside[i] = (k, ()) if writes else (writer, (*readers, k))
            found.append(tuple(sorted(before - {k})))
        return tuple(found)

    # ------------------------------------------------------------- checking, printing, saving

    def verify(self) -> Plan:
        """Check every rule a plan keeps; returns the plan, or raises ``VerifyError`` naming the fault."""
        from .plan_verify import verify

        with Calling("Plan.verify"):
            verify(self)
        return self

    def digest(self) -> str:
        """A hash of everything that matters to who runs it: names of the plan and nodes, labels and lines aside.

        It holds specs, buffers, wiring, constants, options, target and darner's version.
        """
        content = [
            ["darner", __version__, self.version, self.target],
            list(self.specs),
            [
                [str(b.type), b.place, b.name, b.offset, repr(float(b.init))]
                + ([] if b.parts is None else [b.parts.axis, b.parts.sources])
                for b in self.buffers
            ],
            [[kernel.spec, kernel.operands, kernel.results] for kernel in self.kernels],
            [self.outputs, self.output_names, self.updates, self.arena_bytes],
            [self.commit, {name: list(bound) for name, bound in self.bounds.items()}],
            [[key, data.digest] for key, data in self.constants.items()],
            self.options,
        ]
        text = json.dumps(content, sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def __hash__(self) -> int:
        return int(self.digest()[:15], 16)

    def __str__(self) -> str:
        from .plan_text import to_text

        return to_text(self)

    def __repr__(self) -> str:
        counts = f"{len(self.kernels)} kernels of {len(self.specs)} specs"
        return f"<Plan '{self.name}' for {self.target}: {counts}, {self.arena_bytes} bytes>"

    def to_json(self) -> str:
        """The whole plan as one JSON document, with a checksum."""
        from .plan_json import to_json

        with Calling("Plan.to_json"):
            return to_json(self)

    @staticmethod
    def from_json(text: str) -> Plan:
        """The plan that ``to_json`` wrote, checked and verified; anything else is a ``FormatError``."""
        from .plan_json import from_json

        with Calling("Plan.from_json"):
            return from_json(text)

    def save(self, path: str | Path) -> None:
        """Write the plan to a file, all or nothing: a crash leaves the old file or the new one."""
        from .plan_json import save

        with Calling("Plan.save"):
            save(self, Path(path))

    @staticmethod
    def load(path: str | Path) -> Plan:
        """The plan that ``save`` wrote; the graph it came from is not needed."""
        from .plan_json import load

        with Calling("Plan.load"):
            return load(Path(path))


ExecutionPlan = Plan


def symbolic(symbols: Any) -> str:
    """The fault of a size that is not known."""
    return f"the size {', '.join(sorted(symbols))} is a symbol: bind it before lowering"


# --------------------------------------------------------------------------- working in place


@lru_cache(maxsize=4096)
def may_share(spec: Spec, operand: int, result: int) -> bool:
    """Whether a kernel may write a result over an operand, both named by their positions in the spec.

    It may where every element of the operand is read only to make the element of the result in its place: through
    element-wise ops of one shape, and no view. Maps and epilogues make all their results element by element together; any
    other kernel may only if no other result needs the operand. It also may where the operand is what an op replaces elements of
    (``Facts.overwrites``) or carries on (``Facts.carries``), and nothing else reads it.
    """
    body, leaf = spec.body, spec.inputs[operand]
    output = body.outputs[result]
    if spec.inner is not None:
        return shares_carry(spec, operand, result)
    if leaf.shape != output.shape or leaf.dtype.itemsize != output.dtype.itemsize:
        return False
    if _overwrites(body, leaf, output) or _carries(body, leaf, output):
        return True
    reached = element_wise_after(body, leaf)
    if reached is None:
        return False
    if spec.kind in TOGETHER:
        return True
    others = [node.id for i, node in enumerate(body.outputs) if i != result]
    return output.id in reached and reached.isdisjoint(others)


def element_wise_after(body: Graph, start: Node) -> set[int] | None:
    """A node of a body and all that is made of it, where each is made element by element; else None."""
    reached = {start.id}
    for node in body.nodes:
        if reached.intersection(node.inputs):
            if "elementwise" not in node.op.traits or node.shape != start.shape:
                return None
            reached.add(node.id)
    return reached


def _overwrites(body: Graph, leaf: Node, output: Node) -> bool:
    slots = [slot for i, slot in zip(output.inputs, output.slots, strict=True) if i == leaf.id]
    alone = [node.id for node in body.users(leaf)] == [output.id] and len(body.outputs) == 1
    return alone and slots == [output.op.facts.overwrites]


def _carries(body: Graph, leaf: Node, output: Node) -> bool:
    if output.op.name != "project":
        return False
    (whole,) = output.operands
    if not isinstance(whole.type, TupleType):
        return False
    carried = whole.op.facts.carries
    slots = [slot for i, slot in zip(whole.inputs, whole.slots, strict=True) if i == leaf.id]
    alone = [node.id for node in body.users(leaf)] == [whole.id] and slots == [carried]
    return alone and int(output.attrs["index"]) == len(whole.type.items) - 1


# --------------------------------------------------------------------------- order


def _must_follow(writer: int | None, readers: tuple[int, ...], writes: bool) -> set[int]:
    found = set(readers) if writes else set()
    return found if writer is None else found | {writer}


class _Bytes:
    """Who last wrote each byte of the arena, and who has read it since: pieces in order, that tile what was touched."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._pieces: dict[int, tuple[int, int | None, tuple[int, ...]]] = {}

    def touch(self, start: int, end: int, kernel: int, writes: bool) -> set[int]:
        """Note that a kernel reads or writes these bytes; returns the kernels it must follow for it."""
        if start == end:
            return set()
        self._cut(start)
        self._cut(end)
        low, high = bisect_left(self._starts, start), bisect_left(self._starts, end)
        inside = self._starts[low:high]
        before: set[int] = set()
        for piece in inside:
            stop, writer, readers = self._pieces[piece]
            before |= _must_follow(writer, readers, writes)
            if not writes:
                self._pieces[piece] = (stop, writer, (*readers, kernel))
        if writes:
            for piece in inside:
                del self._pieces[piece]
            self._starts[low:high] = [start]
            self._pieces[start] = (end, kernel, ())
        return before

    def _cut(self, at: int) -> None:
        """Make a piece begin here, if the byte lies within one."""
        place = bisect_left(self._starts, at)
        if place == 0 or (place < len(self._starts) and self._starts[place] == at):
            return
        start = self._starts[place - 1]
        stop, writer, readers = self._pieces[start]
        if stop > at:
            self._pieces[start] = (at, writer, readers)
            self._pieces[at] = (stop, writer, readers)
            self._starts.insert(place, at)
