"""What a session runs for one choice of sizes, and a bounded number of them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ..backends.base.memory import together
from ..backends.base.program import Program
from ..graph.data import Array
from ..graph.errors import RunError
from ..graph.forks import watch
from ..graph.graph import LEAVES, Graph
from ..graph.types import TensorType
from ..lower.plan import Buffer
from .buildkey import BuildKey
from .config import SessionConfig
from .pipeline import Pipeline, Plans
from .preparing import Prepared, Taken, Weights

if TYPE_CHECKING:
    from .recorder import Recorder

Sizes = tuple[tuple[str, int], ...]
"""Symbols and what they are, sorted."""

_UNSIGNED = {width: np.dtype(f"u{width}") for width in (1, 2, 4, 8)}
"""Integers without a sign, by the bytes they have."""


class ClosedError(RunError):
    """A session that was closed is used."""


@dataclass(eq=False)
class Shared:
    """What sessions that use the same memory have in common.

    Attributes:
        lock: who reads or writes the memory, or runs, holds it.
        version: counts changes of parameters.
        weights: which parameters hold their values.
        sessions: how many there are.
        changes: whether steps change parameters or states.
        torn: whether this process was forked while another thread may have been changing them.
    """

    lock: threading.RLock = field(default_factory=threading.RLock)
    version: int = 0
    weights: Weights = field(default_factory=Weights)
    sessions: int = 1
    changes: bool = False
    torn: bool = False

    def __post_init__(self) -> None:
        watch(self)

    def after_fork(self) -> None:
        """In a forked child the thread that holds a lock does not exist: nobody would ever let it go."""
        if self.lock.acquire(blocking=False):
            self.lock.release()
            return
        self.lock = threading.RLock()
        self.torn = self.changes


class Specialised:
    """The plans of a session for known sizes, and their programs once they are compiled.

    Attributes:
        plans: what it runs.
        key: under which plans and code are to be kept once they are compiled.
        saved: what its programs saved, the step's first: with it they are made again without compiling.
        inputs: the step's buffers of the user's inputs, by name.
        program: the step, compiled.
        setup: what runs before it when parameters have changed, compiled.
        prepared: what was made of parameters, at inference.
        version: the parameters' version that it was made of.
        recorder: what times its steps while profiling is on.
        summing: what runs instead where gradients are only added up, for a later run to update parameters with.
        partner: the other of the two, whose arena it may use: never do both run at a time.
        bound: which value of an input, told by its memory and how often it was set, the program has.
        ready: how often inputs had been set when it was made ready to run on them; None where it has to be again in any case.
        ran: whether the outputs hold the results of a run.
    """

    def __init__(self, plans: Plans, graph: Graph, key: BuildKey | None = None) -> None:
        self.plans = plans
        self.key = key
        self.saved = plans.saved
        leaves = plans.step.leaves("input")
        self.inputs = {name: leaves[name] for name in graph.inputs}
        self.setup_inputs = [leaves[name] for name in plans.setup_names]
        self.program: Program | None = None
        self.setup: Program | None = None
        self.prepared: Prepared | Taken | None = None
        self.recorder: Recorder | None = None
        self.summing: Specialised | None = None
        self.partner: Specialised | None = None
        self.version = -1
        self.ready: int | None = None
        self.ran = False
        self.bound: dict[str, tuple[int, int] | None] = {}
        changed = {leaf for leaf, _ in plans.step.updates}
        places = {plans.step.buffers[leaf].place for leaf in changed}
        self.changes_parameters = "parameter" in places
        # An output that is itself a leaf is copied before leaves change, and before an input is someone else's.
        outputs = dict.fromkeys(plans.step.outputs)
        self._early = [i for i in outputs if plans.step.buffers[i].place in LEAVES]
        self._parted = not changed.isdisjoint(self._early)
        self._kept: dict[int, Array] = {}

    def pair(self, summing: Specialised) -> Specialised:
        """Take what runs instead of this in runs that only add gradients up."""
        self.summing = self.partner = summing
        summing.partner = self
        return summing

    def check(self, values: Mapping[str, Array]) -> None:
        """Refuse indices outside of what they index, before anything runs."""
        for name, (size, *others) in self.plans.step.bounds.items():
            array = values.get(name)
            if array is None or not array.size:
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

    def execute(self, program: Program) -> None:
        """One step."""
        count = len(self.plans.step.kernels)
        runs = program.run if self.recorder is None else self.recorder.run
        try:
            runs(0, count if self._parted else None)
            if self._early:
                program.sync()
                self._kept = {i: program.read(i) for i in self._early}
            if self._parted:
                runs(count, None)
        except Exception:
            # What lies in the arena is no step's. An interrupt comes when a native call is over, and is no exception of this kind.
            self.ran = False
            if self.partner is not None:
                self.partner.ran = False
            raise
        self.ran = True

    def value(self, buffer: int) -> Array:
        """An output's memory as it stands after a step."""
        if buffer in self._kept or self.program is None:
            return self._kept[buffer]
        self.program.sync()
        return self.program.arrays[buffer]

    @property
    def retired(self) -> bool:
        """Whether it only holds the results of a run, and runs no more."""
        return self.ran and self.program is None

    def retire(self) -> None:
        """Free the programs, but let what they made still be read."""
        if self.ran and not self.retired:
            self._kept = {i: np.array(self.value(i)) for i in self.plans.step.outputs}
            self._free()

    def close(self) -> None:
        """Free the programs; they are compiled again when they are needed."""
        if self.summing is not None:
            self.summing.close()
        if not self.retired:
            self._free()
            self.ran = False

    def _free(self) -> None:
        if self.prepared is not None:
            self.prepared.close()
        for program in (self.program, self.setup):
            if program is not None:
                program.close()
        self.program = self.setup = self.prepared = self.recorder = None
        self.version, self.ready = -1, None
        self.bound = {}


