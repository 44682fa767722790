"""The code of a plan, and what a program has to know of it: made from the plan, or read from what an earlier program kept.

What it takes to run code is little: which function each kernel calls, the scratch memory it needs, what it wants packed, and where threads wait. All of
it follows from the plan's specs, but whoever has it needs neither specs nor templates, so that a second start reads a file and emits nothing.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from ....graph.errors import FormatError
from ....lower.plan import Plan
from ...base.cache import ObjectCache
from ...base.sections import join, split
from ..emit.panels import Panels
from .jit import Machine, lasting_objects, remember


class Packed(NamedTuple):
    """An operand that a kernel takes packed; see ``template.Packing``."""

    operand: int
    nbytes: int
    key: str
    panels: Panels | None = None


@dataclass(frozen=True)
class Native:
    """Object code and how to use it.

    Attributes:
        objects: the code; symbols of one may be called by another.
        kernels: the name of each kernel's function.
        packed: what each kernel takes packed, if anything.
        packing: the name of the function that packs, by the key of the packing.
        panels: the parameters and states that lie in panels, by the name of each.
        own: bytes of scratch memory that each thread needs.
        shared: bytes of scratch memory that all threads share.
        waits: after which kernels all threads wait.
        checked: the kernels that check their data, and so may tell of a fault.
    """

    objects: tuple[bytes, ...]
    kernels: tuple[str, ...]
    packed: tuple[Packed | None, ...]
    packing: Mapping[str, str]
    panels: Mapping[str, Panels]
    own: int
    shared: int
    waits: tuple[bool, ...]
    checked: tuple[int, ...]

    def to_bytes(self) -> bytes:
        """What ``from_bytes`` reads."""
        # What starts threads and walks through kernels takes as long to compile as all of this to load.
        process = lasting_objects()
        about = asdict(replace(self, objects=()))
        about["objects"] = list(process)
        return join([json.dumps(about).encode(), *process.values(), *self.objects])

    @classmethod
    def from_bytes(cls, data: bytes) -> Native:
        """The code that ``to_bytes`` wrote.

        Raises:
            FormatError: it is something else.
        """
        head, *objects = split(data)
        try:
            about: dict[str, Any] = json.loads(head)
            process = about.pop("objects")
            remember(dict(zip(process, objects, strict=False)))
            objects = objects[len(process) :]
            about["packed"] = tuple(item and _packed(*item) for item in about["packed"])
            about["panels"] = {name: Panels(*item) for name, item in about["panels"].items()}
            for name in ("kernels", "waits", "checked"):
                about[name] = tuple(about[name])
            return cls(objects=tuple(objects), **about)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FormatError(f"this is not the code of a plan: {error!r}") from None


def _packed(operand: int, nbytes: int, key: str, panels: Sequence[Any] | None) -> Packed:
    return Packed(operand, nbytes, key, None if panels is None else Panels(*panels))


def native_of(
    plan: Plan, machine: Machine, fixed: Collection[int] = (), cache: ObjectCache | None = None
) -> Native:
    """The code of a plan: from the cache, where nothing has to be emitted, or made and kept.

    ``fixed`` are buffers that change seldom, which are packed where that helps.
    """
    from ..kernels import compiled, functions_of

    functions = functions_of(plan, machine, frozenset(fixed))
    needs = [functions.all[name].scratch for name in functions.kernels]
    packings = [functions.all[name].packing for name in functions.kernels]
    checked = (k for k, kernel in enumerate(plan.kernels) if kernel.checks)
    return Native(
        objects=compiled(plan, functions, cache, machine),
        kernels=functions.kernels,
        packed=tuple(
            None if one is None else Packed(one.operand, one.nbytes, one.key, one.panels)
            for one in packings
        ),
        packing={key: name for key, (name, _) in functions.packing.items()},
        panels={str(plan.buffers[i].name): panels for i, panels in functions.panels.items()},
        own=max((need.own for need in needs), default=0),
        shared=max((need.shared for need in needs), default=0),
        waits=tuple(_waits(plan, [need.shared > 0 for need in needs])),
        checked=tuple(checked),
    )


def _waits(plan: Plan, shares: Sequence[bool]) -> list[bool]:
    """After which kernels all threads wait: before one that touches what an earlier one since the last wait did, and where the plan commits.

    ``shares`` says which kernels use the scratch memory of all threads.
    """
    waits = [False] * len(plan.kernels)
    since = 0
    for k, before in enumerate(plan.hazards()):
        crossing = any(earlier >= since for earlier in before)
        crossing |= shares[k] and any(shares[since:k])
        crossing |= k == plan.commit
        if crossing and k:
            waits[k - 1] = True
            since = k
    if waits:
        at_end = plan.commit == len(plan.kernels)
        waits[-1] = at_end or any(old != new for old, new in plan.updates)
    return waits
