"""Low-rank changes in the folders of PEFT: ``adapter_config.json`` and ``adapter_model.safetensors``.

PEFT calls the matrices of ``q_proj`` ``base_model.model.<name>.q_proj.lora_A.weight``; darner calls them ``<name>.q_proj.lora_A.weight``.

    >>> import tempfile
    >>> from darner import load, nn
    >>> lora = nn.LoRA(rank=2, alpha=4.0, targets=("*q_proj",))
    >>> learned = {"model.q_proj.lora_A.weight": np.ones((2, 8)), "model.q_proj.lora_B.weight": np.ones((8, 2))}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     files = load.save_adapter(folder, learned, lora)
    ...     found = load.adapter(folder)
    ...     print(found.lora.alpha, found.lora.targets, list(found.weights))
    4.0 ('q_proj', '*.q_proj') ['model.q_proj.lora_A.weight', 'model.q_proj.lora_B.weight']
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Any

import numpy as np

from ..graph.data import Array
from ..graph.dims import format_shape
from ..graph.errors import ArgumentError, FormatError, ShapeError, UnknownNameError
from ..io.reading import read_json, shown
from ..io.tensorfile import open_tensors, stored
from ..nn.linear import LoRA
from ..session.session import Session
from .files import ADAPTER, Stored, TensorInfo, Weights
from .hub import folder as find_folder
from .loading import ADAPTED, match_graph, write
from .matching import Match, Patterns
from .saving import replacing, write_tensors
from .texts import write_json

CONFIG = "adapter_config.json"
MOST_RANK = 1 << 16
_PREFIX = "base_model.model."
_MATRIX = re.compile(r"(?:(.*)\.)?lora_[AB]\.weight")
_STRANGE = ("pissa", "olora", "corda", "loftq")
"""Ways of starting that change the model's own matrices too, so that the low-rank ones mean nothing without these."""


@dataclass(frozen=True)
class Adapter:
    """Low-rank changes to a model.

    Attributes:
        lora: rank, scale and the names of the matrices that are changed: ``load.pretrained(..., linear=adapter.lora.linear)``.
        weights: their matrices, and other parameters that were trained with them, by darner's names.
        config: what ``adapter_config.json`` says.
    """

    lora: LoRA
    weights: Weights
    config: Mapping[str, Any]

    @property
    def base(self) -> str:
        """The model that it changes, a folder or a name of the hub; empty where that is not said."""
        return str(self.config.get("base_model_name_or_path") or "")

    def load(self, session: Session, *, allow_rounding: bool = False) -> Match:
        """Write the changes into a session of a model that was built with ``lora.linear``.

        Raises:
            MismatchError: they do not fit; the session is as it was.
        """
        changes, parameters = Patterns(ADAPTED), session.graph.parameters
        others = {n for n in parameters if n not in self.weights and n not in changes}
        found = match_graph(
            session.graph,
            self.weights,
            optional=(),
            skipped=others | session.graph.states.keys(),
            allow_rounding=allow_rounding,
        )
        write(session, self.weights, found)
        return found


def adapter(path_or_id: str | os.PathLike[str], revision: str | None = None) -> Adapter:
    """The adapter of a folder, or of a name of the hub, as PEFT saves them.

    Raises:
        FormatError: it is no adapter of low rank, is damaged, or is of a kind that darner has not.
    """
    folder = find_folder(path_or_id, revision)
    config = read_json(folder / CONFIG)
    file = open_tensors(folder / ADAPTER)
    names = {_own_name(name): name for name in file.entries}
    if len(names) != len(file.entries):
        raise FormatError(f"'{folder / ADAPTER}' has two tensors for one parameter")
    weights = Weights(os.fspath(folder), {own: Stored(file, name) for own, name in names.items()})
    return Adapter(_lora(folder / CONFIG, config, weights), weights, config)


def _own_name(name: str) -> str:
    return name.removeprefix(_PREFIX).replace(".base_layer.", ".")


