"""Plans in files, so that a second start need not search again.

A file is used only if nobody else can have written it (``backends/base/trust.py``), it is whole, and its key says that it was made from the same graph, options, optimizer, machine and versions. Any other is replaced, with a
warning; it is never run.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

from ..backends.base.registry import target_of
from ..backends.base.trust import UntrustedError, read_file
from ..graph.errors import DarnerError
from ..graph.graph import Graph
from ..lower.plan import Plan
from ..lower.plan_json import from_bytes
from ..optim.base import Optimizer
from .buildkey import build_key
from .config import SessionConfig
from .copies import prefix_of
from .pipeline import KEY, Plans, Timed, keeps_gradients, trained_names


class PlanFileWarning(UserWarning):
    """A plan's file could not be used or written; the session is not affected."""


def plan_path(path: Path, optimizer: Optimizer | None, part: str = "") -> Path:
    """Where the plan of a variant is: ``model.plan`` as asked, ``model.adam.plan`` with Adam."""
    words = [] if optimizer is None else [type(optimizer).__name__.lower()]
    words += [part] if part else []
    return path.with_name(".".join([path.stem, *words]) + path.suffix) if words else path


def load_plans(
    path: Path, graph: Graph, config: SessionConfig, optimizer: Optimizer | None, timed: Timed
) -> tuple[Plans | None, str | None]:
    """The plans of a file, or None where they must be made, and the key that they have; None where they have none."""
    with timed("load plan"):
        found = build_key(graph, config, optimizer)
        if found is None:
            _warn(f"the plan in '{path}' is not used: {graph.name!r} has ops or rules of your own")
            return None, None
        key = found.text
        step = _load(plan_path(path, optimizer), key, config)
        if step is None:
            return None, key
        others = [name for name in step.leaves("input") if name not in graph.inputs]
        names = tuple(sorted(others, key=lambda name: int(name.rpartition("/")[2])))
        prefix = prefix_of(graph)
        copies = tuple(name for name in step.leaves("state") if name.startswith(prefix))
        made = bool(names or copies)
        setup = _load(plan_path(path, optimizer, "setup"), key, config) if made else None
        if made and not _is_setup(setup, names, copies):
            return None, key
        keep = config.trains and keeps_gradients(config, optimizer)
        gradients = trained_names(graph, optimizer) if keep else ()
    return Plans(step, setup, names, copies, len(graph.outputs), gradients), key


def _is_setup(setup: Plan | None, names: Sequence[str], copies: Sequence[str]) -> bool:
    """Whether a plan makes what a step reads: values by their number, and copies of parameters."""
    if setup is None or len(setup.outputs) != len(names):
        return False
    return {str(setup.buffers[old].name) for old, _ in setup.updates} == set(copies)


def _load(path: Path, key: str, config: SessionConfig) -> Plan | None:
    try:
        plan = from_bytes(read_file(path), str(path))
    except FileNotFoundError:
        return None
    except UntrustedError as error:
        _warn(f"the plan in '{path}' is not used, and is made again: {error}")
        return None
    except (DarnerError, OSError) as error:
        _warn(f"the plan in '{path}' cannot be used, and is made again: {error}")
        return None
    if plan.options.get(KEY) != key or plan.target != target_of(config.device):
        _warn(f"the plan in '{path}' is of another graph, machine or version, and is made again")
        return None
    return plan


def save_plans(path: Path, plans: Plans, optimizer: Optimizer | None) -> None:
    """Keep plans for the next time."""
    try:
        plans.step.save(plan_path(path, optimizer))
        if plans.setup is not None:
            plans.setup.save(plan_path(path, optimizer, "setup"))
    except (DarnerError, OSError) as error:
        _warn(f"the plan cannot be kept in '{path}': {error}")


def _warn(text: str) -> None:
    warnings.warn(text, PlanFileWarning, stacklevel=2)
