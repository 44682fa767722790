"""What steps read in place of parameters is made weight by weight, and what no step reads any more is given back to the system.

An inference session has each weight up to three times: as it was given, side by side with others, and in the order that its kernels like. It needs one. The others
are read back from that one when somebody asks for them (``Weights``), bit for bit; where that is not possible, they stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from ..backends.base.blocks import Block, find_block
from ..backends.base.mirrors import changed, refresh
from ..backends.base.program import Program
from ..graph.data import Array
from ..graph.node import Node
from ..io.memory import reclaim, release, trim
from ..lower.plan import Kernel
from ..lower.specs import operand_number

Recovery = Callable[[], Array]


class Weights:
    """Which arrays of parameters hold their values, and who has those of the others."""

    def __init__(self) -> None:
        self.writes = 0
        """How many times a value was given from outside of a step."""
        self._away: dict[int, tuple[Array, object, Recovery]] = {}
        self._stays: set[int] = set()

    def read(self, array: Array) -> Array:
        """The value of a parameter, which is not to be written: its array itself, or a copy."""
        found = self._away.get(id(array))
        return refresh(array) if found is None else found[2]()

    def write(self, array: Array, value: Array) -> None:
        """Give a parameter another value."""
        if id(array) in self._away:
            reclaim(array)
        array[...] = value
        changed(array)
        self.writes += 1
        self._away.pop(id(array), None)

    def fill(self, array: Array) -> None:
        """Let an array hold its value."""
        found = self._away.get(id(array))
        if found is not None:
            self.write(array, found[2]())

    def keep(self, array: Array) -> None:
        """Let an array hold its value from now on."""
        self._stays.add(id(array))
        self.fill(array)

    def give_back(self, array: Array, owner: object, recovery: Recovery) -> None:
        """Give the memory of an array back, if nobody needs it: its value is where ``recovery`` finds it."""
        if id(array) not in self._stays:
            self._away[id(array)] = (array, owner, recovery)
            release(array)

    def leave(self, owner: object) -> list[Array]:
        """Let the arrays hold their values whose values this one has, and return them."""
        found = [array for array, other, _ in self._away.values() if other is owner]
        for array in found:
            self.fill(array)
        return found

    def forget(self) -> None:
        """Nobody will read anything any more."""
        self._away.clear()


class Taken:
    """What a step's program on a device reads in place of parameters: the outputs of another program there, where they lie.

    Args:
        step: the program of the step.
        setup: what computes from parameters alone, if anything does.
        inputs: the step's inputs that the outputs of ``setup`` are, in their order.
    """

    def __init__(self, step: Program, setup: Program | None, inputs: Sequence[int]) -> None:
        self._step, self._setup = step, setup
        if setup is not None:
            for output, buffer in zip(setup.plan.outputs, inputs, strict=True):
                step.take(buffer, setup, output)

    def run(self) -> None:
        """Make everything anew from the parameters as they are."""
        if self._setup is not None:
            self._setup.run()
            self._step.prepare()

    def fill(self) -> None:
        """Everything holds its value."""

    def close(self) -> None:
        """Nothing is held that is not the programs'."""


