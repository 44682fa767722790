"""A graph as JSON: everything, in a versioned form, each constant once."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import numpy as np

from .attributes import Attribute, Pool
from .data import Data, as_data
from .errors import ArgumentError, DarnerError, FormatError, Source
from .graph import LEAVES, Graph
from .op import OPS, REQUIRED, Op, suggest
from .text import encode_attrs
from .types import TensorType, Type, parse_type

FORMAT = "darner.graph"
VERSION = 1


def to_json(graph: Graph) -> str:
    """One JSON document; ``from_json`` restores an equal graph with its labels and lines."""
    pool = Pool()
    document = _write(graph, pool)
    inner: dict[str, Any] = {}
    while waiting := [key for key in pool.graphs if key not in inner]:
        for key in waiting:
            inner[key] = _write(pool.graphs[key], pool)
    document["inner"] = inner
    document["constants"] = {key: data.to_json() for key, data in pool.data.items()}
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def _write(graph: Graph, pool: Pool) -> dict[str, Any]:
    types: dict[str, int] = {}
    files: dict[str, int] = {}
    nodes = []
    for node in graph.nodes:
        source = None
        if node.source is not None:
            source = [files.setdefault(node.source.file, len(files)), node.source.line]
        extra = {"label": node.label, "scope": node.scope, "source": source}
        record: dict[str, Any] = {
            "op": node.op.name,
            "inputs": list(node.inputs),
            "attrs": encode_attrs(node, pool, defaults=True),
            "type": types.setdefault(str(node.type), len(types)),
            **{key: value for key, value in extra.items() if value},
        }
        if any(param.optional or param.variadic for param in node.op.operands):
            record["slots"] = list(node.slots)
        nodes.append(record)
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": graph.name,
        "types": list(types),
        "files": list(files),
        "nodes": nodes,
        "outputs": [node.id for node in graph.outputs],
        "updates": [[leaf.id, value.id] for leaf, value in graph.updates.items()],
        "streams": graph._streams,
    }


def from_json(text: str) -> Graph:
    """Read a document, checking every node as if the user had written it."""
    try:
        document = json.loads(text)
    except (ValueError, TypeError) as error:
        raise FormatError(f"not JSON: {error}") from None
    pool = Pool()
    _require(document, dict, "the document")
    for key, item in _field(document, "constants", dict).items():
        pool.data[key] = Data.from_json(item)
    for key, item in _field(document, "inner", dict).items():
        pool.unread[key] = partial(_read, item, pool)
    return _read(document, pool)


def _require(value: Any, kind: type, what: str) -> None:
    if not isinstance(value, kind):
        raise FormatError(f"{what} should be {kind.__name__}, not {type(value).__name__}")


def _field(document: Any, name: str, kind: type, default: Any = None) -> Any:
    _require(document, dict, "the document")
    if name not in document and default is not None:
        return default
    if name not in document:
        raise FormatError(f"the field '{name}' is missing")
    _require(document[name], kind, f"the field '{name}'")
    return document[name]


def _read(document: Any, pool: Pool) -> Graph:
    if _field(document, "format", str) != FORMAT:
        raise FormatError(f"the format is '{document['format']}', not '{FORMAT}'")
    if _field(document, "version", int) != VERSION:
        raise FormatError(
            f"version {document['version']} is not known here: this darner reads version {VERSION}"
        )
    types = [parse_type(text) for text in _field(document, "types", list)]
    files = _field(document, "files", list)
    graph = Graph(_field(document, "name", str))
    for number, record in enumerate(_field(document, "nodes", list)):
        try:
            _read_node(graph, record, types, files, pool)
        except DarnerError as error:
            raise FormatError(f"node {number}: {error}") from error
        except (TypeError, ValueError, IndexError, KeyError) as error:
            raise FormatError(f"node {number} cannot be read: {error!r}") from error
    try:
        graph.set_outputs(_field(document, "outputs", list))
        for leaf, value in _field(document, "updates", list):
            graph.set_update(leaf, value)
    except DarnerError as error:
        raise FormatError(error.rule) from error
    graph._streams = _field(document, "streams", int, 0)
    return graph


def _read_node(graph: Graph, record: Any, types: list[Type], files: list[str], pool: Pool) -> None:
    name = _field(record, "op", str)
    op = OPS.get(name)
    if op is None:
        raise FormatError(f"no op is called '{name}'", hint=suggest(name))
    declared = types[_field(record, "type", int)]
    inputs = _field(record, "inputs", list)
    slots = tuple(_field(record, "slots", list, [param.name for param in op.operands]))
    if len(slots) != len(inputs):
        raise FormatError(f"{name} takes {len(slots)} operands, got {len(inputs)}")
    check_slots(op, slots)
    attrs = decode_attrs(op, _field(record, "attrs", dict), declared, pool)
    source = record.get("source")
    node = graph.insert(
        op,
        inputs,
        slots,
        attrs,
        label=record.get("label"),
        scope=record.get("scope", ""),
        source=None if source is None else Source(files[source[0]], source[1]),
    )
    if node.type != declared:
        raise FormatError(f"it is stated to be {declared}, but {name} gives {node.type}")


def check_slots(op: Op, slots: tuple[str, ...]) -> None:
    """The operands present must be ones the op can have, in its order."""
    order = [param.name for param in op.operands]
    for slot in slots:
        if slot not in order:
            raise ArgumentError(f"{op.name} has no operand '{slot}'")
    if [order.index(slot) for slot in slots] != sorted(order.index(slot) for slot in slots):
        raise ArgumentError(f"the operands of {op.name} are out of order: {', '.join(slots)}")
    for param in op.operands:
        count = slots.count(param.name)
        if count > 1 and not param.variadic:
            raise ArgumentError(f"{op.name} has operand '{param.name}' {count} times")
        if count == 0 and not (param.optional or param.variadic):
            raise ArgumentError(f"{op.name} has no operand '{param.name}'")


def decode_attrs(op: Op, raw: dict[str, Any], declared: Type, pool: Pool) -> dict[str, Any]:
    """Attributes from their JSON values; absent ones take the default."""
    known = {param.name: param for param in op.attributes}
    for name in raw:
        if name not in known:
            raise FormatError(f"{op.name} has no attribute '{name}'")
    attrs: dict[str, Any] = {}
    if op.name in LEAVES and isinstance(declared, TensorType):
        raw = {"shape": [str(d) for d in declared.shape], "dtype": declared.dtype.name, **raw}
    for name, param in known.items():
        value = raw.get(name, param.default)
        if name not in raw:
            if value is REQUIRED:
                raise FormatError(f"{op.name} needs the attribute '{name}'")
            attrs[name] = value
        elif value is None or not isinstance(param.kind, Attribute):
            attrs[name] = None
        else:
            value = param.kind.decode(value, pool)
            if param.kind.name == "values" and not isinstance(value, Data):
                value = _literal(value, declared)
            attrs[name] = param.kind.coerce(value)
    return attrs


def _literal(value: Any, declared: Type) -> Data:
    """A constant written in place: its node's type says how to read it."""
    if not isinstance(declared, TensorType):
        raise FormatError(f"a constant cannot be {declared}")
    array = np.array(value).reshape([int(size) for size in declared.shape])
    return as_data(array, declared.dtype)
