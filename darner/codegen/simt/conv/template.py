"""Convolutions and both their gradients: products of matrices of which one operand, the patches of images, is never stored.

``images`` has the convolution and its gradient towards the input, ``weight_gradient`` that towards the weight, ``depthwise`` all three where every channel is convolved by itself.
"""

from __future__ import annotations

from math import prod

from ....graph import dtypes
from ....graph.errors import InternalError
from ....graph.node import Node
from ....lower.plan import Spec
from ....lower.specs import sizes
from ....lower.strided import Strided, row_major, strided
from ...ir.index import Number
from ...problems.conv import CONVOLUTIONS
from ..builder import Operand
from ..dispatch import Written
from ..machine import Machine
from ..main_node import MainElements, is_bound, main_of, main_stages
from ..template import Template
from . import depthwise as conv_depthwise
from . import images as conv_images
from . import weight_gradient as conv_weights

MOST_RANK = 5
"""Images of up to three axes: what the shared tables have places for."""


def _seen(main: Node) -> list[Strided] | None:
    """The operands as they lie in memory, without gaps."""
    found = []
    for operand in main.operands:
        seen = strided(operand, widened=True)
        if seen is None or seen.base.op.name != "input" or not all(sizes(operand)[1:]):
            return None
        if seen.strides != row_major(sizes(operand)):
            return None
        found.append(seen)
    return found


def _fits(spec: Spec, machine: Machine) -> bool:
    main = main_of(spec, CONVOLUTIONS)
    if main is None or not main.dtype.is_float or not is_bound(spec, machine, besides=2):
        return False
    if any(item.dtype is not main.dtype for item in main.operands):
        return False
    if main.dtype is dtypes.f64 and not machine.wide:
        return False
    return main.rank <= MOST_RANK and _seen(main) is not None


def _write(spec: Spec, machine: Machine) -> Written:
    main = main_of(spec, CONVOLUTIONS)
    seen = _seen(main) if main is not None else None
    if main is None or seen is None:
        raise InternalError("a kernel of convolutions without a convolution")
    if not prod(sizes(main)):
        return Written(())
    if not all(prod(sizes(operand)) for operand in main.operands):
        return Written(tuple(main_stages(spec, machine, main, lambda _: _nothing)))
    if conv_depthwise.fits(main):
        return conv_depthwise.write(spec, machine, main, seen)
    form = conv_weights if main.op.name == "conv_weight_grad" else conv_images
    return form.write(spec, machine, main, seen)


def _nothing(e: MainElements, index: list[Number]) -> Operand:
    """A sum over no images."""
    return e.registers.constant(0.0, e.main.dtype)


CONV = Template("conv", _fits, _write)
