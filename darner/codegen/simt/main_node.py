"""Kernels about one node, their main node: what its elements are is written by the kernel, all that is computed from them by the elements' walk."""

from __future__ import annotations

from collections.abc import Callable, Collection

from ...graph.node import Node
from ...lower.plan import Spec
from ...lower.specs import sizes
from ..elements.elements import can_emit
from ..ir.index import Number
from ..problems.nodes import only_node
from .builder import Operand
from .dispatch import Dispatch, Stage
from .elements import ThreadElements
from .machine import Machine
from .maps.template import stages_of

Element = Callable[["MainElements", list[Number]], Operand]
"""Writes the element of a main node at an index."""


def main_of(spec: Spec, names: Collection[str]) -> Node | None:
    """The only node of a body that is one of these ops, where all results have its shape and the rest of the body can be written."""
    found = only_node(spec, names)
    if found is None or any(sizes(out) != sizes(found) for out in spec.body.outputs):
        return None
    return found if can_emit(spec.body, names) else None


def is_bound(spec: Spec, machine: Machine, besides: int = 1) -> bool:
    """Whether a dispatch can have all operands and results bound, and some more."""
    return len(spec.inputs) + len(spec.body.outputs) + besides <= machine.most_buffers


class MainElements(ThreadElements):
    """The elements of a body whose main node a kernel writes itself."""

    main: Node
    element: Element

    def _element(self, node: Node, index: list[Number]) -> Operand:
        if node.id == self.main.id:
            return self.element(self, index)
        return super()._element(node, index)


def main_stages(
    spec: Spec, machine: Machine, main: Node, element: Callable[[Dispatch], Element]
) -> list[Stage]:
    """A thread for each element of the results; ``element(dispatch)`` says what the main node's are."""

    def elements(dispatch: Dispatch) -> ThreadElements:
        found = MainElements(dispatch.builder, dispatch.body, dispatch.operands, dispatch.fault)
        found.main, found.element = main, element(dispatch)
        return found

    return stages_of(spec, machine, elements)
