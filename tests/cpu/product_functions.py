"""Functions that compute one matrix product, so that the loops of contractions can be tested without a graph around them.

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

from darner.backends.cpu.contract.driver import Driver, Operands, Share, Target
from darner.backends.cpu.contract.panel import emit_pack_panel
from darner.backends.cpu.contract.plan import Contraction, Cut, cut, packed_elements, scratch_bytes
from darner.backends.cpu.contract.tile import Machine, choose_tile
from darner.codegen.ir.emit import Spacing, accumulator_of, ir, load, loop, offset, store_strided
from darner.codegen.ir.index import i64
from darner.codegen.ir.types import Builder, Module, Value

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
    builder: Builder, thread: Value, threads: Value, units: int, work: Callable[[Any, Any], None]
) -> None:
    """One contiguous run of units for each thread, of sizes that differ by one at most."""
    total = i64(units)
    start = builder.sdiv(builder.mul(total, thread), threads)
    stop = builder.sdiv(builder.mul(total, builder.add(thread, i64(1))), threads)
    work(start, stop)


def emit_contraction(
    module: Module,
    name: str,
    contraction: Contraction,
    machine: Machine,
    epilogue: Epilogue | None = None,
    packed_b: bool = False,
    share: Share = share_evenly,
) -> Value:
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
        operands = Operands(a, b, packed_b=packed_b)
        driver = Driver(builder, plan, operands, own, target)
        share(builder, thread, threads, plan.units, driver.emit)
    builder.ret_void()
    return function


def _dense_target(
    builder: Builder, plan: Cut, c: Value, epilogue: Epilogue | None, extra: Any
) -> Target:
    """C as the contraction's strides say, through an epilogue or not."""
    contraction, lanes = plan.contraction, plan.tile.lanes
    dtype = contraction.dtype
    distance, down, across = contraction.c_strides

    def batch_of(batch: Value) -> Value:
        return offset(builder, c, dtype, builder.mul(batch, i64(distance)))

    def write(values: Value, batch: Value, row: Value, column: Value, mask: Value | None) -> None:
        steps = builder.mul(row, i64(down)), builder.mul(column, i64(across))
        place = offset(builder, batch_of(batch), dtype, *steps)
        if contraction.accumulate:
            before = load(builder, place, dtype, lanes, mask, across)
            values = builder.fadd(before, values)
        if epilogue is not None:
            values = epilogue(builder, values, batch, row, column, mask, extra)
        store_strided(builder, values, place, dtype, Spacing(across), mask)

    plain = epilogue is None and across == 1 and dtype == accumulator_of(dtype)
    return Target(write, batch_of if plain else None)


def emit_pack_b(module: Module, name: str, contraction: Contraction, machine: Machine) -> Value:
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

    def work(start: Value, stop: Value) -> None:
        def unit(index: Value, _: object) -> None:
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
