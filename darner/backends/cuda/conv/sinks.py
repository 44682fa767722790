"""What becomes of the sums of a convolution's products."""

from __future__ import annotations

from ....codegen.simt.contract.epilogue import Parts, Results, sum_of_parts
from ....codegen.simt.contract.product import Product
from ....codegen.simt.contract.tiles import SinkOf
from ....codegen.simt.dispatch import Dispatch, Stage
from ....lower.plan import Spec
from ..machine import Machine


def sink_of(dispatch: Dispatch, product: Product, parts: int) -> SinkOf:
    """What takes the sums of a part: the results, where there is one."""
    if parts == 1:
        return lambda part: Results(dispatch, product)
    return lambda part: Parts(dispatch, product, part, parts)


def with_parts_added(spec: Spec, machine: Machine, product: Product, parts: int) -> list[Stage]:
    """The launch that adds up parts of sums, where there are several."""
    if parts == 1:
        return []
    second = Dispatch(spec, machine, threads=64, whole=product.in_fours)
    return [sum_of_parts(second, product, parts)]
