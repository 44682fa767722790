"""What a session is asked to be."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ..backends.base.registry import DEFAULT_DEVICE, backend_of, built_in, meant
from ..graph.errors import ArgumentError, nearest
from ..graph.precision import Precision, check_precision
from ..optim.base import Optimizer

if TYPE_CHECKING:
    from ..backends.base.cache import ObjectCache
    from ..graph.data import Array
    from ..graph.types import TensorType

Mode = Literal["train", "infer"]
Rule: TypeAlias = "str | Callable[[str, TensorType, int], Array]"
"""How a parameter starts: the name of an initialiser, or a function of name, type and seed."""

_MODES = {"train": "train", "training": "train", "infer": "infer", "inference": "infer"}
LEVELS = (0, 1, 2, 3)


@dataclass(frozen=True)
class SessionConfig:
    """What a session is asked to be; ``build`` takes one, and keywords that replace its fields.

    Attributes:
        device: where it runs: ``"cpu"``, ``"gpu"`` (``"gpu:1"`` is the second), ``"cuda"`` (NVIDIA's, by their own driver; ``"gpu"`` is that where it works), ``"reference"`` (NumPy, slow, for comparison), or one of those that
            packages bring; ``darner.devices()`` tells which this machine has.
        mode: ``"train"``: the first output is a loss, and a step computes its gradients and updates parameters.
            ``"infer"``: a step computes the outputs, and what depends on parameters alone is computed once.
        optimizer: how parameters follow from gradients, of ``darner.optim``. Without one a training session computes loss
            and gradients until ``set_learning_rate``, ``set_adam`` or ``set_optimizer`` is called.
        threads: how many threads run a step; as many as there are cores when left out.
        precision: what contractions of f32 operands multiply in: ``"f32"``, ``"tf32"``, ``"bf16"`` or ``"f16"``. Their operands are rounded, sums and everything
            else stay f32; with ``"f16"`` training scales its loss. What a graph has in other types is computed in these.
        level: of optimization. 0: only what nothing needs is dropped; 1: canonical form; 2: equality saturation block by
            block; 3: and of the whole graph besides.
        seed: of initialisers.
        init: how parameters start: the name of an initialiser, a function, or a mapping from patterns of names
            (``"*.bias"``) to either; when left out, and for names that no pattern fits, as the parameter was declared
            (``parameter(..., init=)``), or zeros.
        cache: a folder for plans and compiled code, so that what was built once is loaded the next time; True for the user's
            cache folder, None or False to keep none.
        progress: show phases of building on a terminal; when left out, if it takes more than a second.
        keep_gradients: whether gradients can be read after a step; when left out, while there is no optimizer.
        side_by_side: whether training stores weights that share an operand (queries, keys and values; gate and up) side by side in one block, so that their
            products are one: where that is predicted to pay (None), wherever it is possible, or nowhere. Names, values and files are the same.
        specialisations: how many choices of symbolic sizes are kept compiled.
        tune: time the ways in which a GPU's kernels can be written and keep the fastest of each, for a bounded time; what is found is remembered in the
            cache for this GPU, its driver and this version.

    >>> SessionConfig(mode="infer", threads=2).with_changes(threads=1).threads
    1
    """

    device: str = DEFAULT_DEVICE
    mode: Mode = "train"
    optimizer: Optimizer | None = None
    threads: int | None = None
    precision: Precision = "f32"
    level: int = 2
    seed: int = 0
    init: Rule | Mapping[str, Rule] | None = None
    cache: str | os.PathLike[str] | bool | None = True
    progress: bool | None = None
    keep_gradients: bool | None = None
    side_by_side: bool | None = None
    specialisations: int = 8
    tune: bool = False

    def __post_init__(self) -> None:
        device = meant(self.device)
        object.__setattr__(self, "device", device)
        backend = backend_of(device)
        if not isinstance(self.mode, str) or self.mode not in _MODES:
            raise ArgumentError(f"mode is 'train' or 'infer', got {self.mode!r}")
        object.__setattr__(self, "mode", _MODES[self.mode])
        if self.optimizer is not None and not isinstance(self.optimizer, Optimizer):
            raise ArgumentError(f"optimizer is one of darner.optim's, got {self.optimizer!r}")
        if self.optimizer is not None and self.mode == "infer":
            raise ArgumentError("an inference session has no optimizer", hint="mode='train'")
        if self.threads is not None:
            _whole("threads", self.threads, 1)
        check_precision(self.precision)
        if isinstance(self.level, bool) or self.level not in LEVELS:
            raise ArgumentError(f"level is 0, 1, 2 or 3, got {self.level!r}")
        check_seed(self.seed)
        _whole("specialisations", self.specialisations, 1)
        if self.cache is not None and not isinstance(self.cache, bool | str | os.PathLike):
            raise ArgumentError(f"cache is a folder, True or None, got {self.cache!r}")
        if not isinstance(self.tune, bool):
            raise ArgumentError(f"tune is True or False, got {self.tune!r}")
        if self.tune and not backend.tunes:
            others = " or ".join(f"device='{row.name}'" for row in built_in() if row.tunes)
            raise ArgumentError(f"kernels of '{self.device}' are not tuned", hint=others)
        for name in ("progress", "keep_gradients", "side_by_side"):
            if getattr(self, name) not in (None, True, False):
                raise ArgumentError(f"{name} is True, False or None, got {getattr(self, name)!r}")

    def with_changes(self, **changes: Any) -> SessionConfig:
        """The same with other fields; an unknown one is an error that names the nearest."""
        known = [field.name for field in fields(self)]
        for name in changes:
            if name not in known:
                raise ArgumentError(f"SessionConfig has no '{name}'", hint=nearest(name, known))
        return replace(self, **changes)

    @property
    def trains(self) -> bool:
        """Whether a step computes gradients."""
        return self.mode == "train"

    def object_cache(self) -> ObjectCache | None:
        """Where compiled code is kept."""
        if self.cache is None or self.cache is False:
            return None
        if not backend_of(self.device).compiles:
            return None
        from ..backends.base.cache import Folder, ObjectCache

        return ObjectCache(Folder.USER if self.cache is True else Path(self.cache))


def check_seed(seed: Any) -> int:
    """A seed of initialisers."""
    _whole("seed", seed, 0)
    if seed >= 2**64:
        raise ArgumentError(f"seed has 64 bits, got {seed}")
    return int(seed)


def _whole(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ArgumentError(f"{name} is a whole number of at least {least}, got {value!r}")
