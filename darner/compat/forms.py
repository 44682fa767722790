"""Builders from rows of a table: a name, parameters as they are written, and what is called with them."""

from __future__ import annotations
import __future__ as future

import re
from collections.abc import Callable
from typing import Any

from ..graph.op import Builder, builder

_NAME = re.compile(r"\b(\w+): ")
_ANNOTATIONS_ARE_TEXT = future.annotations.compiler_flag


def form(
    name: str,
    family: str,
    parameters: str,
    rule: Callable[..., Any],
    doc: str,
    *,
    by_name: bool = False,
    result: str = "Node",
) -> Builder:
    """Declare a builder.

    Args:
        name: of the graph method.
        family: of ops that it belongs to.
        parameters: as in a declaration, annotations and defaults included; the graph is left out.
        rule: what is called with them by position, those after ``*`` by name.
        doc: its documentation.
        by_name: whether the rule takes all of them by name, as rows do whose parameters differ and whose rule is the same.
        result: the annotation of what it returns.
    """
    position, _, keyword = parameters.partition("*, ")
    named = [f"{item}={item}" for item in _NAME.findall(parameters if by_name else keyword)]
    given = named if by_name else [*_NAME.findall(position), *named]
    # A function with these parameters in truth, so that calls that do not fit fail as all others do. Dataclasses are made so too.
    source = f"def {name}(graph, {parameters}) -> {result}:\n    return rule({', '.join(given)})"
    scope: dict[str, Any] = {"rule": rule, "__name__": __name__}
    exec(compile(source, __file__, "exec", _ANNOTATIONS_ARE_TEXT), scope)
    made = scope[name]
    made.__doc__ = doc
    declared: Builder = builder(family=family)(made)
    return declared
