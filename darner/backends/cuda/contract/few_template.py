"""Products of a few rows with a large matrix: which specs, and the launches (``few``)."""

from __future__ import annotations

from functools import partial
from typing import cast

from ....codegen.simt.contract.epilogue import sum_of_parts
from ....codegen.simt.contract.product import Product, part_bytes
from ....codegen.simt.dispatch import Dispatch, Written
from ....codegen.simt.machine import Machine as AnyMachine
from ....codegen.simt.template import Template, Variants
from ....graph.errors import InternalError
from ....lower.plan import Spec
from ..instructions.stream import streaming_of
from ..instructions.warp import cores_of
from ..machine import Machine
from ..printer import Printer
from .ahead import bring_operand
from .dots import step_of
from .few import MOST_ROWS, FewCut, FewKernel, cuts_of, few_blocks
from .operands import Layout, layout_of
from .template import memory_product, sink_of

LEAST = 1 << 14
"""Elements of the matrix from which on it is worth more than a thread for each result."""
MOST_VARIANTS = 8
"""Ways to share a product out that are worth a try."""


def few_product(spec: Spec, machine: Machine) -> tuple[Product, Layout] | None:
    """The product of a spec with few rows as its rows, and how the matrix lies; None where it is no such product, or the matrix does not lie in whole 16 bytes."""
    product = memory_product(spec, machine, halves=True)
    if product is None:
        return None
    few = product if product.m <= product.n or product.halves else product.turned()
    if few.m > MOST_ROWS or few.n * few.k < LEAST:
        return None
    layout = layout_of(few, 1)
    if layout is None or (layout.along == "summed" and few.k % layout.piece):
        return None
    pieces = layout.piece if layout.along == "free" else 1
    if few.halves and few.n // 2 % pieces:
        return None
    return few, layout


def write_few(
    spec: Spec, machine: Machine, product: Product, layout: Layout, cut: FewCut
) -> Written:
    """The launches of a product."""
    dispatch = Dispatch(spec, machine, threads=cut.threads, whole=product.taken.in_fours)
    bring_operand(dispatch, product, few_blocks(product, step_of(layout), cut))
    cores = cores_of(dispatch.builder, machine, 0)
    streaming = streaming_of(dispatch.builder, machine)
    joined = cut.parts == 1 or streaming.clusters
    if joined and cut.parts > 1:
        cast(Printer, dispatch.builder).cluster = (cut.parts, 1, 1)
    kernel = FewKernel(dispatch, product, cut, layout, (cores, streaming))
    rows = layout_of(product, 0, transposed=False)
    if rows is not None and product.k % rows.piece:
        rows = None
    kernel.write(sink_of(dispatch, product, 1 if joined else cut.parts), rows)
    first = dispatch.finish(kernel.groups)
    if joined:
        return Written((first,))
    second = Dispatch(spec, machine, threads=64, whole=product.in_fours)
    stages = first, sum_of_parts(second, product, cut.parts)
    return Written(stages, cut.parts * part_bytes(product))


def _fits(spec: Spec, machine: AnyMachine) -> bool:
    if not isinstance(machine, Machine):
        return False
    found = few_product(spec, machine)
    return found is not None and bool(cuts_of(*found, machine))


def _write(spec: Spec, machine: AnyMachine) -> Written:
    return next(iter(_variants(spec, machine).values()))()


def _variants(spec: Spec, machine: AnyMachine) -> Variants:
    """The ways to write a product, by their names: what is expected to be best first."""
    found = few_product(spec, machine) if isinstance(machine, Machine) else None
    if found is None or not isinstance(machine, Machine):
        raise InternalError("a kernel that is no product of a few rows came to their template")
    product, layout = found
    return {
        cut.name: partial(write_few, spec, machine, product, layout, cut)
        for cut in cuts_of(product, layout, machine)[:MOST_VARIANTS]
    }


FEW_CONTRACT = Template("few rows", _fits, _write, _variants)
