"""The optimizer."""

from .declare import RULES, Condition, Rule, condition, rewrite, rule
from .layout import DerivedParam, derived_parameters
from .match import Match, RuleError, Value
from .passes import dump_egglog_program, optimize, optimize_inference, optimize_training
from .pattern import T, variables
from .report import OptimizeReport
from .saturate import Budget
from .targets import TARGETS, Target, calibrate, target

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
    "calibrate",
    "condition",
    "derived_parameters",
    "dump_egglog_program",
    "optimize",
    "optimize_inference",
    "optimize_training",
    "rewrite",
    "rule",
    "target",
    "variables",
]
