"""The optimizer: equal forms of a graph by rules, and the cheapest of them on a target.

    canonical   what is cheaper in every case, done at once
    blocks      where a graph repeats itself, so that each block is worked on once
    saturate    all forms that rules find, kept together in an e-graph (``engine``: egglog)
    choose      the cheapest of them, exactly (``extract``: integer programs), by a target's prices
    layout      which parameters stand side by side; ``groups`` says what a training step saves by it
    rebuild     the result as a graph, wherever the block occurs

``passes`` puts them in order. Rules are rows of data, in ``rules``; anyone may add one, or a target.
"""

from collections.abc import Mapping

from . import rules as rules
from .declare import RULES, Condition, Rule, condition, rewrite, rule
from .layout import DerivedParam, derived_parameters
from .match import Match, RuleError, Value
from .passes import (
    apply_rules,
    dump_egglog_program,
    optimize,
    optimize_inference,
    optimize_training,
)
from .pattern import T, variables
from .report import OptimizeReport
from .saturate import Budget
from .targets import TARGETS, Target, calibrate, target

_CAME_WITH = (dict(RULES), dict(TARGETS))


def is_as_it_came() -> bool:
    """Whether rules and targets are darner's own, all of them and no others."""
    rules, targets = _CAME_WITH
    return _is_same(RULES, rules) and _is_same(TARGETS, targets)


def _is_same(now: Mapping[str, object], then: Mapping[str, object]) -> bool:
    return now.keys() == then.keys() and all(now[name] is value for name, value in then.items())


__all__ = [
    "RULES",
    "TARGETS",
    "Budget",
    "Condition",
    "DerivedParam",
    "Match",
    "OptimizeReport",
    "Rule",
    "RuleError",
    "T",
    "Target",
    "Value",
    "apply_rules",
    "calibrate",
    "condition",
    "derived_parameters",
    "dump_egglog_program",
    "is_as_it_came",
    "optimize",
    "optimize_inference",
    "optimize_training",
    "rewrite",
    "rule",
    "target",
    "variables",
]
