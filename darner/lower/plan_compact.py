"""A plan as rows of plain values, to be read fast where a seal says that they are what was written.

``plan_json`` is the form for files that anyone may have changed: it names every field, checks each and verifies the plan. This one is for a cache whose
entries are known to be whole. What kernels compute is kept as text and read when somebody asks: to run a plan whose code is at hand nobody does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any, TypeAlias

from ..graph.data import Data
from ..graph.errors import Source
from ..graph.graph import Graph
from ..graph.parts import Parts
from ..graph.types import TensorType, parse_type
from .plan import Buffer, Kernel, Plan, Spec

Rows: TypeAlias = dict[str, Any]
"""A plan as values that JSON has."""


class Specs(Mapping[str, Spec]):
    """What kernels compute, by digest; each is made of its text when it is first asked for."""

    def __init__(self, texts: Mapping[str, tuple[str, str, Rows | None]]) -> None:
        self._texts = texts
        self._made: dict[str, Spec] = {}

    def __getitem__(self, digest: str) -> Spec:
        found = self._made.get(digest)
        if found is None:
            kind, text, rows = self._texts[digest]
            step = None if rows is None else from_rows(rows, repeat(None))
            found = self._made[digest] = Spec(kind, Graph.from_json(text).freeze(), step)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)


def to_rows(plan: Plan) -> Rows:
    """Values that JSON has; ``from_rows`` makes an equal plan of them. Lines of the user's code are left out."""
    types: dict[TensorType, int] = {}
    numbers = {digest: i for i, digest in enumerate(plan.specs)}
    return {
        "name": plan.name,
        "target": plan.target,
        "options": dict(plan.options),
        "version": plan.version,
        "specs": [
            # What a loop repeats has no lines of its own.
            [key, spec.kind, spec.body.to_json(), spec.inner and to_rows(spec.inner)]
            for key, spec in plan.specs.items()
        ],
        "constants": {key: data.to_json() for key, data in plan.constants.items()},
        "buffers": [
            # JSON has no infinities and no NaN.
            [
                types.setdefault(b.type, len(types)),
                b.place,
                b.name,
                b.offset,
                repr(b.init),
                None if b.parts is None else [b.parts.axis, b.parts.sources],
            ]
            for b in plan.buffers
        ],
        "types": list(map(str, types)),
        "kernels": [
            [numbers[k.spec], k.operands, k.results, k.nodes, k.label, [c[0] for c in k.checks]]
            for k in plan.kernels
        ],
        "outputs": plan.outputs,
        "output_names": plan.output_names,
        "updates": plan.updates,
        "arena_bytes": plan.arena_bytes,
        "naive_bytes": plan.naive_bytes,
        "commit": plan.commit,
        "bounds": dict(plan.bounds),
    }


def sources_of(plan: Plan) -> list[Source | None]:
    """The lines of the user's code that a plan's kernels name, in the order that ``from_rows`` takes them."""
    return [line for k in plan.kernels for line in (k.source, *(c[1] for c in k.checks))]


def from_rows(rows: Rows, sources: Iterable[Source | None]) -> Plan:
    """The plan of these rows; ``sources`` as ``sources_of`` gave them."""
    lines = iter(sources)
    types = [parse_type(text) for text in rows["types"]]
    digests = [key for key, *_ in rows["specs"]]
    return Plan(
        name=rows["name"],
        target=rows["target"],
        specs=Specs({key: (kind, text, step) for key, kind, text, step in rows["specs"]}),
        buffers=tuple(
            Buffer(types[number], place, name, offset, float(init), _parts(parts))
            for number, place, name, offset, init, parts in rows["buffers"]
        ),
        kernels=tuple(
            Kernel(
                digests[spec],
                tuple(operands),
                tuple(results),
                tuple(nodes),
                label,
                next(lines),
                tuple((name, next(lines)) for name in checks),
            )
            for spec, operands, results, nodes, label, checks in rows["kernels"]
        ),
        outputs=tuple(rows["outputs"]),
        output_names=tuple(rows["output_names"]),
        updates=tuple((old, new) for old, new in rows["updates"]),
        constants={key: Data.from_json(record) for key, record in rows["constants"].items()},
        arena_bytes=rows["arena_bytes"],
        naive_bytes=rows["naive_bytes"],
        commit=rows["commit"],
        bounds={name: tuple(bound) for name, bound in rows["bounds"].items()},
        options=rows["options"],
        version=rows["version"],
    )


def _parts(row: tuple[int, Sequence[tuple[str, int]]] | None) -> Parts | None:
    return None if row is None else Parts(row[0], tuple((name, size) for name, size in row[1]))


def with_inits(plan: Plan, inits: Mapping[str, float]) -> Plan:
    """The plan whose states of these names begin otherwise."""
    buffers = tuple(
        replace(buffer, init=inits[str(buffer.name)])
        if buffer.place == "state" and buffer.name in inits
        else buffer
        for buffer in plan.buffers
    )
    return replace(plan, buffers=buffers)
