"""The session: a graph, compiled, with its parameters."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ..graph.data import Array
from ..graph.errors import ArgumentError, FormatError, ShapeError
from ..graph.habits import missing
from ..graph.types import TensorType
from ..io.atomic import Path
from ..io.reading import parse_json, shown
from ..ops.leaves import stored_value
from ..optim.base import Optimizer
from .binding import as_value, into, known
from .checkpoint import Checkpoint, fit, load_checkpoint, save_checkpoint
from .config import check_seed
from .initialise import check_rules
from .inspecting import Inspecting
from .programs import Shared
from .running import Running, leaf_type

OPTIMIZER_KEY = "session.optimizer"
STATES_KEY = "session.optimizer_states"
_SHOWN = 20


class Leaves(MutableMapping[str, Array]):
    """The parameters or states of a session by name: read as copies, written through."""

    def __init__(self, session: Session, kind: str) -> None:
        self._session = session
        self._kind = kind

    def _names(self) -> list[str]:
        with self._session._using(f"{self._kind}s"):
            return list(self._session._leaves(self._kind))

    def __getitem__(self, name: str) -> Array:
        return self._session._read_leaf(self._kind, name, None)

    def __setitem__(self, name: str, value: Any) -> None:
        self._session._write_leaves(self._kind, {name: value})

    def __delitem__(self, name: str) -> None:
        raise ArgumentError(f"the {self._kind} '{name}' belongs to the graph: it cannot be removed")

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def __contains__(self, name: object) -> bool:
        return name in self._names()

    def update(self, other: Any = (), /, **more: Any) -> None:
        """Write several, all or none: every value is checked before the first is written."""
        self._session._write_leaves(self._kind, {**dict(other), **more})

    def __repr__(self) -> str:
        session = self._session
        types = {name: str(type_) for name, type_ in session._leaves(self._kind).items()}
        return f"<{self._kind}s {types}>"


class Session(Inspecting):
    """A graph, compiled, with its parameters: what ``build_session`` and its kin return.

    >>> import darner, numpy as np
    >>> g = darner.Graph("line")
    >>> x, y = g.input("x", (4,)), g.input("y", (4,))
    >>> w = g.parameter("w", ())
    >>> g.set_outputs([(w * x - y).square().mean(label="loss")])
    >>> with darner.build_session(g) as session:
    ...     session.set_learning_rate(0.1)
    ...     session.set_input("x", [1.0, 2.0, 3.0, 4.0])
    ...     session.set_input("y", [2.0, 4.0, 6.0, 8.0])
    ...     for _ in range(20):
    ...         session.step()
    ...     print(f"{session.read_loss():.4f} {session.parameters()['w']:.3f}")
    0.0000 2.000
    """

    # ------------------------------------------------------------- parameters and states

    def parameters(self) -> Leaves:
        """The parameters by name, live: ``session.parameters()["w"] = value`` sets one."""
        return Leaves(self, "parameter")

    def state(self) -> Leaves:
        """The states by name, live: moments and settings of the optimizer, caches, running statistics, counters."""
        return Leaves(self, "state")

    def set_parameter(self, name: str, data: Any) -> None:
        """Give a parameter values, of its shape or flat with as many; see ``set_input`` for element types."""
        self._write_leaves("parameter", {name: data}, "set_parameter")

    def get_parameter(self, name: str, out: Array | None = None) -> Array:
        """The value of a parameter, as a copy or in ``out`` (of its shape, or flat and long enough)."""
        return self._read_leaf("parameter", name, out, "get_parameter")

    read_param = get_parameter
    upload_param = set_parameter

    def initialize(self, rule: Any = "kaiming", *, seed: int | None = None) -> None:
        """Give all parameters their first values; ``rule`` as ``SessionConfig.init``, which also has the seed.

        With a mapping, parameters that no pattern fits take the rule they were declared with, or stay as they are.
        """
        with self._using("initialize"):
            check_rules(rule)
            chosen = self._config.seed if seed is None else check_seed(seed)
            self._initialise(list(self._graph.parameters), rule, chosen)

    def _leaves(self, kind: str) -> dict[str, TensorType]:
        """The types of parameters or states by name."""
        leaves = self._graph.parameters if kind == "parameter" else self._graph.states
        found = {name: leaf_type(leaf) for name, leaf in leaves.items()}
        return found if kind == "parameter" else {**found, **self._optimizer_states}

    def _read_leaf(self, kind: str, name: str, out: Array | None, method: str = "") -> Array:
        with self._using(method or f"{kind}s"):
            found = self._value(known(kind, name, self._leaves(kind)))
            return np.array(found) if out is None else into(out, found, f"{kind} '{name}'")

    def _write_leaves(self, kind: str, values: Mapping[str, Any], method: str = "") -> None:
        with self._using(method or f"{kind}s"):
            leaves, made = self._leaves(kind), {}
            for name, value in values.items():
                typed = as_value(value, leaves[known(kind, name, leaves)], f"{kind} '{name}'")
                if kind == "parameter":
                    typed = stored_value(typed, self._graph.parameters[name].attrs["storage"])
                made[name] = typed
            for name, value in made.items():
                self._shared.weights.write(self._storage[name], value)
            if kind == "parameter":
                self._shared.version += 1

    def share_parameters(self, other: Session, *, states: bool = True) -> None:
        """Use the memory of another session's parameters, and of its states of the same names.

        From then on what one session writes or learns the other has too, without copies. Both must agree on the types of
        what both have; what only this one has stays its own. Sharing with several sessions takes that they share with each
        other: with an encoder and with the whole model, say.
        """
        if not isinstance(other, Running):
            raise ArgumentError("parameters are shared with an open session")
        # Always in the same order: two sessions that share with each other must not wait for each other.
        first, second = sorted((self._shared, other._shared), key=id)
        with first.lock, second.lock, self._using("share_parameters"):
            if other.closed:
                raise ArgumentError("parameters are shared with an open session")
            if other is self:
                return
            if self._shared.sessions > 1 and other._shared is not self._shared:
                raise ArgumentError(
                    "another session shares this one's parameters already",
                    hint="let the others share from one session",
                )
            if other.device != self.device:
                raise ArgumentError(
                    f"this session is on '{self.device}', the other on '{other.device}'"
                )
            self._share(other, states)

    def _share(self, other: Session, states: bool) -> None:
        kinds = ("parameter", "state") if states else ("parameter",)
        chosen = []
        for kind in kinds:
            own, theirs = self._leaves(kind), other._leaves(kind)
            for name in own.keys() & theirs.keys():
                if own[name] != theirs[name]:
                    raise ShapeError(
                        f"{kind} '{name}' is {own[name]}, but {theirs[name]} in the other session"
                    )
                chosen.append(name)
        if not chosen:
            raise ArgumentError("the sessions have no parameter in common")
        for special in self._kept.values():  # their code has the addresses of the old memory
            special.close()
        self._drop_separate()
        self._separate = None
        for name in chosen:
            self._storage[name] = other._storage[name]
        if self._shared is not other._shared:
            other._shared.changes |= self._shared.changes
            self._shared: Shared = other._shared
            self._shared.sessions += 1

    # ------------------------------------------------------------- checkpoints

    def save_checkpoint(self, path: Path, *, metadata: Mapping[str, str] | None = None) -> None:
        """Save all parameters and states to a safetensors file, in place of what is there, whole or not at all."""
        with self._using("save_checkpoint"):
            parameters = {name: self._value(name) for name in self._graph.parameters}
            states = {name: self._value(name) for name in self._leaves("state")}
            entries = {"session.graph": self._graph.digest()}
            learns = self._optimizer or self._separate_optimizer()
            if learns is not None:
                entries[OPTIMIZER_KEY] = type(learns).__name__
                entries[STATES_KEY] = json.dumps(list(self._optimizer_states))
                if "optimizer/step" in states:
                    entries["step"] = str(int(states["optimizer/step"]))
            save_checkpoint(path, Checkpoint(parameters, states, {**entries, **(metadata or {})}))

    def load_checkpoint(self, path: Path, *, strict: bool = True) -> dict[str, str]:
        """Restore parameters and states, and return the file's metadata.

        Everything is compared first; with any mismatch nothing is changed, and the error lists all of them. Unless
        ``strict``, names that only one side has are passed over. The states of an optimizer that this session does not have
        yet wait until it is set; an inference session leaves them out.
        """
        with self._using("load_checkpoint"):
            found = _translated(path, load_checkpoint(path))
            states = dict(found.states)
            held: dict[str, Array] = {}
            if self._optimizer is None and not self._optimizer_states:
                learned = _names_in(found.metadata.get(STATES_KEY, "[]"), path)
                held = {name: np.array(states.pop(name)) for name in learned if name in states}
            wanted, needed = self._leaves("parameter"), self._leaves("state")
            if (
                found.is_foreign
            ):  # weights of another program: states are restored where it has them
                needed = {name: type_ for name, type_ in needed.items() if name in states}
            trimmed = Checkpoint(found.parameters, states, found.metadata)
            made = fit(trimmed, wanted, needed, strict=strict)
            if made.mismatches:
                raise FormatError(_listed(path, made.mismatches, found.metadata))
            optimizer = self._with_settings(made.checkpoint.states)
            for table, types in (
                (made.checkpoint.parameters, wanted),
                (made.checkpoint.states, needed),
            ):
                for name in types.keys() & table.keys():
                    self._shared.weights.write(self._storage[name], table[name])
            self._held = held if self._config.trains else {}
            self._held_for = found.metadata.get(OPTIMIZER_KEY, "")
            self._optimizer = optimizer
            self._shared.version += 1
            return dict(found.metadata)

    def _with_settings(self, states: Mapping[str, Array]) -> Optimizer | None:
        """The optimizer with the numbers that states say; one that it refuses is an error."""
        if self._optimizer is None:
            return None
        numbers: dict[str, Any] = {}
        for name in self._optimizer.settings():
            if name in self._optimizer_states and name in states:
                field = name.partition("/")[2]
                value = float(states[name])
                # A number that is the same in f32 is left as the user wrote it.
                if np.float32(getattr(self._optimizer, field)) != np.float32(value):
                    numbers[field] = value
        return replace(self._optimizer, **numbers) if numbers else self._optimizer

    if not TYPE_CHECKING:  # a type checker knows the names itself

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):
                raise AttributeError(name)
            raise missing("session", "a session has no", name, dir(type(self)))

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._closed:
            return f"<Session '{self._graph.name}', closed>"
        how = "inference"
        if self._config.trains:
            name = type(self._optimizer).__name__ if self._optimizer is not None else None
            how = f"training by {name}" if name else "loss and gradients"
        count = len(self._graph.parameters)
        return f"<Session '{self._graph.name}' on {self.device}: {how}, {count} parameters>"


def _names_in(text: str, path: Path) -> list[str]:
    """The names of an optimizer's states, as the metadata of a checkpoint has them."""
    what = f"{STATES_KEY} of '{os.fspath(path)}'"
    found = parse_json(text.encode(), what)
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise FormatError(f"{what} is no list of names, but {shown(found)}")
    return list(dict.fromkeys(found))


