"""Products of matrices on a GPU: ``dot_general`` of views, with the element-wise nodes after it.

A product is read from a spec as matrices with many axes (``product``), cut for the GPU (``plan``), and written in one of these forms: by tiles through workgroup memory
(``tiles``), as a few sums for each column of a matrix that is read once (``vector``), or straight from memory (``thread``). Sums that few workgroups
would add up are cut into parts, which a second dispatch adds, always in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ....graph import dtypes
from ....graph.errors import InternalError
from ....lower.plan import Spec
from ...elements.elements import can_emit
from ..dispatch import Dispatch, Stage, Written
from ..machine import Machine
from ..template import Template, Variants
from . import thread as gemm_thread
from . import tiles as gemm_tiles
from . import vector as gemm_vector
from .epilogue import Parts, Results, sum_of_parts
from .load import Reader
from .plan import FEW, Cut, form_of, ranked
from .product import Product, View, kept_in, part_bytes, product_of, view_of
from .tiles import SinkOf
from .vector import Share


def _fits(spec: Spec, machine: Machine) -> bool:
    if spec.kind != "contract" or not can_emit(spec.body):
        return False
    product = product_of(spec)
    if product is None or 0 in (product.count, product.m, product.n, product.k):
        return False
    kept = kept_in(product)
    return machine.wide if kept is dtypes.f64 else machine.long or kept.itemsize < 8


def _write(spec: Spec, machine: Machine) -> Written:
    return next(iter(_variants(spec, machine).values()))()


def _variants(spec: Spec, machine: Machine) -> Variants:
    """The ways to write a product, by their names: those of the form that suits it, then what else is worth a try."""
    product = product_of(spec)
    if product is None:
        raise InternalError("a kernel that is no product of matrices came to the template of those")
    tiles: dict[str, Callable[[], Written]] = {}
    for cut in ranked(product, machine):
        same = sum(name.startswith(cut.tile.name) for name in tiles)
        if same < 2 and len(tiles) < MOST_TILES:
            tiles[cut.name] = partial(_tiles, spec, product, cut, machine)
    form = form_of(product)
    if form == "tiles":
        return tiles
    thread = {"by threads": partial(_thread, spec, product, machine)}
    if min(product.m, product.n) > FEW:
        return thread | tiles
    few = product if product.m <= product.n else product.turned()
    views = view_of(few, 0, free=False), view_of(few, 1)
    vectors = {
        share.name: partial(_vector, spec, few, share, views, machine)
        for share in gemm_vector.shares_of(few, views, machine)
    }
    return thread | vectors | tiles if form == "thread" else vectors | tiles


MOST_TILES = 8
"""Tiles that are worth a try."""


def _dispatch(spec: Spec, product: Product, machine: Machine, threads: int) -> Dispatch:
    return Dispatch(spec, machine, threads=threads, whole=product.in_fours)


def _readers(dispatch: Dispatch, product: Product, *views: View) -> list[Reader]:
    return [Reader(dispatch, view, kept_in(product)) for view in views]


def _sink(dispatch: Dispatch, product: Product, parts: int) -> SinkOf:
    """What takes the sums of a part: the results, where there is one."""
    if parts == 1:
        return lambda part: Results(dispatch, product)
    return lambda part: Parts(dispatch, product, part, parts)


def _written(spec: Spec, product: Product, machine: Machine, parts: int, first: Stage) -> Written:
    """A kernel of which the first dispatch is written."""
    if parts == 1:
        return Written((first,))
    second = sum_of_parts(_dispatch(spec, product, machine, 64), product, parts)
    return Written((first, second), parts * part_bytes(product))


def _thread(spec: Spec, product: Product, machine: Machine) -> Written:
    dispatch = _dispatch(spec, product, machine, 64)
    readers = _readers(dispatch, product, *gemm_thread.views_of(product))
    return Written((gemm_thread.write_thread(dispatch, product, readers),))


def _vector(
    spec: Spec, product: Product, share: Share, views: tuple[View, View], machine: Machine
) -> Written:
    dispatch = _dispatch(spec, product, machine, share.threads)
    readers = _readers(dispatch, product, *views)
    sink = _sink(dispatch, product, share.parts)
    gemm_vector.write_vector(dispatch, product, share, readers, sink)
    stage = dispatch.finish(gemm_vector.group_count(product, share))
    return _written(spec, product, machine, share.parts, stage)


def _tiles(spec: Spec, product: Product, cut: Cut, machine: Machine) -> Written:
    dispatch = _dispatch(spec, product, machine, cut.tile.threads)
    readers = _readers(dispatch, product, *(view_of(product, side) for side in (0, 1)))
    sink = _sink(dispatch, product, cut.parts)
    gemm_tiles.write_tiles(dispatch, product, cut, readers, sink)
    stage = dispatch.finish(gemm_tiles.group_count(product, cut))
    return _written(spec, product, machine, cut.parts, stage)


CONTRACT = Template("contract", _fits, _write, _variants)