class Prepared:
    """What a step's program reads in place of parameters.

    Args:
        step: the program of the step.
        setup: what computes from parameters alone, if anything does.
        inputs: the step's inputs that the outputs of ``setup`` are, in their order.
        weights: of the session, and of all that share with it.
    """

    def __init__(
        self, step: Program, setup: Program | None, inputs: Sequence[int], weights: Weights
    ) -> None:
        self._step = step
        self._setup = setup
        self._parameters = step.plan.leaves("parameter")
        self._weights = weights
        self._owner = (
            object()
        )  # not itself: the weights would hold what holds them, and neither be freed at once
        self._ran = False
        self._inputs: dict[int, list[int]] = {}
        self._joined: dict[str, Recovery] = {}
        self._in_blocks: set[str] = set()
        if setup is not None:
            for output, buffer in zip(setup.plan.outputs, inputs, strict=True):
                self._inputs.setdefault(output, []).append(buffer)
            for kernel in setup.plan.kernels:
                self._joined |= self._parts_of(setup, kernel)

    def run(self) -> None:
        """Make everything anew from the parameters as they are.

        What has to be read back for it a second time changes by and by: it stays.
        """
        for array in self._weights.leave(self._owner):
            if self._ran:
                self._weights.keep(array)
        if not self._ran:
            trim()
        waiting = dict.fromkeys(self._parameters)
        if self._setup is not None:
            self._run_setup(self._setup, waiting)
        for name in waiting:
            self._finish(name)
        self._ran = True

    def fill(self) -> None:
        """Let all that the step knows of, packed or not, hold its value in the order it was given."""
        for buffer in self._parameters.values():
            self._weights.fill(self._step.arrays[buffer])
        if self._setup is not None:
            self._setup.run()

    def close(self) -> None:
        """Let parameters hold their values again that nobody else has."""
        self._weights.leave(self._owner)

    # ------------------------------------------------------------- making it

    def _run_setup(self, setup: Program, waiting: dict[str, None]) -> None:
        """Kernel by kernel. A parameter that no other will read is finished at once, and no longer ``waiting``."""
        plan = setup.plan
        last = {i: k for k, kernel in enumerate(plan.kernels) for i in _touched(kernel)}
        self._in_blocks.clear()
        for output in self._inputs.keys() - last.keys():
            self._take(setup, output)
        for number, kernel in enumerate(plan.kernels):
            done = [i for i in dict.fromkeys(_touched(kernel)) if last[i] == number]
            block = self._block(setup, kernel)
            if block is not None:
                block.fill()
                self._give(kernel.results[0], block.array)
                done.remove(kernel.results[0])
            else:
                for buffer in kernel.operands:
                    if plan.buffers[buffer].place == "parameter":
                        self._weights.fill(setup.storage[str(plan.buffers[buffer].name)])
                setup.run(number, number + 1)
            for buffer in self._inputs.keys() & done:
                self._take(setup, buffer)
            for buffer in done:
                if plan.buffers[buffer].place == "parameter":
                    name = str(plan.buffers[buffer].name)
                    waiting.pop(name)
                    self._finish(name)

    def _take(self, setup: Program, output: int) -> None:
        """Let the step have an output of the setup, whose memory is given back where only what the step makes of it is read."""
        array = setup.arrays[output]
        self._give(output, array)
        if self._step.reads.isdisjoint(self._inputs[output]):
            release(array)

    def _give(self, output: int, array: Array) -> None:
        """Let the step read an output of the setup where it lies, and make what it wants of it."""
        for buffer in self._inputs[output]:
            self._step.bind(buffer, array)
            self._step.prepare(buffer)

    def _block(self, setup: Program, kernel: Kernel) -> Block | None:
        """The block in which a training step already has what a kernel of the setup would put side by side."""
        (output, *others), plan = kernel.results, setup.plan
        made = plan.spec(kernel).body.outputs[0]
        if others or made.op.name != "concat" or output not in self._inputs:
            return None
        if any(operand.op.name != "input" for operand in made.operands) or setup.plan.updates:
            return None
        again = any(output in one.operands for one in plan.kernels)
        buffers = [plan.buffers[kernel.operands[operand_number(x)]] for x in made.operands]
        if again or any(buffer.place != "parameter" for buffer in buffers):
            return None
        names = [str(buffer.name) for buffer in buffers]
        found = find_block([setup.storage[name] for name in names], made.attrs["axis"])
        if found is not None:
            self._in_blocks.update(names)
        return found

    def _finish(self, name: str) -> None:
        """Let the step make what it wants of a parameter, which is given back if it can be read from that."""
        buffer = self._parameters[name]
        if name in self._in_blocks:
            return
        array = self._step.arrays[buffer]
        self._weights.fill(array)
        self._step.prepare(buffer)
        recovery = self._step.recovery(buffer) or self._joined.get(name)
        if recovery is not None:
            self._weights.give_back(array, self._owner, recovery)

    # ------------------------------------------------------------- reading back

    def _parts_of(self, setup: Program, kernel: Kernel) -> dict[str, Recovery]:
        """How the parameters are read back that a kernel of the setup only puts side by side."""
        (output, *others), plan = kernel.results, setup.plan
        if others or output not in self._inputs:
            return {}
        recovery = self._whole(setup, output)
        if recovery is None:
            return {}
        arranged = plan.spec(kernel).body.outputs[0]
        nothing = np.broadcast_to(np.uint8(0), setup.arrays[output].shape)
        found: dict[str, Recovery] = {}
        for position in dict(_apart(arranged, nothing)):
            buffer = plan.buffers[kernel.operands[position]]
            if buffer.place == "parameter":
                found[str(buffer.name)] = partial(_part, arranged, position, recovery)
        return found

    def _whole(self, setup: Program, output: int) -> Recovery | None:
        """What gives an output of the setup after the step has taken it."""
        if not self._step.reads.isdisjoint(self._inputs[output]):
            array = setup.arrays[output]
            return lambda: array
        found = (self._step.recovery(buffer) for buffer in self._inputs[output])
        return next((one for one in found if one is not None), None)


def _touched(kernel: Kernel) -> tuple[int, ...]:
    return (*kernel.operands, *kernel.results)


def _part(arranged: Node, position: int, whole: Recovery) -> Array:
    return dict(_apart(arranged, whole()))[position]


def _apart(node: Node, whole: Array) -> Iterator[tuple[int, Array]]:
    """The inputs of a kernel that a value of its body is only an arrangement of, and their parts of it."""
    name = node.op.name
    if name == "input":
        yield operand_number(node), whole
    elif name == "concat":
        axis = node.attrs["axis"]
        ends = np.cumsum([operand.shape[axis] for operand in node.operands])
        for operand, part in zip(node.operands, np.split(whole, ends[:-1], axis), strict=True):
            yield from _apart(operand, part)
    elif name == "transpose":
        back = np.argsort(node.attrs["perm"])
        yield from _apart(node.operands[0], whole.transpose(back))
    elif name == "reshape":
        yield from _apart(node.operands[0], whole.reshape(node.operands[0].shape))
