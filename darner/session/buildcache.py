"""Builds on disk: the plans of a session with their code, so that a second start searches, lowers and compiles nothing.

An entry is one file of the object cache, which sees to it that it is whole, that it is what was written under its key, and that the folder does not grow
without bound. It holds the plans (``plan_compact``), what the session has to know beside them, the optimizer's report, and what the programs saved.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..backends.base.cache import CacheWarning, ObjectCache
from ..backends.base.sections import join, split
from ..graph.cached import cached_property
from ..graph.errors import FormatError
from ..lower.plan import Plan
from ..lower.plan_compact import from_rows, sources_of, to_rows, with_inits
from ..optim.base import Optimizer
from .buildkey import BuildKey
from .pipeline import Plans

if TYPE_CHECKING:
    from ..optimizer import OptimizeReport


def load_build(cache: ObjectCache, key: BuildKey, optimizer: Optimizer | None) -> Plans | None:
    """The plans that an equal build left, with their code; None where there are none."""
    data = cache.get(key.text)
    if data is None:
        return None
    try:
        head, report, *saved = split(data)
        about = json.loads(head)
        # Numbers that no plan depends on are those of today.
        inits = {} if optimizer is None else optimizer.settings()
        plans = [with_inits(_plan(rows, key), inits) for rows in about["plans"]]
        return Plans(
            step=plans[0],
            setup=plans[1] if len(plans) > 1 else None,
            setup_names=tuple(about["setup_names"]),
            copies=tuple(about["copies"]),
            outputs=about["outputs"],
            gradients=tuple(about["gradients"]),
            saved=tuple(saved),
            told=StoredReport(report),
        )
    except (FormatError, ValueError, KeyError, IndexError, TypeError) as error:
        # Whole, and under this very key, yet of another form: only a fault of darner's own can have made it.
        warnings.warn(
            f"the build that was kept as {key.text} cannot be read ({error!r}): it is made again",
            CacheWarning,
            stacklevel=2,
        )
        return None


def keep_build(
    cache: ObjectCache,
    key: BuildKey,
    plans: Plans,
    saved: Sequence[bytes],
) -> None:
    """Keep plans and the code of their programs, the step's first.

    A search that was cut short by the clock may do better another time: what it found is not kept.
    """
    report = plans.report
    if report.is_hurried:
        return
    both = [plans.step] if plans.setup is None else [plans.step, plans.setup]
    about = {
        "plans": [_rows(plan, key) for plan in both],
        "setup_names": plans.setup_names,
        "copies": plans.copies,
        "outputs": plans.outputs,
        "gradients": plans.gradients,
    }
    cache.put(key.text, join([json.dumps(about).encode(), report.to_json().encode(), *saved]))


def _rows(plan: Plan, key: BuildKey) -> dict[str, Any]:
    lines = [key.numbered(source) for source in sources_of(plan)]
    return {**to_rows(plan), "lines": lines}


def _plan(rows: dict[str, Any], key: BuildKey) -> Plan:
    return from_rows(rows, [key.line(number) for number in rows["lines"]])


class StoredReport:
    """A report that was kept, read when somebody asks for it."""

    def __init__(self, text: bytes) -> None:
        self._text = text

    def __call__(self) -> OptimizeReport:
        """The report, which says that it is of an earlier build."""
        return self._report

    @cached_property
    def _report(self) -> OptimizeReport:
        from ..optimizer.report import OptimizeReport

        return OptimizeReport.from_json(self._text.decode(), cached=True)