def _lora(path: Path, config: Mapping[str, Any], weights: Weights) -> LoRA:
    kind = config.get("peft_type")
    if kind != "LORA":
        raise FormatError(f"'{path}' is of the kind {shown(kind)}; darner reads 'LORA' alone")
    for name in ("use_dora", "rank_pattern", "alpha_pattern"):
        if config.get(name):
            raise FormatError(f"'{path}' has {name}={shown(config[name])}, which darner has not")
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_STRANGE):
        raise FormatError(
            f"'{path}' was started by {shown(start)}, which changes the model's own matrices",
            hint="let PEFT save it as a plain change: save_pretrained(..., path_initial_model_for_weight_conversion=...)",
        )
    rank = config.get("r")
    if not isinstance(rank, int) or isinstance(rank, bool) or not 1 <= rank <= MOST_RANK:
        raise FormatError(
            f"'{path}' has the rank r={shown(rank)}, which is no whole number from 1 to {MOST_RANK:,}"
        )
    alpha = _number(path, config, "lora_alpha", 8.0, most=1e12)
    # PEFT's other scale is alpha / sqrt(rank); darner's is alpha / rank.
    scaled = alpha * math.sqrt(rank) if config.get("use_rslora") else alpha
    modules = _modules(weights)
    if not modules:
        raise FormatError(f"'{weights.path}' holds no lora_A and lora_B")
    _check_targets(path, config.get("target_modules"), weights)
    for name in weights:
        shape = weights.info(name).shape
        if name.endswith("lora_A.weight") and shape[:1] != (rank,):
            raise FormatError(
                f"'{path}' says rank {rank}, but {shown(name)} has the shape {format_shape(shape)}"
            )
    # Names are no patterns: one with a star in it means that star.
    targets = tuple(pattern for name in modules for pattern in (escape(name), f"*.{escape(name)}"))
    dropout = _number(path, config, "lora_dropout", 0.0, most=1.0)
    return LoRA(rank=rank, alpha=scaled, dropout=dropout, targets=targets)


def _number(
    path: Path, config: Mapping[str, Any], name: str, default: float, *, most: float
) -> float:
    value = config.get(name, default)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= most:  # which no NaN is
        raise FormatError(
            f"'{path}' has {name}={shown(value)}, which is no number from 0 to {most:,.0f}"
        )
    return float(value)


def _check_targets(path: Path, targets: Any, weights: Weights) -> None:
    """Refuse ``target_modules`` that are none, or a list that does not name what is changed.

    A text is a regular expression, which may take for ever: it is not run. What is changed is what there are matrices of.
    """
    if targets is None or (isinstance(targets, str) and targets):
        return
    several = targets if isinstance(targets, list) else []
    if not several or not all(isinstance(one, str) and one for one in several):
        raise FormatError(
            f"'{path}' has target_modules={shown(targets)}, where names of matrices are needed"
        )
    last = {one.rpartition(".")[2] for one in several}
    for name in _modules(weights):
        if name not in last:
            raise FormatError(
                f"'{path}' has target_modules={shown(targets)}, but the weights change {shown(name)}"
            )


def _modules(names: Mapping[str, Any]) -> list[str]:
    """The last words of the names of changed matrices: what PEFT calls target_modules."""
    found = (_MATRIX.fullmatch(name) for name in names)
    return sorted({(match[1] or "").rpartition(".")[2] for match in found if match})


