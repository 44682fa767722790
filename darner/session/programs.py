"""What a session runs for one choice of sizes, how far that is, and a bounded number of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from ..backends.base.device_array import DeviceArray, Value
from ..backends.base.program import Program
from ..graph.data import Array
from ..graph.errors import InternalError, RunError
from ..graph.graph import LEAVES, Graph
from ..graph.types import TensorType
from .buildkey import BuildKey
from .copies import Copies
from .pipeline import Plans
from .preparing import Prepared, Taken

if TYPE_CHECKING:
    from ..inspect.recorder import Recorder

Sizes = tuple[tuple[str, int], ...]
"""Symbols and what they are, sorted."""

_UNSIGNED = {width: np.dtype(f"u{width}") for width in (1, 2, 4, 8)}
"""Integers without a sign, by the bytes they have."""


class ClosedError(RunError):
    """A session that was closed is used."""


class State(Enum):
    """How far a specialisation is."""

    PLANNED = "planned"
    """It has plans and no programs."""
    LOADED = "loaded"
    """Its programs are in memory; its outputs hold no results."""
    RAN = "ran"
    """Its programs are in memory, and its outputs hold the results of a step."""
    RETIRED = "retired"
    """Its programs are gone for good; the results of its last step are still read."""


# A lookup in an enum takes as long as a tenth of a small step.
_PLANNED, _LOADED, _RAN, _RETIRED = State
_MOVES = {
    _PLANNED: {_LOADED},
    _LOADED: {_RAN, _PLANNED},
    _RAN: {_LOADED, _PLANNED, _RETIRED},
    _RETIRED: set[State](),
}
"""Which states may follow: a failed step goes from ``RAN`` back to ``LOADED``, closing back to ``PLANNED``."""


@dataclass(eq=False, slots=True)
class Loaded:
    """Programs in memory, and what they were last made ready for.

    Attributes:
        program: the step.
        setup: what runs before it when parameters have changed.
        copies: of parameters, which training steps read and keep up to date, and ``setup`` makes.
        prepared: what was made of parameters, at inference.
        version: the parameters' version that it was made of.
        recorder: what times its steps while profiling is on.
        bound: which value of an input, told by its memory and how often it was set, the program has.
        ready: how often inputs had been set when it was made ready to run on them; None where it has to be again in any case.
    """

    program: Program
    setup: Program | None = None
    copies: Copies | None = None
    prepared: Prepared | Taken | None = None
    version: int = -1
    recorder: Recorder | None = None
    bound: dict[str, tuple[int, int] | None] = field(default_factory=dict)
    ready: int | None = None

    def close(self) -> None:
        """Free the programs."""
        if self.prepared is not None:
            self.prepared.close()
        self.program.close()
        if self.setup is not None:
            self.setup.close()


class Specialised:
    """The plans of a session for known sizes, and their programs while they are in memory.

    Attributes:
        plans: what it runs.
        key: under which plans and code are to be kept once they are compiled.
        saved: what its programs saved, the step's first: with it they are made again without compiling.
        inputs: the step's buffers of the user's inputs, by name.
        state: how far it is.
        loaded: its programs, in the states ``LOADED`` and ``RAN``.
        summing: what runs instead where gradients are only added up, for a later run to update parameters with.
        partner: the other of the two, whose arena it may use: never do both run at a time.
    """

    def __init__(self, plans: Plans, graph: Graph, key: BuildKey | None = None) -> None:
        self.plans = plans
        self.key = key
        self.saved = plans.saved
        leaves = plans.step.leaves("input")
        self.inputs = {name: leaves[name] for name in graph.inputs}
        self.setup_inputs = [leaves[name] for name in plans.setup_names]
        self.state = _PLANNED
        self.loaded: Loaded | None = None
        self.summing: Specialised | None = None
        self.partner: Specialised | None = None
        changed = {leaf for leaf, _ in plans.step.updates}
        places = {plans.step.buffers[leaf].place for leaf in changed}
        self.changes_parameters = "parameter" in places
        # An output that is itself a leaf is copied before leaves change, and before an input is someone else's.
        outputs = dict.fromkeys(plans.step.outputs)
        self._early = [i for i in outputs if plans.step.buffers[i].place in LEAVES]
        parted = not changed.isdisjoint(self._early)
        self._part = len(plans.step.kernels) if parted else None
        self._kept: dict[int, Array] = {}

    def _move(self, state: State) -> None:
        if state not in _MOVES[self.state]:
            raise InternalError(
                f"a specialisation that is {self.state.value} cannot be {state.value}"
            )
        self.state = state

    @property
    def program(self) -> Program | None:
        """The step, while it is in memory."""
        return None if self.loaded is None else self.loaded.program

    def pair(self, summing: Specialised) -> Specialised:
        """Take what runs instead of this in runs that only add gradients up."""
        self.summing = self.partner = summing
        summing.partner = self
        return summing

    def check(self, values: Mapping[str, Value]) -> None:
        """Refuse indices outside of what they index, before anything runs."""
        for name, (size, *others) in self.plans.step.bounds.items():
            array = values.get(name)
            if array is None or isinstance(array, DeviceArray) or not array.size:
                continue
            # Taken without signs, a number below 0 is larger than any size. Of few numbers, NumPy finds the place of the largest
            # in a fifth of the time that the largest and the least take.
            unsigned = array.view(_UNSIGNED[array.itemsize])
            if unsigned.item(unsigned.argmax()) < size:
                continue
            least, most = int(array.min()), int(array.max())
            if (least < 0 or most >= size) and others:
                used = array[~np.isin(array, others)]
                least, most = (int(used.min()), int(used.max())) if used.size else (0, 0)
            if least < 0 or most >= size:
                raise RunError(
                    f"input '{name}' has the index {least if least < 0 else most}, "
                    f"which is outside 0..{size - 1}"
                )

    def made_indices(self, program: Program) -> dict[str, Array]:
        """Inputs that are indices, and that the setup made of parameters."""
        pairs = zip(self.plans.setup_names, self.setup_inputs, strict=True)
        bounds = self.plans.step.bounds
        return {name: program.read(buffer) for name, buffer in pairs if name in bounds}

    def gradient_buffer(self, name: str) -> int | None:
        """The buffer of a parameter's gradient, where it is an output."""
        if name not in self.plans.gradients:
            return None
        return self.plans.step.outputs[self.plans.outputs + self.plans.gradients.index(name)]

    # ------------------------------------------------------------- from state to state

    def load(self, loaded: Loaded) -> None:
        """Have programs in memory."""
        self._move(_LOADED)
        self.loaded = loaded

    def execute(self, loaded: Loaded) -> None:
        """One step."""
        program = loaded.program
        runs = program.run if loaded.recorder is None else loaded.recorder.run
        try:
            runs(0, self._part)
            if self._early:
                program.sync()
                self._kept = {i: program.read(i) for i in self._early}
                if self._part is not None:
                    runs(self._part, None)
        except BaseException as error:
            # What lies in the arena is no step's. An interrupt comes when a native call is over, and so after the step, unless functions of the user's part it.
            if isinstance(error, Exception) or self.plans.step.host_kernels:
                self._fail()
                if self.partner is not None:
                    self.partner._fail()
            raise
        if self.state is not _RAN:
            self._move(_RAN)

    def _fail(self) -> None:
        """Results that were there are there no more."""
        if self.state is _RAN:
            self._move(_LOADED)

    @property
    def has_results(self) -> bool:
        """Whether the outputs of a step can be read."""
        return self.state is _RAN or self.state is _RETIRED

    @property
    def retired(self) -> bool:
        """Whether it only holds the results of a step, and runs no more."""
        return self.state is _RETIRED

    def value(self, buffer: int) -> Array:
        """An output's memory as it stands after a step."""
        if buffer in self._kept or self.loaded is None:
            return self._kept[buffer]
        program = self.loaded.program
        program.sync()
        return program.arrays[buffer]

    def on_device(self, buffer: int, *, copy: bool) -> DeviceArray | None:
        """An output on the device; None where it is there no more, or cannot be read there."""
        if buffer in self._kept or self.loaded is None:
            return None
        program = self.loaded.program
        program.sync()
        return program.on_device(buffer, copy=copy)

    def retire(self) -> None:
        """Free the programs, but let what they made still be read."""
        if self.state is _RAN:
            self._kept = {i: np.array(self.value(i)) for i in self.plans.step.outputs}
            self._free(_RETIRED)

    def close(self) -> None:
        """Free the programs; they are made again when they are needed. What is retired stays so."""
        if self.summing is not None:
            self.summing.close()
        if self.loaded is not None:
            self._kept = {}
            self._free(_PLANNED)

    def _free(self, state: State) -> None:
        loaded, self.loaded = self.loaded, None
        self._move(state)
        if loaded is not None:
            loaded.close()