class Kept:
    """The specialisations used last, and the pipelines they came from."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._specials: OrderedDict[Sizes, Specialised] = OrderedDict()
        self._pipelines: OrderedDict[Sizes, Pipeline] = OrderedDict()

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

    def pipeline(self, sizes: Sizes, graph: Graph, config: SessionConfig) -> Pipeline:
        """The pipeline for these sizes, kept as long as its specialisation could be."""
        found = self._pipelines.get(sizes)
        if found is None:
            bound = graph.bind(dict(sizes)) if sizes else graph
            found = self._pipelines[sizes] = Pipeline(bound, config)
        self._pipelines.move_to_end(sizes)
        while len(self._pipelines) > self.limit:
            self._pipelines.popitem(last=False)
        return found

    def values(self) -> list[Specialised]:
        """All of them, the one used last at the end."""
        return list(self._specials.values())

    def clear(self) -> None:
        """Drop the specialisations; the pipelines stay."""
        for special in self._specials.values():
            special.close()
        self._specials.clear()


def allocate(type_: TensorType, what: str) -> Array:
    """Memory for a value that every program of a session uses; ``what`` it is an error says."""
    return allocate_all({"": (type_, 0.0)}, what)[""]


def allocate_all(
    leaves: Mapping[str, tuple[TensorType, float]],
    what: str = "parameters and states",
) -> dict[str, Array]:
    """Memory for parameters or states, given by their types and what they are at first, in one piece."""
    from ..backends.base.memory import empty_like

    buffers = {
        name: Buffer(type_, "state", "", init=init) for name, (type_, init) in leaves.items()
    }
    rooms = together([buffer.nbytes for buffer in buffers.values()], what)
    pairs = zip(buffers.items(), rooms, strict=True)
    return {name: empty_like(buffer, room) for (name, buffer), room in pairs}


def input_types(graph: Graph) -> Mapping[str, TensorType]:
    """The types of the inputs, by name."""
    return {name: TensorType(leaf.shape, leaf.dtype) for name, leaf in graph.inputs.items()}
