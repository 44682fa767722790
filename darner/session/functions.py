"""Python functions over nodes, called with arrays.

    >>> import darner, numpy as np
    >>> @darner.function
    ... def normalised(x, scale=1.0):
    ...     centred = x - x.mean(axes=-1, keepdims=True)
    ...     return scale * centred / centred.square().mean(axes=-1, keepdims=True).sqrt()
    >>> normalised(np.array([[1.0, 3.0], [2.0, 6.0]], np.float32), scale=2.0)
    array([[-2.,  2.],
           [-2.,  2.]], dtype=float32)
    >>> normalised.traces
    1

Arguments that are arrays (of NumPy, or of any library that speaks DLPack), and arrays inside lists, tuples and dicts, become inputs. Everything else
(numbers, text, None) is part of the function: another value is another trace. A function is traced once for each choice of shapes, element types and
such values, and compiled; the last few are kept.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, overload

import numpy as np

from ..graph import dtypes
from ..graph.arrays import as_array
from ..graph.data import Array
from ..graph.errors import ArgumentError, Calling
from ..graph.forks import watch
from ..graph.graph import Graph
from ..graph.node import Node
from .builders import build_inference_session
from .config import SessionConfig
from .session import Session

KEPT = 16
"""How many traces a function keeps unless it is told otherwise."""


@overload
def function(body: Callable[..., Any], /) -> Function: ...
@overload
def function(*, kept: int = ..., **options: Any) -> Callable[[Callable[..., Any]], Function]: ...
def function(
    body: Callable[..., Any] | None = None, /, *, kept: int = KEPT, **options: Any
) -> Function | Callable[[Callable[..., Any]], Function]:
    """Compile a function of nodes, so that it can be called with arrays.

    Args:
        body: takes nodes in place of arrays and returns nodes, in any structure of tuples, lists and dicts.
        kept: how many traces are kept compiled.
        options: fields of ``SessionConfig``: ``device``, ``threads``, ``level``, ``cache``, ...
    """
    if body is None:
        return lambda given: Function(given, kept, options)
    return Function(body, kept, options)


class Function:
    """What ``function`` makes. It is called like the function it was made of, with arrays.

    Attributes:
        traces: how often it was traced so far.
    """

    def __init__(self, body: Callable[..., Any], kept: int, options: Mapping[str, Any]) -> None:
        with Calling("function"):
            if not callable(body):
                raise ArgumentError(f"a function is compiled, got {body!r}")
            if isinstance(kept, bool) or not isinstance(kept, int) or kept < 1:
                raise ArgumentError(f"kept is a whole number of at least 1, got {kept!r}")
            if options.get("mode", "infer") not in ("infer", "inference"):
                raise ArgumentError("a function computes; build_session trains")
            self._config = SessionConfig().with_changes(**{**options, "mode": "infer"})
        functools.update_wrapper(self, body)
        self._body = body
        self._signature = inspect.signature(body)
        self._kept = kept
        self._traced: OrderedDict[Any, _Traced] = OrderedDict()
        self._lock = threading.RLock()
        self.traces = 0
        watch(self)

    def after_fork(self) -> None:
        """A lock that another thread had would stay locked in a forked child."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lock = threading.RLock()

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Run it on arrays; the result has the structure that the function returned."""
        with self._lock:
            traced, arrays = self._find(arguments, keywords)
            found = traced.run(arrays)
        return _rebuilt(traced.structure, iter(found))

    def graph(self, *arguments: Any, **keywords: Any) -> Graph:
        """The graph that a call with these arguments runs."""
        with self._lock:
            return self._find(arguments, keywords)[0].session.graph

    def session(self, *arguments: Any, **keywords: Any) -> Session:
        """The session that a call with these arguments runs."""
        with self._lock:
            return self._find(arguments, keywords)[0].session

    def clear(self) -> None:
        """Forget all traces."""
        with self._lock:
            for traced in self._traced.values():
                traced.session.close()
            self._traced.clear()

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """As a method it gets its object first, like any other function."""
        return self if instance is None else functools.partial(self, instance)

    def __repr__(self) -> str:
        return f"<function {self._name} compiled for {self._config.device}>"

    @property
    def _name(self) -> str:
        return str(getattr(self._body, "__name__", "function"))

    def _find(
        self, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[_Traced, list[Array]]:
        with Calling(self._name):
            try:
                bound = self._signature.bind(*arguments, **keywords)
            except TypeError as error:
                raise ArgumentError(str(error)) from None
            bound.apply_defaults()
            arrays: list[tuple[str, Array]] = []
            key = tuple(_key(name, value, arrays) for name, value in bound.arguments.items())
            if not arrays:
                raise ArgumentError(
                    "it is called without any array", hint="numbers and lists are not arrays"
                )
            traced = self._traced.get(key)
            if traced is None:
                traced = self._trace(bound, arrays)
                self._traced[key] = traced
                while len(self._traced) > self._kept:
                    self._traced.popitem(last=False)[1].session.close()
            self._traced.move_to_end(key)
            return traced, [array for _, array in arrays]

    def _trace(self, bound: inspect.BoundArguments, arrays: list[tuple[str, Array]]) -> _Traced:
        graph = Graph(self._name)
        nodes = [graph.input(name, array.shape, array.dtype) for name, array in arrays]
        waiting = iter(nodes)
        for name, value in bound.arguments.items():
            bound.arguments[name] = _with_nodes(value, waiting)
        result = self._body(*bound.args, **bound.kwargs)
        outputs: list[Node] = []
        structure = _structure(result, graph, outputs)
        if not outputs:
            raise ArgumentError(f"it returned no node, but {result!r}")
        graph.set_outputs(outputs)
        self.traces += 1
        session = build_inference_session(graph, self._config)
        return _Traced(session, structure, [name for name, _ in arrays])


class _Traced:
    """One trace, compiled."""

    def __init__(self, session: Session, structure: Any, names: list[str]) -> None:
        self.session = session
        self.structure = structure
        self._names = names

    def run(self, arrays: list[Array]) -> list[Array]:
        found = self.session.run(dict(zip(self._names, arrays, strict=True)))
        return list(found.values())


class _Slot:
    """Where a result goes in the structure that a function returned."""


def _is_array(value: Any) -> bool:
    if isinstance(value, np.ndarray | np.generic):
        return True
    return not isinstance(value, Node) and (
        hasattr(value, "__dlpack__") or hasattr(value, "__array__")
    )


def _key(name: str, value: Any, arrays: list[tuple[str, Array]]) -> Any:
    """What of an argument decides the trace; the arrays in it are collected, with names."""
    if _is_array(value):
        array, _ = as_array(value, f"argument '{name}'")
        arrays.append((name, array))
        return ("array", array.shape, dtypes.dtype(array.dtype).name)
    if isinstance(value, tuple | list):
        inner = tuple(_key(f"{name}.{i}", item, arrays) for i, item in enumerate(value))
        return (type(value).__name__, inner)
    if isinstance(value, Mapping):
        return ("dict", tuple((k, _key(f"{name}.{k}", v, arrays)) for k, v in value.items()))
    try:
        hash(value)
    except TypeError:
        raise ArgumentError(
            f"argument '{name}' is {type(value).__name__}, which is neither an array nor hashable"
        ) from None
    # 1, 1.0 and True are equal, but not the same to a function; nor is -0.0 the same as 0.0.
    return (type(value), value, str(value) if isinstance(value, float) else "")


def _with_nodes(value: Any, nodes: Iterator[Node]) -> Any:
    """An argument with nodes in place of its arrays."""
    if _is_array(value):
        return next(nodes)
    if isinstance(value, tuple | list):
        items = [_with_nodes(item, nodes) for item in value]
        return _like(value, items)
    if isinstance(value, Mapping):
        return {key: _with_nodes(item, nodes) for key, item in value.items()}
    return value


def _structure(value: Any, graph: Graph, outputs: list[Node]) -> Any:
    """What was returned, with a slot for each node."""
    if isinstance(value, Node):
        if value.graph is not graph:
            raise ArgumentError(f"it returned a node of another graph, '{value.graph.name}'")
        outputs.append(value)
        return _Slot()
    if isinstance(value, tuple | list):
        return _like(value, [_structure(item, graph, outputs) for item in value])
    if isinstance(value, Mapping):
        return {key: _structure(item, graph, outputs) for key, item in value.items()}
    return value


def _rebuilt(structure: Any, found: Iterator[Array]) -> Any:
    if isinstance(structure, _Slot):
        return next(found)
    if isinstance(structure, tuple | list):
        return _like(structure, [_rebuilt(item, found) for item in structure])
    if isinstance(structure, dict):
        return {key: _rebuilt(item, found) for key, item in structure.items()}
    return structure


def _like(value: tuple[Any, ...] | list[Any], items: list[Any]) -> Any:
    """Items in a tuple, list or named tuple like another."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*items)
    return tuple(items) if isinstance(value, tuple) else items
