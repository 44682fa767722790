"""How a profile prints: the step, its kernels, and what kinds and specs of them take together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..graph.errors import ArgumentError
from .tables import (
    Column,
    Part,
    Table,
    bar,
    clipped,
    count,
    percent,
    plural,
    seconds,
    three_digits,
)

if TYPE_CHECKING:
    from .profile import Group, Profile, Timing

TOP = 20
"""Kernels that are listed before the rest is summed up."""

ORDERS = ("time", "plan")

_FIGURES = (
    Column("time", "right", "bold"),
    Column("share", "right"),
    Column("", style="green"),
    Column("wait", "right", "yellow"),
    Column("GFLOP/s", "right", "cyan"),
    Column("GB/s", "right", "cyan"),
    Column("roofline", "right", "magenta"),
    Column("bound"),
)


def parts(profile: Profile, top: int | None = TOP, order: str = "time") -> list[Part]:
    """The lines and tables of a profile."""
    if order not in ORDERS:
        raise ArgumentError(f"order is {order!r}, but kernels are listed by {ORDERS}")
    found: list[Part] = [*_head(profile), ""]
    listed = sorted(profile.kernels, key=lambda k: -k.median)
    chosen = listed if top is None else listed[:top]
    if order == "plan":
        chosen = [kernel for kernel in profile.kernels if kernel in chosen]
    rest = listed[len(chosen) :]
    note = ""
    if rest:
        share = sum(kernel.share for kernel in rest)
        note = f"and {plural(len(rest), 'kernel')} more, {percent(share)} of the step"
    found += [_kernels(chosen, note)]
    if profile.kinds:
        found += ["by kind", _groups(profile.kinds, profile, "kind")]
    shared = [group for group in profile.specs if group.kernels > 1]
    if shared:
        shown = profile.specs if top is None else profile.specs[: top // 2]
        found += ["by spec: equal kernels together", _groups(shown, profile, "spec")]
    return found


def _head(profile: Profile) -> list[str]:
    work = profile.work
    kernels = sum(kernel.number >= 0 for kernel in profile.kernels)
    machine = profile.machine
    how = "measured" if profile.measured else "as declared"
    rate = work.flops / profile.median / 1e9 if profile.median else 0.0
    moved = work.bytes / profile.median / 1e9 if profile.median else 0.0
    return [
        f"profile of '{profile.name}': {plural(kernels, 'kernel')} on "
        f"{plural(profile.threads, 'thread')}, {plural(profile.steps, 'step')}",
        f"  step      median {seconds(profile.median)}, best {seconds(profile.best)}; "
        f"{seconds(max(profile.overhead, 0.0))} of it to start and join threads",
        f"  work      {count(work.flops, 'FLOP')} at {three_digits(rate)} GFLOP/s, "
        f"{count(work.bytes, 'B')} at {three_digits(moved)} GB/s",
        f"  roofline  {percent(profile.roofline)} of {machine.name}, {how}: "
        f"{three_digits(machine.flops / 1e9)} GFLOP/s, {three_digits(machine.bandwidth / 1e9)} GB/s",
    ]


def _kernels(kernels: Sequence[Timing], note: str) -> Table:
    first = (
        Column("kernel", style="bold"),
        Column("kind", style="blue"),
        Column("ops"),
        Column("label", style="green"),
        Column("line", style="dim"),
    )
    rows = [
        (
            kernel.name,
            kernel.kind,
            clipped(kernel.ops, 34),
            clipped(kernel.title, 30),
            "" if kernel.source is None else clipped(str(kernel.source), 24),
            *_figures(kernel, kernel.median),
            kernel.limit if kernel.work.bytes or kernel.work.flops else "",
        )
        for kernel in kernels
    ]
    return Table((*first, *_FIGURES), rows, note)


def _groups(groups: Sequence[Group], profile: Profile, name: str) -> Table:
    by_spec = name == "spec"
    first = (
        Column(name, style="blue"),
        Column("kernels", "right"),
        Column("ops"),
    )
    rows = [
        (
            group.name.rpartition("-")[2][:8] if by_spec else group.name,
            str(group.kernels),
            clipped(group.ops, 34) if by_spec else "",
            *_figures(group, group.seconds),
            group.work.limit(profile.machine) if by_spec else "",
        )
        for group in groups
    ]
    return Table((*first, *_FIGURES), rows)


def _figures(item: Timing | Group, time: float) -> tuple[str, ...]:
    waiting = item.wait / time if time else 0.0
    return (
        seconds(time),
        percent(item.share),
        bar(item.share) if item.share >= 0.005 else "",
        percent(waiting) if waiting >= 0.005 else "",
        three_digits(item.gflops) if item.work.flops else "",
        three_digits(item.gigabytes) if item.work.bytes else "",
        percent(item.roofline),
    )


def record(kernel: Timing) -> dict[str, Any]:
    """A kernel's figures as values that JSON has."""
    return {
        "kernel": kernel.name,
        "kind": kernel.kind,
        "ops": kernel.ops,
        "spec": kernel.spec,
        "label": kernel.label,
        "source": None if kernel.source is None else f"{kernel.source.file}:{kernel.source.line}",
        "nodes": list(kernel.nodes),
        "results": list(kernel.results),
        "updated": list(kernel.updated),
        "flops": kernel.work.flops,
        "bytes": kernel.work.bytes,
        "median_seconds": kernel.median,
        "best_seconds": kernel.best,
        "wait_seconds": kernel.wait,
        "imbalance": kernel.imbalance,
        "share": kernel.share,
        "gflops": kernel.gflops,
        "gigabytes_per_second": kernel.gigabytes,
        "roofline": kernel.roofline,
        "limit": kernel.limit,
    }
