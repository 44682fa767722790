"""Contractions as native code: every matrix product of a graph goes through this template.

``emit_contraction`` writes one function for a shape; the work is done by micro-kernels that all shapes of a module
share, so that one more shape costs one more small loop. Weights may be kept packed (``emit_pack_b``), which lets the
micro-kernel read them straight from memory.

    function = emit_contraction(module, "product", Contraction.dense("f32", 128, 576, 576), machine)

The function is called once by every thread, with the thread's number and their count:
``(thread, threads, a*, b*, c*, extra**, scratch*)``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....codegen.ir.emit import accumulator_of, i64, ir, load, loop, offset, store
from .driver import Driver, Share, Target
from .panel import emit_pack_panel
from .plan import Contraction, Cut, cut, packed_elements, scratch_bytes
from .tile import Machine, choose_tile

__all__ = [
    "Contraction",
    "Epilogue",
    "Machine",
    "Share",
    "choose_tile",
    "emit_contraction",
    "emit_pack_b",
    "packed_elements",
    "scratch_bytes",
    "share_evenly",
]


Epilogue = Callable[[Any, Any, Any, Any, Any, Any, Any], Any]
"""``(builder, sums, batch, row, column, mask, extra)`` to the vector to store. ``column`` is that of the first lane;
``mask`` says which lanes exist, or is None when all do; ``extra`` is the function's argument of that name."""


def share_evenly(
    builder: Any, thread: Any, threads: Any, units: int, work: Callable[[Any, Any], None]
) -> None:
    """One contiguous run of units for each thread, of sizes that differ by one at most."""
    total = i64(units)
    start = builder.sdiv(builder.mul(total, thread), threads)
    stop = builder.sdiv(builder.mul(total, builder.add(thread, i64(1))), threads)
    work(start, stop)


def emit_contraction(
    module: Any,
    name: str,
    contraction: Contraction,
    machine: Machine,
    epilogue: Epilogue | None = None,
    packed_b: bool = False,
    share: Share = share_evenly,
) -> Any:
    """Write the function of a contraction into ``module``.

    Every element of C becomes ``epilogue(sums)``, or ``epilogue(C + sums)`` when the contraction accumulates.
    ``packed_b`` says that ``b`` was written by ``emit_pack_b``'s function. ``scratch`` holds ``scratch_bytes`` for
    every thread. C may not overlap A or B. ``share`` decides which units a thread works on.
    """
    types = ir()
    word, pointer = types.IntType(64), types.PointerType()
    arguments = [word, word, pointer, pointer, pointer, pointer, pointer]
    function = types.Function(module, types.FunctionType(types.VoidType(), arguments), name)
    function.attributes.add("nounwind")
    builder = types.IRBuilder(function.append_basic_block("entry"))
    if not contraction.empty:
        plan = cut(contraction, machine, packed_b)
        thread, threads, a, b, c, extra, scratch = function.args
        start = builder.mul(thread, i64(plan.scratch_bytes))
        own = builder.gep(scratch, [start], source_etype=types.IntType(8))
        target = _dense_target(builder, plan, c, epilogue, extra)
        driver = Driver(builder, plan, a, b, own, target, packed_b=packed_b)
        share(builder, thread, threads, plan.units, driver.emit)
    builder.ret_void()
    return function


def _dense_target(builder: Any, plan: Cut, c: Any, epilogue: Epilogue | None, extra: Any) -> Target:
    """C as the contraction's strides say, through an epilogue or not."""
    contraction, lanes = plan.contraction, plan.tile.lanes
    dtype = contraction.dtype
    distance, down, across = contraction.c_strides

    def batch_of(batch: Any) -> Any:
        return offset(builder, c, dtype, builder.mul(batch, i64(distance)))

    def write(values: Any, batch: Any, row: Any, column: Any, mask: Any) -> None:
        steps = builder.mul(row, i64(down)), builder.mul(column, i64(across))
        place = offset(builder, batch_of(batch), dtype, *steps)
        if contraction.accumulate:
            before = load(builder, place, dtype, lanes, mask, across)
            values = builder.fadd(before, values)
        if epilogue is not None:
            values = epilogue(builder, values, batch, row, column, mask, extra)
        store(builder, values, place, dtype, mask, across)

    plain = epilogue is None and across == 1 and dtype == accumulator_of(dtype)
    return Target(write, batch_of if plain else None)


def emit_pack_b(module: Any, name: str, contraction: Contraction, machine: Machine) -> Any:
    """Write the function ``(thread, threads, b*, packed*)`` that packs B for ``packed_b=True``.

    ``packed`` has ``packed_elements`` elements of the contraction's dtype.
    """
    types = ir()
    word, pointer = types.IntType(64), types.PointerType()
    kind = types.FunctionType(types.VoidType(), [word, word, pointer, pointer])
    function = types.Function(module, kind, name)
    builder = types.IRBuilder(function.append_basic_block("entry"))
    plan = cut(contraction, machine, True)
    copies = contraction.batch if contraction.b_strides[0] else min(1, contraction.batch)
    thread, threads, b, packed = function.args

    def work(start: Any, stop: Any) -> None:
        def unit(index: Any, _: Any) -> None:
            batch = builder.sdiv(index, i64(plan.panels))
            number = builder.srem(index, i64(plan.panels))
            source = offset(
                builder, b, plan.panel, builder.mul(batch, i64(contraction.b_strides[0]))
            )
            target = offset(
                builder,
                packed,
                plan.panel,
                builder.mul(batch, i64(plan.packed_elements)),
                builder.mul(number, i64(plan.tile.width * contraction.k)),
            )
            emit_pack_panel(builder, plan, source, number, target)

        loop(builder, start, stop, 1, unit)

    if copies * plan.panels:
        share_evenly(builder, thread, threads, copies * plan.panels, work)
    builder.ret_void()
    return function
