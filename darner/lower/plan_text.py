"""How a plan prints: its kernels, its arena, its ends, and what they are made of.

The same plan gives the same text; buffers are ``b0``, ``b1``, ... and kernels ``k0``, ``k1``, ...
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ..io.memory import format_size
from .loops import loop_of
from .plan import Kernel, Plan, Spec

SHORT = 8
"""Digits of a spec's digest that tell it from the others to a reader."""

OPS = 8
"""Ops of a spec that are named before the rest is counted."""


def to_text(plan: Plan) -> str:
    """The whole plan for a reader."""
    return "\n".join(_lines(plan))


def _lines(plan: Plan) -> Iterator[str]:
    yield f"plan @{plan.name} for {plan.target}"
    if plan.options:
        yield "  options " + ", ".join(f"{name}={value!r}" for name, value in plan.options.items())
    specs = f"{len(plan.specs)} distinct spec{'' if len(plan.specs) == 1 else 's'}"
    yield f"kernels: {len(plan.kernels)} of {specs}"
    yield from _table([_kernel(plan, k, kernel) for k, kernel in enumerate(plan.kernels)])
    yield f"arena: {_arena_size(plan)}"
    yield from _table(list(_arena(plan)))
    leaves = [i for i, buffer in enumerate(plan.buffers) if buffer.place != "arena"]
    if leaves:
        yield "outside the arena"
        yield from _table([_leaf(plan, i) for i in leaves])
    for i, name in zip(plan.outputs, plan.output_names, strict=True):
        yield f"output {_shown(plan, i)}" + (f' "{name}"' if name else "")
    for leaf, value in plan.updates:
        how = "in place" if leaf == value else f"= {_shown(plan, value)}"
        yield f"update b{leaf} '{plan.buffers[leaf].name}' {how}"
    if plan.specs:
        yield "specs"
        uses = Counter(kernel.spec for kernel in plan.kernels)
        yield from _table([_spec(spec, uses[key]) for key, spec in plan.specs.items()])
    for spec in plan.specs.values():
        if spec.inner is not None:
            steps = loop_of(spec).length
            yield f"step of {_short(spec.digest)}, repeated {steps} time{'' if steps == 1 else 's'}"
            yield from (f"  {line}" for text in _lines(spec.inner) for line in text.split("\n"))


def _shown(plan: Plan, i: int) -> str:
    return f"b{i} {plan.buffers[i].type}"


def _kernel(plan: Plan, k: int, kernel: Kernel) -> tuple[str, ...]:
    kind = plan.specs[kernel.spec].kind if kernel.spec in plan.specs else "?"
    results = ", ".join(_shown(plan, i) for i in kernel.results)
    operands = ", ".join(_shown(plan, i) for i in kernel.operands)
    where = [f'"{kernel.label}"'] if kernel.label else []
    where += [f"({kernel.source})"] if kernel.source else []
    return f"k{k}", kind, _short(kernel.spec), f"{results} <- {operands}", " ".join(where)


def _short(digest: str) -> str:
    # Loops of one op may do other things in a step: the plan of that tells them apart.
    return digest.replace(".", "-").rpartition("-")[2][:SHORT]


def _arena_size(plan: Plan) -> str:
    text = f"{format_size(plan.arena_bytes)}, naive {format_size(plan.naive_bytes)}"
    if plan.naive_bytes > 0:
        share = 100 * plan.saved_bytes / plan.naive_bytes
        text += f", {format_size(plan.saved_bytes)} saved ({share:.0f} %)"
    return text


def _arena(plan: Plan) -> Iterator[tuple[str, ...]]:
    """What lies where and when, by place and then by time."""
    found = []
    for i, (buffer, life) in enumerate(zip(plan.buffers, plan.lifetimes(), strict=True)):
        if life is not None:
            found.append((*buffer.range, *life, i))
    for start, end, first, last, i in sorted(found):
        until = f"k{last}" if last < len(plan.kernels) else "end"
        yield f"{start}..{end}", f"k{first} to {until}", _shown(plan, i)


def _leaf(plan: Plan, i: int) -> tuple[str, ...]:
    buffer = plan.buffers[i]
    kept = ""
    if buffer.parts is not None:
        kept = f"side by side along axis {buffer.parts.axis}"
    return buffer.place, _shown(plan, i), f"'{buffer.name}'", kept


def _spec(spec: Spec, uses: int) -> tuple[str, ...]:
    ops = spec.ops
    more = f" and {len(ops) - OPS} more" if len(ops) > OPS else ""
    return _short(spec.digest), spec.kind, f"x{uses}", ", ".join(ops[:OPS]) + more


def _table(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Rows in columns as wide as they need to be, without blanks at the end."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield f"  {'  '.join(cells)}".rstrip()
