"""What is legal in a plan: every rule that ``Plan.verify`` checks, and how a fault is told."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from typing import Any

from ..graph.errors import DarnerError, VerifyError
from ..graph.op import get_op
from ..graph.parts import Parts
from .loops import body_graph
from .plan import ALIGNMENT, KINDS, PLACES, Buffer, Kernel, Plan, Spec, may_share, symbolic


def verify(plan: Plan) -> None:
    """Raise ``VerifyError`` for the first rule that a plan breaks."""
    for key, spec in plan.specs.items():
        try:
            _check_spec(key, spec)
        except DarnerError as error:
            text = error.rule if isinstance(error, VerifyError) else str(error)
            raise VerifyError(f"spec {key}: {text}") from error
    names: set[str] = set()
    for i, buffer in enumerate(plan.buffers):
        for rule in _faults_of_buffer(plan, buffer, names):
            raise VerifyError(f"buffer {i}: {rule}")
    written: set[int] = set()
    if not 0 <= plan.commit <= len(plan.kernels):
        raise VerifyError(f"it commits after {plan.commit} kernels, but has {len(plan.kernels)}")
    for k, kernel in enumerate(plan.kernels):
        faults = [*_faults_of_kernel(plan, kernel, written)]
        if k < plan.commit:
            faults += _early_writes(plan, kernel)
        for rule in faults:
            fault = VerifyError(f"kernel {k}: {rule}")
            raise fault.located("Plan.verify", kernel.label, "", kernel.source)
        written.update(kernel.results)
    for rule in _faults_of_ends(plan, written):
        raise VerifyError(rule)
    _check_arena(plan)


def _check_spec(key: str, spec: Spec) -> None:
    if spec.kind not in KINDS:
        raise VerifyError(f"its kind '{spec.kind}' is none of {', '.join(KINDS)}")
    body = spec.body
    if not body._frozen:
        raise VerifyError("its body is not frozen")
    body.verify()
    if symbols := body.dynamic_symbols():
        raise VerifyError(symbolic(symbols))
    if body.parameters or body.states or body.updates:
        raise VerifyError("its body has parameters, states or updates: only inputs are operands")
    if list(body.inputs) != [str(i) for i in range(len(body.inputs))]:
        raise VerifyError(f"its inputs are {', '.join(body.inputs)}, not 0, 1, ... in order")
    if not body.outputs:
        raise VerifyError("its body has no output")
    if (spec.kind == "loop") != (spec.inner is not None):
        raise VerifyError(f"it is of kind '{spec.kind}': loops alone have the plan of a step")
    if spec.inner is not None:
        _check_step(spec, spec.inner)
    if key != spec.digest:
        raise VerifyError(f"it is stored under that key, but its digest is {spec.digest}")


def _check_step(spec: Spec, plan: Plan) -> None:
    """The plan of a loop's step: a plan of the body, whose leaves are what the kernel's operands and results say, all updated in place."""
    verify(plan)
    if not any(node.op.facts.role == "loop" for node in spec.body.nodes):
        raise VerifyError("its body has no loop")
    wanted = body_graph(spec.body)
    for place, leaves in (("input", wanted.inputs), ("state", wanted.states), ("parameter", {})):
        found = {name: plan.buffers[i].type for name, i in plan.leaves(place).items()}
        if found != {name: leaf.type for name, leaf in leaves.items()}:
            raise VerifyError(f"its step has other leaves of kind {place} than its body")
    if any(old != new for old, new in plan.updates):
        raise VerifyError("a step of it leaves an update to be done after its last kernel")
    updated = {str(plan.buffers[old].name) for old, _ in plan.updates}
    if updated != {str(leaf.name) for leaf in wanted.updates}:
        raise VerifyError("its step updates other leaves than its body")
    if plan.commit or plan.outputs:
        raise VerifyError("its step has outputs or a commit point, which are the kernel's")


def _faults_of_buffer(plan: Plan, buffer: Buffer, names: set[str]) -> Iterator[str]:
    if buffer.place not in PLACES:
        yield f"its place '{buffer.place}' is none of {', '.join(PLACES)}"
    if buffer.type.symbols:
        yield symbolic(buffer.type.symbols)
    if buffer.place == "arena":
        if buffer.name is not None:
            yield f"it is in the arena, but has the name '{buffer.name}'"
        if buffer.offset is None:
            yield "it is in the arena, but has no offset"
            return
        start, end = buffer.range
        if start % ALIGNMENT:
            yield f"its offset {start} is not a multiple of {ALIGNMENT}"
        if start < 0 or end > plan.arena_bytes:
            yield f"its bytes {start} to {end} are outside the arena of {plan.arena_bytes}"
        return
    if buffer.offset is not None:
        yield f"it is a {buffer.place}, which has no offset in the arena"
    if not buffer.name:
        yield f"it is a {buffer.place} without a name"
    elif buffer.place == "constant":
        if buffer.name not in plan.constants:
            yield f"the plan has no constant '{buffer.name}'"
        elif plan.constants[buffer.name].type != buffer.type:
            stored = plan.constants[buffer.name].type
            yield f"it is {buffer.type}, but the constant '{buffer.name}' is {stored}"
    elif taken := names.intersection((buffer.name, *(buffer.parts or ()))):
        yield f"another leaf is called '{min(taken)}' too"
    else:
        names.update((buffer.name, *(buffer.parts or ())))
        if buffer.parts is not None:
            yield from _faults_of_parts(buffer, buffer.parts)
        try:
            get_op(buffer.place).infer_type((), (), buffer.leaf_attrs)
        except DarnerError as error:
            yield error.rule


def _faults_of_parts(buffer: Buffer, parts: Parts) -> Iterator[str]:
    """What stands side by side fills a parameter or state, each part under a name of its own."""
    if buffer.place not in ("parameter", "state"):
        yield f"a leaf of {buffer.place} has no parts"
    elif not 0 <= parts.axis < len(buffer.type.shape):
        yield f"its parts stand along axis {parts.axis} of {buffer.type}"
    elif len(parts.sources) < 2 or len({buffer.name, *parts}) != len(parts.sources) + 1:
        yield f"its parts are {', '.join(map(repr, parts))}"
    elif (
        min(int(size) for _, size in parts.sources) < 1
        or parts.size != buffer.type.shape[parts.axis]
    ):
        yield f"its parts have {parts.size} of {buffer.type} along axis {parts.axis}"


def _faults_of_kernel(plan: Plan, kernel: Kernel, written: set[int]) -> Iterator[str]:
    spec = plan.specs.get(kernel.spec)
    if spec is None:
        yield f"the plan has no spec {kernel.spec}"
        return
    sides = (
        ("operand", kernel.operands, spec.inputs),
        ("result", kernel.results, tuple(spec.body.outputs)),
    )
    for what, ids, nodes in sides:
        if len(ids) != len(nodes):
            yield f"it has {len(ids)} {what}s, but its spec has {len(nodes)}"
            return
        for position, (i, node) in enumerate(zip(ids, nodes, strict=True)):
            if not 0 <= i < len(plan.buffers):
                yield f"{what} {position} is buffer {i}: the plan has {len(plan.buffers)}"
                return
            if plan.buffers[i].type != node.type:
                yield f"{what} {position} is {plan.buffers[i].type}, but its spec has {node.type}"
    for i in kernel.operands:
        if plan.buffers[i].place == "arena" and i not in written:
            yield f"it reads buffer {i} before any kernel has written it"
    for i in kernel.results:
        place = plan.buffers[i].place
        if place in ("input", "constant"):
            yield f"it writes buffer {i}, which is {place} '{plan.buffers[i].name}'"
        if i in written:
            yield f"it writes buffer {i}, which an earlier kernel has written: values differ in their buffers"
        if kernel.results.count(i) > 1:
            yield f"two of its results are buffer {i}"
    for r, i in enumerate(kernel.results):
        for o, j in enumerate(kernel.operands):
            if i == j and not may_share(spec, o, r):
                yield f"it writes result {r} over operand {o}, which it needs in another order"


def _early_writes(plan: Plan, kernel: Kernel) -> Iterator[str]:
    for i in kernel.results:
        buffer = plan.buffers[i]
        if buffer.place != "arena":
            yield (
                f"it writes {buffer.place} '{buffer.name}' before the plan commits, after {plan.commit} kernels"
            )


def _faults_of_ends(plan: Plan, written: set[int]) -> Iterator[str]:
    count = len(plan.buffers)
    for i, buffer in enumerate(plan.buffers):
        if buffer.place == "arena" and i not in written:
            yield f"buffer {i} is in the arena, but no kernel writes it"
    for i in plan.outputs:
        if not 0 <= i < count:
            yield f"an output is buffer {i}: the plan has {count}"
    if len(plan.output_names) != len(plan.outputs):
        yield f"{len(plan.outputs)} outputs have {len(plan.output_names)} names"
    updated: dict[int, int] = {}
    for leaf, value in plan.updates:
        if not (0 <= leaf < count and 0 <= value < count):
            yield f"an update is of buffer {leaf} by buffer {value}: the plan has {count}"
            return
        target, source = plan.buffers[leaf], plan.buffers[value]
        if target.place not in ("state", "parameter"):
            yield f"buffer {leaf} is updated, but it is no state or parameter"
        if leaf in updated:
            yield f"{target.place} '{target.name}' is updated twice"
        if target.type != source.type:
            yield f"{target.place} '{target.name}' is {target.type}, but its update is {source.type}"
        updated[leaf] = value
    for i in sorted(written):
        target = plan.buffers[i]
        if target.place != "arena" and updated.get(i) != i:
            yield f"a kernel writes {target.place} '{target.name}' in place, but no update says so"
    inputs = plan.leaves("input")
    for name, bound in plan.bounds.items():
        if name not in inputs or not bound or bound[0] < 0:
            yield f"'{name}' is bound by {list(bound)}: it should be an input, and that begin with a size"
    if plan.arena_bytes < 0 or plan.naive_bytes < 0:
        yield f"the arena cannot have {min(plan.arena_bytes, plan.naive_bytes)} bytes"
    if not _is_json(plan.options):
        yield "its options hold a value that JSON has not: text, numbers, lists and objects are legal"


def _is_json(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_json(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(_is_json, value))
    return value is None or isinstance(value, str | int | bool)


def _check_arena(plan: Plan) -> None:
    """No two values that are alive together share a byte, but for a result over an operand that ends there."""
    lives = plan.lifetimes()
    alive: list[
        tuple[int, int, int]
    ] = []  # (first byte, end, buffer), disjoint, so in order of both
    for k, kernel in enumerate(plan.kernels):
        placed: list[tuple[int, int, int]] = []
        for r, i in enumerate(kernel.results):
            if lives[i] is None or not plan.buffers[i].nbytes:
                continue
            entry = (*plan.buffers[i].range, i)
            for _, _, other in _overlapping(placed, entry):
                raise VerifyError(f"kernel {k}: its results {other} and {i} overlap in the arena")
            for start, end, other in _overlapping(alive, entry):
                _check_in_place(plan, k, r, (start, end) == entry[:2], other, lives[other])
            insort(placed, entry)
        ends = {i for i in (*kernel.operands, *kernel.results) if (at := lives[i]) and at[1] == k}
        alive = [entry for entry in alive if entry[2] not in ends]
        for entry in placed:
            if entry[2] not in ends:
                insort(alive, entry)


def _check_in_place(
    plan: Plan, k: int, result: int, whole: bool, other: int, life: tuple[int, int] | None
) -> None:
    kernel = plan.kernels[k]
    i = kernel.results[result]
    if life is None or life[1] > k:
        raise VerifyError(f"kernel {k}: buffer {i} overlaps buffer {other}, which is still needed")
    positions = [o for o, j in enumerate(kernel.operands) if j == other]
    if not whole or not all(may_share(plan.spec(kernel), o, result) for o in positions):
        raise VerifyError(
            f"kernel {k}: result {result} (buffer {i}) lies over operand {positions[0]} "
            f"(buffer {other}), which it needs in another order"
        )


def _overlapping(
    entries: list[tuple[int, int, int]], entry: tuple[int, int, int]
) -> Iterator[tuple[int, int, int]]:
    """Those of disjoint, sorted ranges that share a byte with another."""
    start, end, _ = entry
    place = bisect_left(entries, (start,))
    if place and entries[place - 1][1] > start:
        yield entries[place - 1]
    while place < len(entries) and entries[place][0] < end:
        yield entries[place]
        place += 1