class Kept:
    """The specialisations used last."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._specials: OrderedDict[Sizes, Specialised] = OrderedDict()

    def __len__(self) -> int:
        return len(self._specials)

    def get(self, sizes: Sizes) -> Specialised | None:
        """The specialisation for these sizes, which is then the one used last."""
        found = self._specials.get(sizes)
        if found is not None:
            self._specials.move_to_end(sizes)
        return found

    def put(self, sizes: Sizes, special: Specialised) -> None:
        """Keep one; the one that was not used for the longest time goes."""
        self._specials[sizes] = special
        self._specials.move_to_end(sizes)
        while len(self._specials) > self.limit:
            _, old = self._specials.popitem(last=False)
            old.close()

    def values(self) -> list[Specialised]:
        """All of them, the one used last at the end."""
        return list(self._specials.values())

    def take_all(self) -> list[Specialised]:
        """Keep none any more; whoever takes them closes them."""
        taken, self._specials = self.values(), OrderedDict()
        return taken

    def clear(self) -> None:
        """Close all and keep none."""
        for special in self.take_all():
            special.close()


def input_types(graph: Graph) -> Mapping[str, TensorType]:
    """The types of the inputs, by name."""
    return {name: TensorType(leaf.shape, leaf.dtype) for name, leaf in graph.inputs.items()}
