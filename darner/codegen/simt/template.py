"""What every kernel template of the GPU is written against.

A template makes the code of one family of kernels: ``fits`` says whether it has code for a spec, ``write`` writes it for a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...lower.plan import Spec
from .dispatch import Written
from .machine import Machine

Variants = Mapping[str, Callable[[], Written]]
"""Ways to write a kernel, by a name that says how; the one that is expected to be best comes first."""


@dataclass(frozen=True)
class Template:
    """A family of kernels: which specs it has code for on which GPU, and the code.

    Attributes:
        variants: where there are several ways to write a spec, all that are worth a try; see ``tuning``.
    """

    name: str
    fits: Callable[[Spec, Machine], bool]
    write: Callable[[Spec, Machine], Written]
    variants: Callable[[Spec, Machine], Variants] | None = None
