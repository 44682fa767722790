"""Builders from rows of a table: a signature as it is written, and what is called with its arguments."""

from __future__ import annotations
import __future__ as future

import re
import sys
from collections.abc import Callable
from typing import Any

from ..graph.op import Builder, builder

_NAME = re.compile(r"\b(\w+): ")
_ANNOTATIONS_ARE_TEXT = future.annotations.compiler_flag


def form(
    signature: str, family: str, rule: Callable[..., Any], doc: str, *, by_name: bool = False
) -> Builder:
    """Declare a builder.

    Args:
        signature: name and parameters as in a declaration, without the graph; what it returns, if that is not one node.
        family: of ops that it belongs to.
        rule: what is called with the arguments by position, those after ``*`` by name.
        doc: its documentation.
        by_name: whether the rule takes all of them by name, as where rows differ in their parameters and share a rule.
    """
    name, _, rest = signature.partition("(")
    parameters, _, result = rest.rpartition(")")
    position, _, keyword = parameters.partition("*, ")
    named = [f"{item}={item}" for item in _NAME.findall(parameters if by_name else keyword)]
    given = named if by_name else [*_NAME.findall(position), *named]
    # A function with these parameters in truth, so that calls that do not fit fail as all others do. Dataclasses are made so too.
    head = f"def {name}(graph, {parameters}){result or ' -> Node'}:"
    source = f"{head}\n    return rule({', '.join(given)})"
    scope: dict[str, Any] = {"rule": rule, "__name__": sys._getframe(1).f_globals["__name__"]}
    exec(compile(source, __file__, "exec", _ANNOTATIONS_ARE_TEXT), scope)
    made = scope[name]
    made.__doc__ = doc
    declared: Builder = builder(family=family)(made)
    return declared
