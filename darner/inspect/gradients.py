"""Gradients at a glance: for each parameter how large its gradient is, and what is wrong with it.

>>> import numpy as np
>>> weights = {"w": np.array([3.0, 4.0]), "b": np.array([1.0])}
>>> found = gradient_summary({"w": np.array([0.3, -0.4]), "b": np.array([0.0])}, weights)
>>> found["w"].norm, found["w"].ratio, found["b"].gradient.zero_share
(0.5, 0.1, 1.0)
>>> print(found)
gradients of 2 parameters: norm 0.5, 1 all zero
  parameter  shape  |g|  max |g|  mean g  zeros  |w|  |g|/|w|  remarks
  ---------  -----  ---  -------  ------  -----  ---  -------  --------
  w          [2]    0.5      0.4   -0.05           5      0.1
  b          [1]      0        0       0  100 %    1        0  all zero
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..graph.data import Array
from ..graph.errors import ArgumentError, Calling, UnknownNameError, nearest
from .statistics import Statistics, statistics
from .tables import Column, Part, Report, Table, as_json, clipped, number, percent, plural


@dataclass(frozen=True)
class ParameterGradient:
    """The gradient of one parameter.

    Attributes:
        name: the parameter's.
        gradient, weight: what they hold.
        update_norm: the norm of what the last step added to the parameter; None where it is not known.
    """

    name: str
    gradient: Statistics
    weight: Statistics
    update_norm: float | None = None

    @property
    def norm(self) -> float:
        """The norm of the gradient; NaN or infinite where an element is."""
        return _honest_norm(self.gradient)

    @property
    def ratio(self) -> float | None:
        """The gradient's norm over the parameter's; None where the parameter is zero."""
        return _ratio(self.norm, self.weight)

    @property
    def update_ratio(self) -> float | None:
        """The update's norm over the parameter's: about 0.001 in training that goes well."""
        return None if self.update_norm is None else _ratio(self.update_norm, self.weight)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What is wrong: elements that are not finite, a gradient or a weight that is not there."""
        found = []
        for what, of in (("", self.gradient), ("weight: ", self.weight)):
            if of.nans:
                found.append(f"{what}{of.nans:,} NaN")
            if of.infinities:
                found.append(f"{what}{of.infinities:,} Inf")
        if self.gradient.size and self.gradient.zeros == self.gradient.size:
            found.append("all zero")
        return tuple(found)


@dataclass(frozen=True)
class GradientSummary(Report):
    """The gradients of a model, a mapping by name that prints as a table.

    Attributes:
        parameters: in the order of the model.
        shown: how many the table lists: those with remarks, then the largest by norm; all with None.
    """

    parameters: tuple[ParameterGradient, ...]
    shown: int | None = None

    @property
    def norm(self) -> float:
        """The norm of all gradients together."""
        return math.hypot(*(one.norm for one in self.parameters))

    def __getitem__(self, name: str) -> ParameterGradient:
        for one in self.parameters:
            if one.name == name:
                return one
        known = [one.name for one in self.parameters]
        raise UnknownNameError(f"there is no gradient of '{name}'", hint=nearest(name, known))

    def __iter__(self) -> Iterator[ParameterGradient]:
        return iter(self.parameters)

    def __len__(self) -> int:
        return len(self.parameters)

    def records(self) -> list[dict[str, Any]]:
        """One dictionary for each parameter, of values that JSON has."""
        return [_record(one) for one in self.parameters]

    def __str__(self) -> str:
        return Report.__str__(self)

    def _parts(self) -> list[Part]:
        bad = sum(bool(one.gradient.bad) for one in self.parameters)
        zero = sum("all zero" in one.remarks for one in self.parameters)
        head = f"gradients of {plural(len(self.parameters), 'parameter')}: norm {self.norm:.4g}"
        head += f", {bad} not finite" if bad else ""
        head += f", {zero} all zero" if zero else ""
        chosen = self._chosen()
        if not chosen:
            return [head]
        rest = len(self.parameters) - len(chosen)
        return [head, _table(chosen, f"and {rest} more of smaller norm" if rest else "")]

    def _chosen(self) -> list[ParameterGradient]:
        if self.shown is None or self.shown >= len(self.parameters):
            return list(self.parameters)
        ranked = sorted(self.parameters, key=lambda one: (not one.remarks, -_finite(one.norm)))
        return ranked[: self.shown]


def gradient_summary(
    gradients: Mapping[str, Array],
    parameters: Mapping[str, Array],
    *,
    before: Mapping[str, Array] | None = None,
    updates: Mapping[str, Array] | None = None,
    shown: int | None = None,
) -> GradientSummary:
    """Sum up gradients.

    Args:
        gradients: by parameter.
        parameters: the values of the parameters; others than those of ``gradients`` may be there.
        before: what parameters were before the last step; the update is how they differ from it.
        updates: what the last step added to parameters, where that is known itself.
        shown: how many parameters the printed table lists.
    """
    with Calling("gradient_summary"):
        if shown is not None and shown < 0:
            raise ArgumentError(f"{shown} parameters cannot be shown")
        found = []
        for name, gradient in gradients.items():
            if name not in parameters:
                raise UnknownNameError(
                    f"there is no parameter '{name}'", hint=nearest(name, parameters)
                )
            weight = parameters[name]
            update = None
            if updates is not None and name in updates:
                update = statistics(updates[name])
            elif before is not None and name in before:
                wide = weight.astype("float64") - before[name].astype("float64")
                update = statistics(wide)
            norm = None if update is None else _honest_norm(update)
            found.append(ParameterGradient(name, statistics(gradient), statistics(weight), norm))
        return GradientSummary(tuple(found), shown)


def _honest_norm(found: Statistics) -> float:
    if found.nans:
        return math.nan
    return math.inf if found.infinities else found.norm


def _ratio(norm: float, weight: Statistics) -> float | None:
    size = _honest_norm(weight)
    return norm / size if size > 0 else None


def _finite(norm: float) -> float:
    return norm if norm == norm else math.inf


def _table(chosen: list[ParameterGradient], note: str) -> Table:
    columns = (
        Column("parameter", style="bold"),
        Column("shape", style="dim"),
        Column("|g|", "right", "cyan"),
        Column("max |g|", "right", "cyan"),
        Column("mean g", "right", "cyan"),
        Column("zeros", "right"),
        Column("|w|", "right"),
        Column("|g|/|w|", "right", "magenta"),
        Column("|dw|/|w|", "right", "magenta"),
        Column("remarks", style="red"),
    )
    rows = [
        (
            clipped(one.name, 48),
            str(list(one.gradient.shape)),
            number(one.norm),
            number(one.gradient.largest),
            number(one.gradient.mean),
            percent(one.gradient.zero_share) if one.gradient.zeros else "",
            number(one.weight.norm),
            number(one.ratio),
            number(one.update_ratio),
            ", ".join(one.remarks),
        )
        for one in chosen
    ]
    return Table(columns, rows, note)


def _record(one: ParameterGradient) -> dict[str, Any]:
    values = {
        "parameter": one.name,
        "shape": list(one.gradient.shape),
        "dtype": one.gradient.dtype,
        "norm": one.norm,
        "largest": one.gradient.largest,
        "mean": one.gradient.mean,
        "zero_share": one.gradient.zero_share,
        "nans": one.gradient.nans,
        "infinities": one.gradient.infinities,
        "weight_norm": _honest_norm(one.weight),
        "ratio": one.ratio,
        "update_norm": one.update_norm,
        "update_ratio": one.update_ratio,
    }
    return {name: as_json(value) for name, value in values.items()}
