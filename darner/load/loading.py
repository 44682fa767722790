"""Weights into the parameters and states of a session.

>>> import darner
>>> from darner import load, nn
>>> import numpy as np
>>> g = darner.Graph("line")
>>> g.set_outputs([nn.Linear("fc", 2, 1)(g.input("x", (1, 2)))])
>>> with darner.build_inference_session(g, device="reference") as session:
...     found = load.load(session, {"fc.weight": np.ones((1, 2), np.float16), "fc.bias": np.zeros(1, np.float16)})
...     session.run({"x": [[3.0, 4.0]]})["output0"]
array([[7.]], dtype=float32)
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np

from ..graph.data import Array
from ..graph.graph import Graph
from ..graph.integers import round_up
from ..graph.types import TensorType
from ..io.memory import ALIGNMENT, aligned
from ..ops.random.bits import STEP
from ..session.session import Session
from ..session.values import leaf_type
from .files import Weights
from .matching import Match, match

ADAPTED = ("*lora_A.weight", "*lora_B.weight")
"""Parameters that a checkpoint of the model itself does not have."""
_AT_ONCE = 1 << 26


def load(  # many parameters: they are the user's options, by name
    session: Session,
    weights: Weights | Mapping[str, Any] | str | os.PathLike[str],
    model: Any = None,
    *,
    prefix: str | None = None,
    tied: Mapping[str, str] | None = None,
    ignored: Iterable[str] | None = None,
    optional: Iterable[str] = ADAPTED,
    strict: bool = True,
    allow_rounding: bool = False,
) -> Match:
    """Write weights into the parameters of a session, and into its states that a checkpoint has (running means, say).

    Everything is compared before anything changes. Then tensors are read, converted and written one after another.

    Args:
        session: what is filled.
        weights: the tensors, or the path of their file or folder.
        model: where ``prefix``, ``tied`` and ``ignored`` come from, unless they are given; see ``match``.
        prefix: what names may leave out or have besides.
        tied: names that mean the same as others.
        ignored: patterns of tensors that are no parameters.
        optional: patterns of parameters that may keep their values: the low-rank changes of a model.
        strict: whether names that only one side has are faults.
        allow_rounding: whether values may be rounded to narrower element types.

    Raises:
        MismatchError: they do not fit; the session is as it was.
        FormatError, FileError: a file was cut short, or the system will not read it. Where that happened while it was read, the
            tensors before it are written.
    """
    given = {"prefix": prefix, "tied": tied, "ignored": ignored}
    options = {
        **said(model),
        **{name: value for name, value in given.items() if value is not None},
        "optional": optional,
        "strict": strict,
        "allow_rounding": allow_rounding,
    }
    weights = Weights.of(weights)
    found = match_graph(session.graph, weights, **options)
    write(session, weights, found)
    return found


def said(model: Any) -> dict[str, Any]:
    """What a model says of the names in its checkpoints, as options of ``match``."""
    named = ("prefix", "tied", "ignored")
    return {name: getattr(model, name) for name in named if hasattr(model, name)}


def match_graph(
    graph: Graph,
    weights: Weights,
    *,
    optional: Iterable[str] = ADAPTED,
    skipped: Collection[str] = (),
    **options: Any,
) -> Match:
    """``match`` for the parameters and states of a graph; those that are ``skipped`` keep what they have."""
    wanted = {name: leaf_type(leaf) for name, leaf in graph.parameters.items()}
    states = {name: leaf_type(leaf) for name, leaf in graph.states.items()}
    needed = learned_states(graph)
    free = [name for name in states if name not in needed or states[name].dtype.is_int]
    found = match(weights, wanted | states, optional=(*optional, *free, *skipped), **options)
    left = {name: source for name, source in found.sources.items() if name not in skipped}
    return replace(found, sources=left, kept=tuple(n for n in found.kept if n not in skipped))


def learned_states(graph: Graph) -> dict[str, TensorType]:
    """The states that belong to a model's weights, such as running means: those beside parameters of the same layer.

    Others, such as caches and the count of runs, begin anew with every session.
    """
    layers = {name.rpartition(".")[0] for name in graph.parameters}
    return {
        name: leaf_type(leaf)
        for name, leaf in graph.states.items()
        if name.rpartition(".")[0] in layers and name != STEP
    }


def write(session: Session, weights: Weights, found: Match) -> None:
    """Write the tensors of a match, which has checked them."""
    weights.check_unchanged()  # while nothing is written yet
    graph = session.graph
    tables = (
        (session.parameters(), graph.parameters),
        (session.state(), graph.states),
    )
    for table, leaves in tables:
        sources = {name: source for name, source in found.sources.items() if name in leaves}
        for batch in _batches(weights, sources):
            table.update(
                {name: _cast(array, leaves[name].dtype.numpy) for name, array in batch.items()}
            )


def _batches(weights: Weights, sources: Mapping[str, str]) -> Iterator[dict[str, Array]]:
    """Large tensors one by one, small ones together: a call for each would cost more than its bytes.

    Each batch is read into the memory of the one before it: new memory costs as much as reading.
    """
    batches: list[dict[str, int]] = []
    total = _AT_ONCE
    for name, source in sources.items():
        size = weights.info(source).nbytes
        total += 4 * size
        if total > _AT_ONCE:
            batches.append({})
            total = 4 * size
        batches[-1][name] = size
    rooms = [[round_up(size, ALIGNMENT) for size in batch.values()] for batch in batches]
    room = aligned(max(map(sum, rooms), default=0))
    for batch, sizes in zip(batches, rooms, strict=True):
        starts = accumulate(sizes, initial=0)
        yield {
            name: weights.read(sources[name], room[start : start + size])
            for (name, size), start in zip(batch.items(), starts, strict=False)
        }


def _cast(array: Array, dtype: np.dtype[Any]) -> Array:
    with np.errstate(invalid="ignore"):  # a stored NaN stays one
        return array.astype(dtype, copy=False)
