"""The parameters and states of a session: their types, and the memory that all its programs use."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..backends.base.host import empty_like
from ..graph.data import Array
from ..graph.errors import ArgumentError, ShapeError
from ..graph.forks import watch
from ..graph.graph import Graph
from ..graph.node import Node
from ..graph.types import TensorType
from ..io.memory import together
from ..lower.plan import Buffer, Plan
from ..ops.quantised.stored import restored, stored, stored_type
from ..optim.base import Optimizer
from .binding import as_value, known
from .config import SessionConfig
from .copies import Copies
from .initialise import initial_value, rule_for, warn_of_zeros
from .preparing import Weights


@dataclass(eq=False)
class Shared:
    """What sessions that use the same memory have in common.

    Attributes:
        lock: who reads or writes the memory, or runs, holds it.
        version: counts changes of parameters.
        trainings: counts steps with an optimizer, also of those that only add up gradients.
        weights: which parameters hold their values.
        sessions: how many there are.
        changes: whether steps change parameters or states.
        calls: whether a function of a user's op is called now, in a step or before one.
        torn: whether this process was forked while another thread may have been changing them.
    """

    lock: threading.RLock = field(default_factory=threading.RLock)
    version: int = 0
    trainings: int = 0
    weights: Weights = field(default_factory=Weights)
    sessions: int = 1
    changes: bool = False
    calls: bool = False
    torn: bool = False

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Note that functions of the user's are called inside, which must not use these sessions."""
        self.calls = True
        try:
            yield
        finally:
            self.calls = False

    def __post_init__(self) -> None:
        watch(self)

    def after_fork(self) -> None:
        """In a forked child the thread that holds a lock does not exist: nobody would ever let it go."""
        if self.lock.acquire(blocking=False):
            self.lock.release()
            return
        self.lock = threading.RLock()
        self.torn = self.changes


