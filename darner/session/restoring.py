"""What the metadata of a checkpoint says of optimizers, and checkpoints in the layout of others."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

import numpy as np

from ..graph.data import Array
from ..graph.errors import FormatError
from ..graph.types import TensorType
from ..io.atomic import Path
from ..io.reading import parse_json, shown
from ..optim.loss_scale import PREFIX as SCALING
from .checkpoint import Checkpoint

OPTIMIZER_KEY = "session.optimizer"
STATES_KEY = "session.optimizer_states"
_SHOWN = 20


def names_in(text: str, path: Path) -> list[str]:
    """The names of an optimizer's states, as the metadata of a checkpoint has them."""
    what = f"{STATES_KEY} of '{os.fspath(path)}'"
    found = parse_json(text.encode(), what)
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise FormatError(f"{what} is no list of names, but {shown(found)}")
    return list(dict.fromkeys(found))


def translated(path: Path, checkpoint: Checkpoint) -> Checkpoint:
    """The names of Meganeura's flat layout as this library's: ``adam_m.w`` is ``w/mean``."""
    if not checkpoint.is_foreign:
        return checkpoint
    parameters, states = dict(checkpoint.parameters), dict(checkpoint.states)
    for name in list(parameters):
        for start, end in (("adam_m.", "mean"), ("adam_v.", "variance")):
            if name.startswith(start) and name.removeprefix(start) in parameters:
                states[f"{name.removeprefix(start)}/{end}"] = parameters.pop(name)
    metadata = dict(checkpoint.metadata)
    step = metadata.get("adam_step", "")
    if states and step.isdecimal():
        if len(step) > 18 or int(step) > np.iinfo(np.int32).max:
            raise FormatError(f"'{path}' has the step {step[:40]}, which no training reaches")
        states["optimizer/step"] = np.array(int(step), np.int32)
    if states:
        metadata |= {STATES_KEY: json.dumps(list(states)), OPTIMIZER_KEY: "Adam"}
    return Checkpoint(parameters, states, metadata)


def with_loss_scale_apart(
    states: Mapping[str, Array], needed: Mapping[str, TensorType]
) -> tuple[dict[str, Array], dict[str, TensorType]]:
    """States of a file and those that a session has, without a loss scale that only one of them has.

    So what was learned in one precision goes on in another.
    """
    scale = [name for name in (*states, *needed) if name.startswith(SCALING)]
    alone = {name for name in scale if not (name in states and name in needed)}
    kept = {name: value for name, value in states.items() if name not in alone}
    return kept, {name: type_ for name, type_ in needed.items() if name not in alone}


def listed_mismatches(path: Path, mismatches: tuple[str, ...], metadata: Mapping[str, str]) -> str:
    """The error of a checkpoint that does not fit a session: a line for each name, up to a number."""
    lines = [f"  {line}" for line in mismatches[:_SHOWN]]
    if len(mismatches) > _SHOWN:
        lines.append(f"  and {len(mismatches) - _SHOWN} more")
    saved = f" (it was saved with {metadata[OPTIMIZER_KEY]})" if OPTIMIZER_KEY in metadata else ""
    return "\n".join([f"'{path}' does not fit this session{saved}:", *lines])
