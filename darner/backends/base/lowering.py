"""From a graph to a plan for a device, and from a plan to a program, by the rules of the device's backend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ...graph.errors import ArgumentError, UnsupportedError
from ...graph.graph import Graph
from ...graph.parts import Parts
from ...lower.kept import keeps_anything
from ...lower.lower import lower
from ...lower.plan import Kernel, Plan, Spec
from ...lower.roles import whole_ops
from ...ops.faults import host_nodes
from .backend import Request
from .program import Program
from .registry import backend_of


def lower_for(
    device: str,
    graph: Graph,
    options: Mapping[str, Any] | None = None,
    stored: Mapping[str, Parts] | None = None,
) -> Plan:
    """The plan of a graph for a device; what the device cannot run is an error here.

    ``stored`` says which leaves hold several parameters or states side by side, for a device that keeps them so (``LowerRules.side_by_side``).
    Composites for which a device has no kernel are written out.
    """
    backend = backend_of(device)
    rules = backend.rules(backend.machine(device))
    whole, ended, segment = set(whole_ops()), set(rules.ended), None
    fusing, keeps = rules.fusing, rules.keeps
    while True:
        plan = lower(
            graph,
            target=backend.target,
            whole=whole,
            ended=ended,
            fusing=fusing,
            keeps=keeps,
            options=options,
            alignment=rules.alignment,
            segment=segment,
            stored=stored,
            multipliers=rules.multipliers,
            channels_last=rules.channels_last,
            again=rules.again,
        )
        rules.check(plan, graph)
        lacking = [(k, spec) for k, spec in written_specs(plan) if not rules.runs(spec)]
        if not lacking:
            if segment is not None or plan.arena_bytes <= rules.largest:
                return plan
            segment = rules.largest
            continue
        if fusing.halves and any(spec.kind == "contract" for _, spec in lacking):
            fusing = replace(fusing, halves=False)
            continue
        for kernel, spec in lacking:
            _refuse_host(spec, kernel, device)
        if keeps and any(keeps_anything(spec.body) for _, spec in lacking):
            # First kernels are tried without what one keeps for another.
            keeps = False
            continue
        named = {name for _, spec in lacking for name in spec.ops}
        named &= whole | ended
        if not named:
            kernel, spec = lacking[0]
            ops = ", ".join(dict.fromkeys(spec.ops))
            raise UnsupportedError(
                f"the device '{device}' has no kernel of kind '{spec.kind}' for {ops}"
            ).located(spec.ops[-1], kernel.label, "", kernel.source)
        whole -= named
        ended -= named


def written_specs(plan: Plan) -> Iterator[tuple[Kernel, Spec]]:
    """What kernels compute, and after each loop what its step consists of: a kernel of the plan for each, and a spec."""
    told: set[str] = set()
    for kernel in plan.kernels:
        if kernel.spec not in told:
            told.add(kernel.spec)
            spec = plan.spec(kernel)
            yield kernel, spec
            if spec.inner is not None:
                yield from ((kernel, inner) for _, inner in written_specs(spec.inner))


def _refuse_host(spec: Spec, kernel: Kernel, device: str) -> None:
    """Raise where a kernel is the function of a user's op, which this device does not call."""
    if not spec.is_host:
        return
    node = next(host_nodes(spec.body))
    if node.op.rules.reference is None:
        raise UnsupportedError(
            "it has neither a reference nor scalar code nor an expansion",
            hint=f"say what it computes: @{node.op.name}.reference",
        ).located(node.op.name, kernel.label, "", kernel.source)
    emit, types = node.op.rules.emit, ", ".join(str(x.type) for x in node.operands)
    about = "darner knows only its NumPy function"
    if emit is not None:
        about = f"its scalar code is not for {types}, so darner has only its NumPy function"
    helps = ["declare it as a composite, with an expansion", "build for device='cpu'"]
    if "elementwise" in node.op.traits:
        helps.insert(0, f"give it scalar code (@{node.op.name}.emit)")
    raise UnsupportedError(
        f"the device '{device}' cannot run it: {about}",
        hint=f"{', '.join(helps[:-1])}, or {helps[-1]}",
    ).located(node.op.name, kernel.label, "", kernel.source)


def compile_for(device: str, plan: Plan, threads: int | None = None, **given: Any) -> Program:
    """The program of a plan that ``lower_for`` made for this device; ``given`` are fields of a ``Request``.

    >>> from darner import Graph
    >>> g = Graph()
    >>> g.set_outputs([g.input("x", (3,)) * 2.0])
    >>> program = compile_for("reference", lower_for("reference", g))
    >>> program.threads
    1
    """
    backend = backend_of(device)
    if plan.target != backend.target:
        raise ArgumentError(f"the plan was made for '{plan.target}', not for '{device}'")
    return backend.compile(plan, Request(device, threads, **given))
