"""Products of matrices as shaders: ``dot_general`` of views, with the element-wise nodes after it.

A product is read from a spec as matrices with many axes (``gemm_product``), cut for the GPU (``gemm_tile``), and written in one of these forms: by tiles through workgroup memory
(``gemm_tiles``), as a few sums for each column of a matrix that is read once (``gemm_vector``), or straight from memory (``gemm_thread``). Sums that few workgroups
would add up are cut into parts, which a second dispatch adds, always in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...graph import dtypes
from ...graph.errors import InternalError
from ...lower.plan import Spec
from ..cpu.elements import can_emit
from . import gemm_thread, gemm_tiles, gemm_vector
from .gemm_finish import Parts, Results, sum_of_parts
from .gemm_load import Reader
from .gemm_product import Product, View, kept_in, part_bytes, product_of, view_of
from .gemm_tile import Cut, choose, form_of
from .machine import Machine
from .shader import Shader, Stage, Written
from .template import Template


def _fits(spec: Spec, machine: Machine) -> bool:
    if spec.kind != "contract" or not can_emit(spec.body):
        return False
    product = product_of(spec)
    if product is None or 0 in (product.count, product.m, product.n, product.k):
        return False
    kept = kept_in(product)
    return machine.wide if kept is dtypes.f64 else machine.long or kept.itemsize < 8


def _write(spec: Spec, machine: Machine) -> Written:
    product = product_of(spec)
    if product is None:
        raise InternalError("a kernel that is no product of matrices came to the template of those")
    form = form_of(product)
    if form == "thread":
        return _thread(spec, product, machine)
    if form == "vector":
        return _vector(spec, product if product.m <= product.n else product.turned(), machine)
    return _tiles(spec, product, choose(product, machine), machine)


def _shader(spec: Spec, product: Product, machine: Machine, threads: int) -> Shader:
    return Shader(spec, machine, threads=threads, whole=product.in_fours)


def _readers(shader: Shader, product: Product, *views: View) -> list[Reader]:
    return [Reader(shader, view, kept_in(product)) for view in views]


def _sink(shader: Shader, product: Product, parts: int) -> Callable[[str], Any]:
    """What takes the sums of a part: the results, where there is one."""
    if parts == 1:
        return lambda part: Results(shader, product)
    return lambda part: Parts(shader, product, part, parts)


def _written(spec: Spec, product: Product, machine: Machine, parts: int, first: Stage) -> Written:
    """A kernel of which the first dispatch is written."""
    if parts == 1:
        return Written((first,))
    second = sum_of_parts(_shader(spec, product, machine, 64), product, parts)
    return Written((first, second), parts * part_bytes(product))


def _thread(spec: Spec, product: Product, machine: Machine) -> Written:
    shader = _shader(spec, product, machine, 64)
    readers = _readers(shader, product, *gemm_thread.views_of(product))
    return Written((gemm_thread.write_thread(shader, product, readers),))


def _vector(spec: Spec, product: Product, machine: Machine) -> Written:
    views = view_of(product, 0, free=False), view_of(product, 1)
    share = gemm_vector.share_of(product, views, machine)
    shader = _shader(spec, product, machine, share.threads)
    readers = _readers(shader, product, *views)
    sink = _sink(shader, product, share.parts)
    gemm_vector.write_vector(shader, product, share, readers, sink)
    stage = shader.finish(gemm_vector.group_count(product, share))
    return _written(spec, product, machine, share.parts, stage)


def _tiles(spec: Spec, product: Product, cut: Cut, machine: Machine) -> Written:
    shader = _shader(spec, product, machine, cut.tile.threads)
    readers = _readers(shader, product, *(view_of(product, side) for side in (0, 1)))
    sink = _sink(shader, product, cut.parts)
    gemm_tiles.write_tiles(shader, product, cut, readers, sink)
    stage = shader.finish(gemm_tiles.group_count(product, cut))
    return _written(spec, product, machine, cut.parts, stage)


CONTRACT = Template("contract", _fits, _write)
