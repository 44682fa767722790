"""Which tensor of a checkpoint fills which parameter.

A parameter is filled by the tensor of its own name; where there is none, by that name with or without the model's prefix,
in the old spelling of layer norms (``gamma`` and ``beta``), or by the name it is tied to. All that does not fit is told at once.

    >>> import numpy as np
    >>> from darner.graph.types import TensorType
    >>> wanted = {"model.norm.weight": TensorType.new((4,)), "model.head.weight": TensorType.new((8, 4))}
    >>> stored = {"norm.gamma": np.ones(4, np.float16), "head.weight": np.ones((8, 4), np.float16)}
    >>> match(stored, wanted, prefix="model.").sources
    {'model.norm.weight': 'norm.gamma', 'model.head.weight': 'head.weight'}
    >>> match({"norm.weights": np.ones(4), "model.head.weight": np.ones((8, 5), np.float32)}, wanted, prefix="model.")
    Traceback (most recent call last):
    darner.load.matching.MismatchError: the weights do not fit:
    1 missing (no tensor for the parameter):
      model.norm.weight  f32[4]  did you mean 'norm.weights'?
    1 unexpected (no parameter for the tensor):
      norm.weights  f64[4]
    1 of another shape:
      model.head.weight  needs (8, 4)  stored (8, 5)
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from ..graph.dims import format_shape
from ..graph.errors import FormatError, did_you_mean
from ..graph.types import TensorType
from ..session.checkpoint import element_name, shape_fits
from .conversions import conversion, fault, same_bytes
from .files import TensorInfo, Weights
from .listing import Row, aligned, folded

COUNTERS = ("*num_batches_tracked",)
"""Tensors that only training reads, which are no fault where a graph has no use for them."""
_OLD = {"weight": "gamma", "bias": "beta"}
_MAX_HINTS, _MAX_NAMES = 20, 500


class Patterns:
    """Names, and patterns of names (``"*.bias"``): ``"fc.bias" in Patterns(["*.bias"])``."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._exact = frozenset(patterns)
        self._wild = tuple(one for one in self._exact if any(sign in one for sign in "*?["))

    def __contains__(self, name: str) -> bool:
        return name in self._exact or any(fnmatchcase(name, one) for one in self._wild)


class MismatchError(FormatError):
    """Weights that do not fit what is to be filled; the message lists all that is wrong.

    Attributes:
        match: what fits and what does not.
    """

    def __init__(self, rule: str, match: Match | None = None, *, hint: str | None = None) -> None:
        super().__init__(rule, hint=hint)
        self.match = match


@dataclass(frozen=True)
class Match:
    """How the tensors of a checkpoint and the parameters of a model belong together.

    Attributes:
        sources: the tensor that fills each parameter.
        missing: parameters for which there is none.
        unexpected: tensors for which there is no parameter.
        kept: parameters that may do without a tensor, and do: they keep their values.
        ignored: tensors that are passed over: those that the model says are no parameters, and the second names of tied ones.
        misshaped: parameters whose tensors have another shape.
        untyped: parameters whose tensors cannot become their element type, and why.
        untied: pairs of tensors that should be equal and are not.
    """

    sources: Mapping[str, str]
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    misshaped: tuple[str, ...] = ()
    untyped: Mapping[str, str] = field(default_factory=dict)
    untied: tuple[tuple[str, str], ...] = ()

    def fits(self, *, strict: bool = True) -> bool:
        """Whether all is well; unless ``strict``, with names that only one side has."""
        if self.misshaped or self.untyped or self.untied:
            return False
        return not (strict and (self.missing or self.unexpected))