class Values:
    """What the parameters and states of a session are.

    Attributes:
        shared: what is common with the sessions that use the same memory.
        arrays: the memory of each, by name; a parameter may have its value elsewhere (``Weights``).
        added: the states that an optimizer added to those of the graph.
        unset: matrices that no rule gave values, and of which nobody was told.
    """

    def __init__(self, graph: Graph, config: SessionConfig, given: Collection[str]) -> None:
        self._graph = graph
        self.shared = Shared(changes=config.trains or bool(graph.states))
        self.added: dict[str, TensorType] = {}
        self._copies: dict[tuple[str, ...], Copies] = {}
        self.unset: list[str] = []
        starts = {name: (kept_type(leaf), 0.0) for name, leaf in graph.parameters.items()}
        starts |= states_of(graph)
        self.arrays = allocate_all(starts)
        # What another session gives need not be drawn.
        drawn = [name for name in graph.parameters if name not in given]
        self.initialise(drawn, config.init, config.seed)

    def types(self, kind: str) -> dict[str, TensorType]:
        """The types of parameters or states by name."""
        leaves = self._graph.parameters if kind == "parameter" else self._graph.states
        found = {name: leaf_type(leaf) for name, leaf in leaves.items()}
        return found if kind == "parameter" else {**found, **self.added}

    # ------------------------------------------------------------- values

    def kept_types(self, kind: str) -> dict[str, TensorType]:
        """What parameters or states are in memory, by name: of those that are stored in blocks, the bytes."""
        if kind != "parameter":
            return self.types(kind)
        return {name: kept_type(leaf) for name, leaf in self._graph.parameters.items()}

    def as_kept(self, parameters: Mapping[str, Array]) -> dict[str, Array]:
        """Parameters of a file as they are to be in memory: floats of those that are stored in blocks are quantised."""
        found = dict(parameters)
        types = self.types("parameter")
        for name in types.keys() & found.keys():
            array, size = found[name], int(types[name].size)
            if self.storage(name) != "dense" and array.dtype != np.uint8 and array.size == size:
                shape = tuple(int(n) for n in types[name].shape)
                found[name] = self._stored(name, array.reshape(shape))
        return found

    def storage(self, name: str) -> str:
        """How a parameter or state is stored."""
        leaf = self._graph.parameters.get(name)
        return "dense" if leaf is None else str(leaf.attrs["storage"])

    def read(self, name: str) -> Array:
        """The value of a parameter or state, to be read: its memory, or a copy."""
        found = self.kept(name)
        storage = self.storage(name)
        if storage == "dense":
            return found
        return restored(found, storage, self._graph.parameters[name].dtype)

    def kept(self, name: str) -> Array:
        """The same as it is in memory."""
        return self.shared.weights.read(self.arrays[name])

    def write(self, name: str, value: Array) -> None:
        """Give a parameter or state what it is to be in memory."""
        self.shared.weights.write(self.arrays[name], value)

    def write_checked(self, kind: str, values: Mapping[str, Any]) -> None:
        """Write what a user gives, all or none: every value is checked before the first is written."""
        types, made = self.types(kind), {}
        for name, value in values.items():
            typed = as_value(value, types[known(kind, name, types)], f"{kind} '{name}'")
            if kind == "parameter":
                typed = self._stored(name, typed)
            made[name] = typed
        for name, value in made.items():
            self.write(name, value)
        if kind == "parameter":
            self.changed()

    def _stored(self, name: str, value: Array) -> Array:
        """A parameter's value as it is to be in memory."""
        try:
            return stored(value, self.storage(name))
        except ArgumentError as error:
            raise ArgumentError(f"parameter '{name}': {error.rule}") from None

    def changed(self) -> None:
        """Note that parameters are others than before."""
        self.shared.version += 1

    def initialise(self, names: Iterable[str], rules: Any, seed: int) -> None:
        """Give parameters their first values; those without a rule stay as they are."""
        made, names = {}, list(names)
        leaves = self._graph.parameters
        for name in names:
            leaf = leaves[name]
            rule = rule_for(name, rules, leaf.attrs["init"])
            if rule is not None:
                value = initial_value(rule, name, leaf_type(leaf), seed)
                made[name] = self._stored(name, value)
        self.unset = [n for n in names if n not in made and len(leaves[n].shape) > 1]
        for name, value in made.items():
            self.write(name, value)
        self.changed()

    def warn_of_zeros(self, trained: bool) -> None:
        """Tell of matrices that start as zeros, if the first step trains them."""
        names, self.unset = self.unset, []
        if trained:
            warn_of_zeros(self._graph.name, {name: self.read(name) for name in names})

    # ------------------------------------------------------------- optimizers

    def adopt(self, states: Mapping[str, tuple[TensorType, float]], keep: bool) -> None:
        """Memory for the states of another optimizer; those of the same name and type go on if they are to be kept."""
        for name, type_ in self.added.items():
            if not (keep and name in states and states[name][0] == type_):
                del self.arrays[name]
        self.added = {name: type_ for name, (type_, _) in states.items()}
        missing = {name: about for name, about in states.items() if name not in self.arrays}
        self.arrays |= allocate_all(missing)

    def write_settings(self, optimizer: Optimizer) -> None:
        """Let the states that are numbers of an optimizer have its numbers."""
        for name, value in optimizer.settings().items():
            if name in self.added:
                self.write(name, np.asarray(value))

    # ------------------------------------------------------------- copies

    def copies(self, step: Plan, names: tuple[str, ...]) -> Copies | None:
        """The copies of parameters that a step has as states of these names; steps that have the same share them."""
        if not names:
            return None
        found = self._copies.get(names)
        if found is None:
            states = step.stored("state")
            types = {name: (states[name].type, 0.0) for name in names}
            found = Copies(allocate_all(types, "rounded copies of parameters"))
            self._copies[names] = found
        return found

    @property
    def copied_bytes(self) -> list[int]:
        """The bytes of each copy."""
        every = (copies.arrays.values() for copies in self._copies.values())
        return [array.nbytes for arrays in every for array in arrays]

    # ------------------------------------------------------------- sharing

    def in_common(self, other: Values, kinds: Collection[str]) -> list[str]:
        """The names that both have, whose types must agree."""
        found = []
        for kind in kinds:
            own, theirs = self.kept_types(kind), other.kept_types(kind)
            for name in own.keys() & theirs.keys():
                if own[name] != theirs[name]:
                    raise ShapeError(
                        f"{kind} '{name}' is {own[name]}, but {theirs[name]} in the other session"
                    )
                found.append(name)
        if not found:
            raise ArgumentError("the sessions have no parameter in common")
        return found

    def take(self, names: Iterable[str], other: Values) -> None:
        """Use the memory of another session's values from now on."""
        self._copies.clear()  # their versions are counted otherwise
        for name in names:
            self.arrays[name] = other.arrays[name]
        if self.shared is not other.shared:
            other.shared.changes |= self.shared.changes
            self.shared = other.shared
            self.shared.sessions += 1

    def leave(self) -> None:
        """Share with nobody any more."""
        self._copies.clear()
        self.shared.sessions -= 1
        if not self.shared.sessions:
            self.shared.weights.forget()


def states_of(graph: Graph) -> dict[str, tuple[TensorType, float]]:
    """The states of a graph: their types, and what they are at first."""
    leaves = graph.states.items()
    return {name: (leaf_type(leaf), leaf.attrs["init"]) for name, leaf in leaves}


def leaf_type(leaf: Node) -> TensorType:
    """The type of a parameter or state."""
    return TensorType(leaf.shape, leaf.dtype)


def kept_type(leaf: Node) -> TensorType:
    """The type that a parameter or state has in memory."""
    return stored_type(leaf_type(leaf), leaf.attrs.get("storage", "dense"))


def allocate(type_: TensorType, what: str) -> Array:
    """Memory for a value that every program of a session uses; ``what`` it is an error says."""
    return allocate_all({"": (type_, 0.0)}, what)[""]


def allocate_all(
    leaves: Mapping[str, tuple[TensorType, float]],
    what: str = "parameters and states",
) -> dict[str, Array]:
    """Memory for parameters or states, given by their types and what they are at first, in one piece."""
    buffers = {
        name: Buffer(type_, "state", "", init=init) for name, (type_, init) in leaves.items()
    }
    rooms = together([buffer.nbytes for buffer in buffers.values()], what)
    pairs = zip(buffers.items(), rooms, strict=True)
    return {name: empty_like(buffer, room) for (name, buffer), room in pairs}
