"""What the metadata of a checkpoint says of optimizers, and checkpoints in the layout of others."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

import numpy as np

from ..graph.errors import FormatError
from ..io.atomic import Path
from ..io.reading import parse_json, shown
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


def listed_mismatches(path: Path, mismatches: tuple[str, ...], metadata: Mapping[str, str]) -> str:
    """The error of a checkpoint that does not fit a session: a line for each name, up to a number."""
    lines = [f"  {line}" for line in mismatches[:_SHOWN]]
    if len(mismatches) > _SHOWN:
        lines.append(f"  and {len(mismatches) - _SHOWN} more")
    saved = f" (it was saved with {metadata[OPTIMIZER_KEY]})" if OPTIMIZER_KEY in metadata else ""
    return "\n".join([f"'{path}' does not fit this session{saved}:", *lines])