def merged(
    parameters: Mapping[str, Any] | Session, lora: LoRA, *, transposed: Iterable[str] = ()
) -> Mapping[str, Array]:
    """Parameters with the low-rank changes added to the matrices they change: ``weight + alpha / rank * B @ A``.

    Values are computed in f32 or wider when they are asked for, so ``load.save(folder, config, load.merged(session, lora))`` holds
    one matrix at a time.

    Args:
        parameters: a session, or arrays by name.
        lora: what the model was built with.
        transposed: patterns of names of matrices that are stored (inputs, outputs), as those of GPT-2 are.

    >>> values = {"q.weight": np.eye(2), "q.lora_A.weight": np.ones((1, 2)), "q.lora_B.weight": np.ones((2, 1)), "norm": np.ones(3)}
    >>> found = merged(values, LoRA(rank=1, alpha=3.0))
    >>> list(found), found["q.weight"].tolist()
    (['q.weight', 'norm'], [[4.0, 3.0], [3.0, 4.0]])
    """
    return _Merged(_values(parameters), lora, Patterns(transposed))


class _Merged(Mapping[str, Array]):
    def __init__(self, values: Mapping[str, Any], lora: LoRA, transposed: Patterns) -> None:
        self._values, self._lora, self._transposed = values, lora, transposed
        self._names = [name for name in values if not _MATRIX.fullmatch(name)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, name: str) -> Array:
        if _MATRIX.fullmatch(name):
            raise UnknownNameError(f"'{name}' is merged into its matrix")
        weight = np.asarray(self._values[name])
        scope, _, last = name.rpartition(".")
        start = f"{scope}." if scope else ""
        if last != "weight" or f"{start}lora_A.weight" not in self._values:
            return weight
        wide = np.promote_types(weight.dtype, np.float32)
        down, up = (
            np.asarray(self._values[f"{start}lora_{which}.weight"]).astype(wide) for which in "AB"
        )
        change = (self._lora.alpha / self._lora.rank) * (up @ down)
        change = change.T if name in self._transposed else change
        if change.shape != weight.shape or down.shape[0] != self._lora.rank:
            raise ShapeError(
                f"'{name}' is {format_shape(weight.shape)}, but its change of rank {down.shape[0]} is {format_shape(change.shape)}",
                hint=f"lora has rank {self._lora.rank}; matrices stored (inputs, outputs) are named by transposed=",
            )
        return (weight.astype(wide) + change).astype(weight.dtype, copy=False)


def _values(parameters: Mapping[str, Any] | Session) -> Mapping[str, Any]:
    return parameters.parameters() if isinstance(parameters, Session) else parameters


def save_adapter(
    folder: str | os.PathLike[str],
    parameters: Mapping[str, Any] | Session,
    lora: LoRA,
    *,
    base: str = "",
    config: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Write the low-rank changes among parameters as a folder that PEFT loads, and return its files.

    Args:
        folder: where to; the folder above it must exist. Other files that are there stay.
        parameters: a session, or arrays by name; only ``lora_A.weight`` and ``lora_B.weight`` of each matrix are written.
        lora: what the model was built with.
        base: the model that is changed: a folder, or a name of the hub.
        config: further entries of ``adapter_config.json``, which win (``{"task_type": "CAUSAL_LM"}``).
    """
    values = _values(parameters)
    names = [name for name in values if _MATRIX.fullmatch(name)]
    if not names:
        raise ArgumentError(
            "there are no low-rank changes among the parameters",
            hint="build the model with linear=nn.LoRA(...).linear",
        )
    table = {
        "peft_type": "LORA",
        "base_model_name_or_path": base or None,
        "r": lora.rank,
        "lora_alpha": _plain(lora.alpha),
        "lora_dropout": lora.dropout,
        "target_modules": _modules(dict.fromkeys(names)),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "task_type": None,
        **(config or {}),
    }
    arrays = {_PREFIX + name: stored(name, np.asarray(values[name])) for name in names}
    with replacing(Path(folder).expanduser(), lambda _: False) as staging:
        write_json(staging / CONFIG, table)
        kinds = {name: TensorInfo.of(array) for name, array in arrays.items()}
        write_tensors(staging / ADAPTER, kinds, arrays)
    return [Path(folder).expanduser() / name for name in (CONFIG, ADAPTER)]


def _plain(number: float) -> float | int:
    """A whole number as one, as PEFT writes it."""
    return int(number) if float(number).is_integer() else number