def match(  # many parameters: they are the user's options, by name
    weights: Weights | Mapping[str, Any] | str | os.PathLike[str],
    wanted: Mapping[str, TensorType],
    *,
    prefix: str = "",
    tied: Mapping[str, str] | None = None,
    ignored: Iterable[str] = (),
    optional: Iterable[str] = (),
    allow_rounding: bool = False,
    strict: bool = True,
) -> Match:
    """Find the tensor of every parameter.

    Args:
        weights: the tensors, or where they are.
        wanted: the types of the parameters by name. A symbolic size accepts any.
        prefix: what a checkpoint of the bare model leaves out of names, or one of the whole adds (``"model."``).
        tied: names that mean the same as others; a checkpoint may have one of them or both, which must then be equal.
        ignored: patterns of names of tensors that are no parameters.
        optional: patterns of names of parameters that may keep the values they have.
        allow_rounding: whether f32 may become bf16, and the like.
        strict: whether parameters without tensors, and tensors without parameters, are faults. Other shapes always are.

    Raises:
        MismatchError: something does not fit. The error lists everything, and has the ``match``.
    """
    weights = Weights.of(weights)
    names = _Names(prefix, dict(tied or {}))
    sources = _sources(weights, wanted, names)
    absent = [name for name in wanted if name not in sources]
    spared = Patterns(optional)
    kept = tuple(name for name in absent if name in spared)
    passed, unexpected = _leftover(weights, sources, names, Patterns((*ignored, *COUNTERS)))
    found = Match(
        sources,
        tuple(name for name in absent if name not in spared),
        tuple(unexpected),
        kept,
        tuple(passed),
        tuple(n for n, s in sources.items() if not shape_fits(weights.info(s).shape, wanted[n])),
        dict(_untyped(weights, sources, wanted, allow_rounding)),
        tuple(_untied(weights, sources, names)),
    )
    if not found.fits(strict=strict):
        raise MismatchError(_message(weights, wanted, found, strict), found)
    return found


def unused(
    weights: Weights,
    wanted: Collection[str],
    *,
    prefix: str = "",
    tied: Mapping[str, str] | None = None,
    ignored: Iterable[str] = (),
) -> list[str]:
    """The tensors that fill none of the parameters and that the model does not ignore; arguments as for ``match``."""
    names = _Names(prefix, dict(tied or {}))
    sources = _sources(weights, wanted, names)
    return _leftover(weights, sources, names, Patterns((*ignored, *COUNTERS)))[1]


@dataclass(frozen=True)
class _Names:
    """What a name may be called elsewhere."""

    prefix: str
    tied: Mapping[str, str]

    def spellings(self, name: str) -> list[str]:
        """The name itself, with or without the prefix, and each in the old way."""
        found = [name]
        if self.prefix:
            shorter = name.startswith(self.prefix)
            found.append(name.removeprefix(self.prefix) if shorter else self.prefix + name)
        for spelling in list(found):
            scope, dot, last = spelling.rpartition(".")
            if dot and last in _OLD:
                found.append(f"{scope}.{_OLD[last]}")
        return found

    def equals(self, name: str) -> list[str]:
        """The other names of the same value."""
        root = self.tied.get(name, name)
        group = [root, *(one for one, other in self.tied.items() if other == root)]
        return [one for one in group if one != name]


def _sources(weights: Weights, wanted: Collection[str], names: _Names) -> dict[str, str]:
    found = {name: name for name in wanted if name in weights}
    taken = set(found)
    # Exact names first: no other spelling takes the tensor of another parameter.
    for name in wanted:
        if name not in found:
            for spelling in names.spellings(name)[1:]:
                if spelling in weights and spelling not in taken:
                    found[name] = spelling
                    taken.add(spelling)
                    break
    for name in wanted:
        if name not in found:
            others = (spelling for one in names.equals(name) for spelling in names.spellings(one))
            source = next((spelling for spelling in others if spelling in weights), None)
            if source is not None:
                found[name] = source
    return {name: found[name] for name in wanted if name in found}


def _second_names(
    weights: Weights, sources: Mapping[str, str], names: _Names
) -> Iterator[tuple[str, str]]:
    """Tensors that fill nothing, since one that does is tied to them: both names."""
    taken = set(sources.values())
    for name, source in sources.items():
        for one in names.equals(name):
            for spelling in names.spellings(one):
                if spelling in weights and spelling not in taken:
                    yield spelling, source


