"""What a build depends on, as one hash: the same for the same model, options, machine and versions, in every process.

Equal keys mean that plans and code are equal, but for the lines of the user's code, which move whenever a file is edited. So a key says which nodes share a
line, not which line it is, and what is kept names lines by node.

What darner cannot see into has no key, and is built each time: ops and optimizer rules that were declared outside of darner. Functions that an optimizer
was given (a schedule, a filter, a rule of its own) are known by the graph that they make.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..backends.base.keys import source_digest
from ..backends.base.registry import backend_of
from ..graph.errors import Source, caller
from ..graph.graph import Graph
from ..graph.node import Node
from ..graph.op import Op
from ..optim.base import Optimizer
from ..optim.step import Summing
from .config import SessionConfig
from .pipeline import keeps_gradients, trained_names, update_graph

FREE = ("learning_rate",)
"""Numbers of darner's own optimizers that are states in every case, so that no plan depends on them."""

CALL = -1
"""In place of a node: the line that built the session."""


@dataclass(frozen=True)
class BuildKey:
    """What a build is known by.

    Attributes:
        text: the hash.
        lines: the distinct lines of the graph's nodes, in the order of their first nodes.
        call: the line that asked for the build.
    """

    text: str
    lines: tuple[Source | None, ...]
    call: Source | None

    def numbered(self, source: Source | None) -> int | tuple[str, int] | None:
        """A line as it can be kept: its number, or ``CALL``; itself where it is neither of the graph nor of the call."""
        if source is None:
            return None
        if source in self.lines:
            return self.lines.index(source)
        return CALL if source == self.call else (source.file, source.line)

    def line(self, number: Any) -> Source | None:
        """The line of this build that was ``numbered`` in an equal one."""
        if isinstance(number, int):
            return self.call if number == CALL else self.lines[number]
        return None if number is None else Source(*number)


def build_key(
    graph: Graph,
    config: SessionConfig,
    optimizer: Optimizer | None,
    sizes: Sequence[tuple[str, int]] = (),
) -> BuildKey | None:
    """The key of a session's plans for these sizes of symbols, and of their code, on this machine; None where it has none."""
    nodes = list(_all_nodes(graph))
    if not all(_is_own(op) for op in dict.fromkeys(node.op for node in nodes)) or not _own_rules():
        return None
    lines: dict[Source | None, int] = {}
    about = [[n.label, n.scope, lines.setdefault(n.source, len(lines))] for n in nodes]
    call = caller()
    parts = [
        ["build", _versions(config.device), source_digest()],
        [graph.name, graph.digest(), about, list(sizes)],
        [config.device, config.mode, config.level, config.precision, config.tune],
        [config.side_by_side],
        [keeps_gradients(config, optimizer), _described(graph, optimizer, call)],
        _machine(config.device),
    ]
    text = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    return BuildKey(text, tuple(lines), call)


def _all_nodes(graph: Graph) -> Iterator[Node]:
    """The nodes of a graph and of all graphs inside it."""
    for node in graph.nodes:
        yield node
        for value in node.attrs.values():
            if isinstance(value, Graph):
                yield from _all_nodes(value)


def _is_own(op: Op) -> bool:
    """Whether an op and everything that is known of it was declared by darner, whose source is part of every key."""
    rules = (getattr(op.rules, item.name) for item in fields(op.rules))
    functions = (rule for rule in rules if callable(rule))
    return op.builtin and all(_module_of(rule).startswith("darner.") for rule in functions)


def _own_rules() -> bool:
    """Whether the optimizer's rules and targets are those that it came with."""
    loaded = sys.modules.get("darner.optimizer")
    return loaded is None or bool(loaded.is_as_it_came())


def _module_of(value: Any) -> str:
    return str(getattr(value, "__module__", ""))


# --------------------------------------------------------------------------- optimizers


def _described(graph: Graph, optimizer: Optimizer | None, call: Source | None) -> Any:
    """An optimizer in plain values; where functions of the user are part of it, what they make of this graph."""
    if optimizer is None:
        return None
    if isinstance(optimizer, Summing):
        return ["Summing", optimizer.multipliers, _described(graph, optimizer.of, call)]
    schedule, decays = optimizer.schedule, optimizer.decay_filter
    own = _module_of(type(optimizer)).startswith("darner.") and not hasattr(optimizer, "rule")
    own = own and (schedule is None or not schedule.functions)
    own = own and (decays is None or _module_of(decays).startswith("darner."))
    if not own:
        made = update_graph(graph, optimizer)
        lines = [str(node.source) for node in made.nodes if node.source != call]
        names = trained_names(graph, optimizer)
        return [type(optimizer).__qualname__, made.digest(), lines, names]
    values = {item.name: getattr(optimizer, item.name) for item in fields(optimizer)}
    values["schedule"] = None if schedule is None else schedule.text
    values["decay_filter"] = None if decays is None else decays.__qualname__
    numbers = {name: value for name, value in values.items() if name not in FREE}
    return [type(optimizer).__module__, type(optimizer).__qualname__, numbers]


# --------------------------------------------------------------------------- darner and the machine


def _versions(device: str) -> list[str]:
    """What else takes part in building."""
    return [*_of_every_device(), *backend_of(device).versions()]


@cache
def _of_every_device() -> tuple[str, ...]:
    import numpy

    found = f"python {sys.version}", f"numpy {numpy.__version__}"
    return (*found, _installed("egglog"), _installed("highspy"))


def _installed(package: str) -> str:
    """A package and its version, found without importing it or what reads its papers."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return f"{package} is not there"
    folder = Path(spec.origin).parent.parent
    papers = sorted(path.name for path in folder.glob(f"{package}-*.dist-info"))
    if papers:
        return papers[0]
    from importlib.metadata import version

    return f"{package} {version(package)}"


def _machine(device: str) -> str:
    """What code for a device is made for."""
    return backend_of(device).machine(device).key()
