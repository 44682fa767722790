"""Kernels that replace a block: ``dynamic_update_slice``, which touches only the block where its result lies in place of ``x``."""

from __future__ import annotations

from math import prod

from ....codegen.elements.elements import Elements
from ....codegen.ir.index import Index
from ....codegen.ir.registers import Registers
from ....codegen.ir.types import Value
from ....lower.plan import Spec
from ....lower.specs import sizes
from ..emit.template import Code, Template
from ..emit.vectors import Source, copy_bytes, each, element_address, same_pointer, tiles
from .scatter import prepare_result

BLOCK = 256
"""Neighbours that one thread writes at least."""


def _fits(spec: Spec) -> bool:
    outputs = spec.body.outputs
    return len(outputs) == 1 and outputs[0].op.name == "dynamic_update_slice"


def _emit(code: Code) -> None:
    (node,) = code.body.outputs
    (result,) = code.results
    x, update, starts = node.operands
    whole, part = sizes(x), sizes(update)
    b, indices = code.builder, code.indices
    if not prod(whole):
        return
    prepare_result(code, x)
    if not prod(part):
        return
    if x.name is None:
        code.barrier()
    else:
        with b.if_then(b.not_(same_pointer(b, code.operand_of(x), result))):
            code.barrier()
    # Axes that the block has all of make one run with the axis before them.
    lead = max(len(part) - 1, 0)
    while lead and part[lead] == whole[lead]:
        lead -= 1
    source = Source(code, update, lead)
    elements = Elements.of(code)
    begin = [
        indices.clamp(elements.integer(starts, [axis]), 0, n - m)
        for axis, (n, m) in enumerate(zip(whole, part, strict=True))
    ]

    def tile(row: Value, first: Index, last: Index) -> None:
        index = indices.split(row, part[:lead]) if lead else []
        moved = [indices.add(i, start) for i, start in zip(index, begin, strict=False)]
        at = indices.offset([*moved, *begin[lead:]], whole)
        if source.wide:
            target = element_address(b, result, indices.add(at, first), x.dtype)
            count = indices.mul(indices.sub(last, first), x.dtype.itemsize)
            copy_bytes(b, target, source.address(index, first), count)
            return

        def emit_column(column: Value) -> None:
            Registers(b).store(source.at(index, column), result, indices.add(at, column), x.dtype)

        each(b, first, last, emit_column)

    tiles(code, prod(part[:lead]), prod(part[lead:]), BLOCK, tile)


UPDATES = Template("updates", _fits, _emit)