def _leftover(
    weights: Weights, sources: Mapping[str, str], names: _Names, ignored: Patterns
) -> tuple[list[str], list[str]]:
    """Tensors that fill nothing: those that need not, and those that should."""
    taken, tied = set(sources.values()), dict(_second_names(weights, sources, names))
    passed: list[str] = []
    unexpected: list[str] = []
    for name in weights:
        if name not in taken:
            fine = name in tied or any(one in ignored for one in names.spellings(name))
            (passed if fine else unexpected).append(name)
    return passed, unexpected


def _untyped(
    weights: Weights,
    sources: Mapping[str, str],
    wanted: Mapping[str, TensorType],
    allow_rounding: bool,
) -> Iterator[tuple[str, str]]:
    for name, source in sources.items():
        found, needed = weights.info(source).dtype, wanted[name].dtype.numpy
        if conversion(found, needed) != "exact":  # the others need a look at the values
            wrong = fault(weights[source], needed, allow_rounding)
            if wrong:
                yield name, wrong


def _untied(
    weights: Weights, sources: Mapping[str, str], names: _Names
) -> Iterator[tuple[str, str]]:
    for second, first in _second_names(weights, sources, names):
        if not same_bytes(weights[first], weights[second]):
            yield first, second


# --------------------------------------------------------------------------- the message


def _message(weights: Weights, wanted: Mapping[str, TensorType], found: Match, strict: bool) -> str:
    path = f" of '{weights.path}'" if weights.path else ""
    lines = [f"the weights{path} do not fit:"]
    for head, rows in _groups(weights, wanted, found, strict):
        if rows:
            lines += [head, *aligned(rows)]
    return "\n".join(lines)


def _groups(
    weights: Weights, wanted: Mapping[str, TensorType], found: Match, strict: bool
) -> Iterator[tuple[str, list[Row]]]:
    if strict:
        extra = folded((name, described(weights.info(name))) for name in found.unexpected)
        absent = folded((name, str(wanted[name])) for name in found.missing)
        count = len(found.missing)
        yield f"{count} missing (no tensor for the parameter):", list(_hinted(absent, extra))
        yield f"{len(found.unexpected)} unexpected (no parameter for the tensor):", extra
    shapes = [
        (
            _both(name, found.sources[name]),
            f"needs {format_shape(wanted[name].shape)}",
            f"stored {format_shape(weights.info(found.sources[name]).shape)}",
        )
        for name in found.misshaped
    ]
    yield f"{len(shapes)} of another shape:", folded(shapes)
    kinds = [
        (
            _both(name, found.sources[name]),
            f"needs {wanted[name].dtype}",
            f"stored {element_name(weights.info(found.sources[name]).dtype)}, {wrong}",
        )
        for name, wrong in found.untyped.items()
    ]
    rounds = any("rounding" in row[-1] for row in kinds)
    help_ = " (allow_rounding=True rounds)" if rounds else ""
    yield f"{len(kinds)} of another element type{help_}:", folded(kinds)
    pairs = [(first, f"is not equal to {second}") for first, second in found.untied]
    yield f"{len(pairs)} tied, but of different values:", folded(pairs)


def _hinted(missing: list[Row], unexpected: list[Row]) -> Iterator[Row]:
    """Rows with the nearest of the names that nobody wants."""
    names = [row[0] for row in unexpected[:_MAX_NAMES]]
    for i, row in enumerate(missing):
        # A long list means another model altogether, where hints mislead, and comparing names is slow.
        hint = did_you_mean(row[0], names) if i < _MAX_HINTS else None
        yield (*row, hint) if hint else row


def _both(name: str, source: str) -> str:
    return name if name == source else f"{name} (from {source})"


def described(info: TensorInfo) -> str:
    """Element type and shape as types print: ``f32[8, 4]``."""
    return f"{element_name(info.dtype)}[{', '.join(map(str, info.shape))}]"
