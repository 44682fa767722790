"""What every architecture gives: graphs for training and inference, under the parameter names of its checkpoints."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, Self

from ..graph.errors import ArgumentError, nearest
from ..graph.graph import Graph
from ..graph.node import Node
from ..io.reading import shown
from ..nn.linear import Linear, LinearMaker
from .fields import as_table, check_fields


@dataclass(frozen=True, kw_only=True)
class Config:
    """The sizes of an architecture, under HuggingFace's names.

    ``extra`` keeps what a ``config.json`` says beyond the fields, so that it is written back.
    """

    model_type: ClassVar[str] = ""
    architecture: ClassVar[str] = ""

    extra: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False, compare=False)

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def layers(self) -> int:
        """How many layers it has, each with parameters of its own; 1 where that is not known."""
        return 1

    @property
    def parameter_count(self) -> int:
        """About how many parameters it has, found without making any; 0 where that is not known."""
        return 0

    @classmethod
    def from_hf(cls, found: Mapping[str, Any]) -> Self:
        """The configuration of a ``config.json``; a field that it must have and has not is named.

        Raises:
            ArgumentError: a field is missing, or is not what it may be (see ``fields``).
        """
        found = cls.translated(dict(as_table("the configuration", found)))
        known = {one.name for one in fields(cls)} - {"extra"}
        needed = {
            one.name
            for one in fields(cls)
            if one.default is MISSING and one.default_factory is MISSING
        }
        missing = sorted(needed - found.keys())
        if missing:
            raise ArgumentError(
                f"the configuration of a '{found.get('model_type', cls.model_type)}' needs {', '.join(missing)}",
                hint=nearest(missing[0], list(found)),
            )
        values = {name: _frozen(value) for name, value in found.items() if name in known}
        extra = {name: value for name, value in found.items() if name not in known}
        return cls(**values, extra=extra)

    @classmethod
    def translated(cls, found: dict[str, Any]) -> dict[str, Any]:
        """Older and newer spellings as the fields have them; architectures override it."""
        return found

    def to_hf(self) -> dict[str, Any]:
        """What ``config.json`` says of it."""
        own = {
            one.name: _plain(getattr(self, one.name))
            for one in fields(self)
            # What is nothing unless said is not said: readers take None for a value of its own.
            if not (one.default is None and getattr(self, one.name) is None)
        }
        extra = own.pop("extra")
        named = {"model_type": self.model_type, "architectures": [self.architecture]}
        return {**named, **extra, **own}


@dataclass(frozen=True, kw_only=True)
class LabelledConfig(Config):
    """A configuration that names its classes by ``id2label``, or says how many there are."""

    num_labels: int = 2

    @classmethod
    def translated(cls, found: dict[str, Any]) -> dict[str, Any]:
        """The number of classes is that of their names."""
        names = found.get("id2label")
        if names is not None and not isinstance(names, list | Mapping):
            raise ArgumentError(f"id2label is a table, got {shown(names)}")
        if "num_labels" not in found and names:
            found["num_labels"] = len(names)
        return found

    def to_hf(self) -> dict[str, Any]:
        """What ``config.json`` says of it, where classes have names."""
        found = super().to_hf()
        count = found.pop("num_labels")
        if len(found.get("id2label") or {}) != count:
            found["id2label"] = {str(i): f"LABEL_{i}" for i in range(count)}
            found["label2id"] = {f"LABEL_{i}": i for i in range(count)}
        return found


def matrices(width: int, inner: int, gated: bool = False) -> int:
    """The parameters of a layer of a transformer: four square matrices, and two or three to the inner width."""
    return 4 * width * width + (3 if gated else 2) * width * inner


def _frozen(value: Any) -> Any:
    """Lists of JSON as tuples, so that a configuration can be compared and hashed."""
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    if isinstance(value, Config):
        return value.to_hf()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value


def input_dtype(dtype: str) -> str:
    """The type of inputs for arithmetic in ``dtype``: what is narrower than f32 comes in as f32."""
    return dtype if dtype in ("f32", "f64") else "f32"


def as_type(x: Node, dtype: str) -> Node:
    """``x`` in ``dtype``, itself where it is."""
    return x if str(x.dtype) == dtype else x.cast(dtype)


def float_input(graph: Graph, name: str, shape: Sequence[int], dtype: str) -> Node:
    """An input for arithmetic in ``dtype``; what is narrower than f32 comes in as f32."""
    return as_type(graph.input(name, tuple(shape), input_dtype(dtype)), dtype)


@dataclass(frozen=True)
class Model(ABC):
    """An architecture of some configuration: each method gives a new graph.

    Attributes:
        config: its sizes.
        dtype: of parameters and arithmetic.
        linear: what makes its matrices: ``nn.Linear``, or ``nn.LoRA(...).linear``.
    """

    config: Any
    dtype: str = "f32"
    linear: LinearMaker = Linear

    config_class: ClassVar[type[Config]]
    prefix: ClassVar[str] = ""
    """What stands before the names of a checkpoint of the whole, and not of one of the bare model."""
    ignored: ClassVar[tuple[str, ...]] = ()
    """Patterns of names in checkpoints that are no parameters."""

    frozen: ClassVar[tuple[str, ...]] = ()
    """Names, or their beginnings with a star, that training leaves as they are: the optimizer's ``multipliers`` for them are 0."""

    @property
    def input_dtype(self) -> str:
        """The type of inputs that are no integers: what is narrower than f32 comes in as f32."""
        return input_dtype(self.dtype)

    @property
    def tied(self) -> dict[str, str]:
        """Names that a checkpoint may have beside the one they are the same as."""
        return {}

    @classmethod
    def from_config(cls, found: Mapping[str, Any], **options: Any) -> Self:
        """The model of a ``config.json``."""
        return cls(cls.config_class.from_hf(found), **options)

    @abstractmethod
    def inference_graph(self, *args: Any, **sizes: Any) -> Graph:
        """A graph that computes its results."""

    @abstractmethod
    def training_graph(self, *args: Any, **sizes: Any) -> Graph:
        """A graph whose first output is a loss."""