def _translated(path: Path, checkpoint: Checkpoint) -> Checkpoint:
    """The names of Meganeura's flat layout as this library's: ``adam_m.w`` is ``w/mean``."""
    if not checkpoint.is_foreign:
        return checkpoint
    parameters, states = dict(checkpoint.parameters), dict(checkpoint.states)
    for name in list(parameters):
        for start, end in (("adam_m.", "mean"), ("adam_v.", "variance")):
            if name.startswith(start) and name.removeprefix(start) in parameters:
                states[f"{name.removeprefix(start)}/{end}"] = parameters.pop(name)
    metadata = dict(checkpoint.metadata)
    step = metadata.get("adam_step", "")
    if states and step.isdecimal():
        if len(step) > 18 or int(step) > np.iinfo(np.int32).max:
            raise FormatError(f"'{path}' has the step {step[:40]}, which no training reaches")
        states["optimizer/step"] = np.array(int(step), np.int32)
    if states:
        metadata |= {STATES_KEY: json.dumps(list(states)), OPTIMIZER_KEY: "Adam"}
    return Checkpoint(parameters, states, metadata)


def _listed(path: Path, mismatches: tuple[str, ...], metadata: Mapping[str, str]) -> str:
    shown = [f"  {line}" for line in mismatches[:_SHOWN]]
    if len(mismatches) > _SHOWN:
        shown.append(f"  and {len(mismatches) - _SHOWN} more")
    saved = f" (it was saved with {metadata[OPTIMIZER_KEY]})" if OPTIMIZER_KEY in metadata else ""
    return "\n".join([f"'{path}' does not fit this session{saved}:", *shown])
