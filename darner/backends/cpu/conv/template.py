"""Convolutions and both their gradients as native code.

All are matrix products in which one operand, the patches of an image, is never stored whole. ``driver`` packs a few patches at a time, and ``weight_gradient`` does for the
gradient towards the weight. Where channels are few, ``direct`` and ``dots`` read the images in place, and where images are small, ``channel_lanes`` does. ``depthwise``
goes over the rows of images, and ``winograd`` computes 3x3 convolutions of many channels with a quarter of the products.
"""

from __future__ import annotations

from math import prod
from types import ModuleType

from ....codegen.ir.emit import offset
from ....codegen.ir.types import ACCUMULATOR, Pointer
from ....codegen.problems.conv import CONVOLUTIONS
from ....codegen.problems.nodes import only_node
from ....graph.errors import InternalError
from ....graph.node import Node
from ....lower.plan import Spec
from ....lower.specs import operand_number, sizes
from ....lower.strided import row_major, strided
from ..emit.template import Code, Packing, Scratch, Template
from ..runtime.jit import Machine
from . import channel_lanes as conv_lanes
from . import depthwise as conv_depthwise
from . import direct as conv_direct
from . import dots as conv_dots
from . import driver as conv_driver
from . import weight_gradient as conv_weights
from .depthwise import is_depthwise
from .epilogue import Finish
from .winograd import forward as winograd
from .winograd import weight_gradient as winograd_weights
from .winograd.plan import winograd_of


def _main(spec: Spec) -> Node | None:
    """The only convolution of a body."""
    return only_node(spec, CONVOLUTIONS)


def _fits(spec: Spec) -> bool:
    main = _main(spec)
    if main is None or spec.kind != "contract":
        return False
    if (
        any(item.dtype is not main.dtype for item in main.operands)
        or main.dtype.name not in ACCUMULATOR
    ):
        return False
    for operand in main.operands:
        seen = strided(operand)
        if seen is None or seen.base.op.name != "input" or not all(sizes(operand)[1:]):
            return False
        if seen.strides != row_major(sizes(operand)):
            return False
    return _finish(spec, main).possible


def _finish(spec: Spec, main: Node) -> Finish:
    return Finish(spec.body, main, 1 if main.op.name == "conv_weight_grad" else 2)


def _scratch(spec: Spec, machine: Machine) -> Scratch:
    main = _main(spec)
    if main is None or not prod(sizes(main)):
        return Scratch()
    if is_depthwise(main):
        return conv_depthwise.Layout(main, machine).scratch
    # Whether weights will come packed is not known here: there is memory for both ways.
    ways = [_way_scratch(spec, main, machine, packed) for packed in (False, True)]
    return Scratch(max(way.own for way in ways), max(way.shared for way in ways))


def _way_scratch(spec: Spec, main: Node, machine: Machine, packed: bool) -> Scratch:
    weights = main.op.name == "conv_weight_grad"
    form = winograd_of(main, machine, packed)
    if form is not None:
        return (winograd_weights if weights else winograd).scratch(form)
    if weights:
        return _weights_form(main, machine).Layout(main, machine).scratch
    way = _form(main, machine, packed)
    if way is conv_driver:
        return conv_driver.Layout(main, machine, _finish(spec, main).plain).scratch
    if way is conv_lanes:
        return conv_lanes.Layout(main, machine, packed).scratch
    return conv_direct.Layout(main, machine).scratch


def _weights_form(main: Node, machine: Machine) -> ModuleType:
    """Who computes a gradient towards the weight: with channels in lanes, or with pixels."""
    dots = conv_dots.Layout(main, machine)
    quicker = dots.cycles < conv_weights.Layout(main, machine).cycles
    return conv_dots if dots.grid.possible and quicker else conv_weights


def _form(main: Node, machine: Machine, packed: bool) -> ModuleType:
    """Who computes a convolution, or its gradient towards the input: patches are packed, or images read in place, with pixels in lanes or with channels.

    Where weights are ``packed`` before, it is who packed them.
    """
    cycles = {conv_driver: conv_driver.Layout(main, machine, plain=True).cycles}
    direct = conv_direct.Layout(main, machine)
    lanes = conv_lanes.Layout(main, machine, packed)
    if direct.possible:
        cycles[conv_direct] = direct.cycles
    if lanes.possible:
        cycles[conv_lanes] = lanes.cycles
    return min(cycles, key=lambda form: cycles[form])


def _emit(code: Code) -> None:
    main = _main(code.spec)
    if main is None or not prod(sizes(main)):
        return
    finish = _finish(code.spec, main)
    operands = _address(code, main.operands[0]), _address(code, main.operands[1])
    if is_depthwise(main):
        conv_depthwise.Driver(code, main, operands, finish).emit()
    elif (form := winograd_of(main, code.machine, code.packed)) is not None:
        weights = main.op.name == "conv_weight_grad"
        (winograd_weights if weights else winograd).Driver(code, form, operands, finish).emit()
    elif main.op.name == "conv_weight_grad":
        _weights_form(main, code.machine).Driver(code, main, operands, finish).emit()
    else:
        _form(main, code.machine, code.packed).Driver(code, main, operands, finish).emit()


def _packing(spec: Spec, machine: Machine) -> Packing | None:
    """The weights of Winograd's form, or in panels, where nothing else reads them."""
    main = _main(spec)
    if main is None or main.op.name == "conv_weight_grad" or not prod(sizes(main)):
        return None
    weights = main.operands[1]
    uses = [node for node in spec.body.nodes if weights.id in node.inputs]
    if weights.op.name != "input" or len(uses) != 1 or is_depthwise(main):
        return None
    operand = operand_number(weights)
    form = winograd_of(main, machine, packed=True)
    if form is not None:
        return winograd.packing(form, operand)
    if _form(main, machine, packed=True) is conv_lanes:
        return conv_lanes.packing(main, machine, operand)
    return None


def _address(code: Code, node: Node) -> Pointer:
    seen = strided(node)
    if seen is None:
        raise InternalError(f"'{node.op.name}' is an operand without an address")
    return offset(code.builder, code.operand_of(seen.base), node.dtype.name, seen.offset)


CONV = Template("conv", _fits, _emit, _scratch, _packing)
