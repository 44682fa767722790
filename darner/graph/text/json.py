"""A graph as JSON: everything, in a versioned form, each constant once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ..attributes import Attribute, Pool, as_text
from ..check import canonical, settle_axes
from ..data import Data, as_data
from ..errors import DarnerError, FormatError, Source, did_you_mean
from ..graph import LEAVES, Graph
from ..op import OPS, REQUIRED, Op, suggest
from ..regions import read_region
from ..types import TensorType, Type, parse_type
from .dump import encode_attrs

FORMAT = "darner.graph"
VERSION = 1

# --------------------------------------------------------------------------- writing


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
    return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _write(graph: Graph, pool: Pool) -> dict[str, Any]:
    types: dict[Type, int] = {}
    files: dict[str, int] = {}
    nodes = []
    for node in graph.nodes:
        record: dict[str, Any] = {
            "op": node.op.name,
            "inputs": node.inputs,
            "attrs": encode_attrs(node, pool, defaults=True),
            "type": types.setdefault(node.type, len(types)),
        }
        if node.label:
            record["label"] = node.label
        if node.scope:
            record["scope"] = node.scope
        if node.source is not None:
            file = files.setdefault(node.source.file, len(files))
            record["source"] = [file, node.source.line]
        if not node.op.plain:
            record["slots"] = node.slots
        nodes.append(record)
    document: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "name": graph.name,
        "types": list(map(str, types)),
        "files": list(files),
        "nodes": nodes,
        "outputs": [node.id for node in graph.outputs],
        "updates": [[leaf.id, value.id] for leaf, value in graph.updates.items()],
        "streams": graph._streams,
    }
    if graph._remat:
        document["remat"] = {path: policy.to_json() for path, policy in graph._remat.items()}
    return document


# --------------------------------------------------------------------------- reading


def from_json(text: str) -> Graph:
    """Read a document, checking every node as if the user had written it."""
    try:
        document = json.loads(text)
    except (ValueError, TypeError) as error:
        raise FormatError(f"not JSON: {error}") from None
    except RecursionError:
        raise FormatError("not a graph: the JSON is nested too deeply") from None
    pool = Pool()
    _check_version(document)
    for key, item in _field(document, "constants", dict).items():
        pool.add_data(key, item)
    for key, item in _field(document, "inner", dict).items():
        pool.unread[key] = partial(_read, item, pool)
    return _read(document, pool)


def _require(value: Any, kind: type, what: str) -> Any:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise FormatError(f"{what} should be {_KINDS[kind]}, not {_shown(value)}")
    return value


_KINDS = {dict: "an object", list: "a list", str: "text", int: "an integer"}


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _field(document: Any, name: str, kind: type, default: Any = None) -> Any:
    value = document.get(name, default)
    if value is None:
        raise FormatError(f"the field '{name}' is missing")
    return _require(value, kind, f"the field '{name}'")


def _entry(table: list[Any], index: Any, what: str) -> Any:
    """An item of one of the document's tables."""
    if not 0 <= _require(index, int, f"the {what}") < len(table):
        raise FormatError(f"{what} {index} is outside the document's table of {len(table)}")
    return table[index]


def _check_version(document: Any) -> None:
    _require(document, dict, "the document")
    if (found := _field(document, "format", str)) != FORMAT:
        raise FormatError(f"the format is {_shown(found)}, not '{FORMAT}'")
    if (version := _field(document, "version", int)) != VERSION:
        raise FormatError(
            f"version {version} is not known here: this darner reads version {VERSION}"
        )


def _read(document: Any, pool: Pool) -> Graph:
    _check_version(document)
    types = [_type(i, text) for i, text in enumerate(_field(document, "types", list))]
    files = _field(document, "files", list)
    for file in files:
        _require(file, str, "an entry of 'files'")
    graph = Graph(_field(document, "name", str))
    for number, record in enumerate(_field(document, "nodes", list)):
        try:
            _read_record(graph, record, types, files, pool)
        except DarnerError as error:
            raise FormatError(f"node {number}: {error}") from error
        except Exception as error:  # a shape rule may stumble over anything a document says
            raise FormatError(f"node {number} cannot be read: {error!r}") from error
    try:
        graph.set_outputs(_field(document, "outputs", list))
        for pair in _field(document, "updates", list):
            if len(_require(pair, list, "an entry of 'updates'")) != 2:
                raise FormatError(f"an entry of 'updates' should be two ids, not {_shown(pair)}")
            graph.set_update(*pair)
        for path, policy in _field(document, "remat", dict, {}).items():
            read_region(graph, path, policy)
    except DarnerError as error:
        raise FormatError(error.rule) from error
    graph._streams = max(graph._streams, _field(document, "streams", int, 0))
    return graph


def _type(number: int, text: Any) -> Type:
    try:
        return parse_type(_require(text, str, "a type"))
    except DarnerError as error:
        raise FormatError(f"type {number}: {error}") from error


def _read_record(
    graph: Graph, record: Any, types: list[Type], files: list[str], pool: Pool
) -> None:
    _require(record, dict, "a node")
    op = find_op(_field(record, "op", str))
    declared = _entry(types, record.get("type"), "type")
    inputs = _field(record, "inputs", list)
    slots = tuple(_field(record, "slots", list, [param.name for param in op.operands]))
    for slot in slots:
        _require(slot, str, "a slot")
    attrs = _field(record, "attrs", dict)
    source = None
    if "source" in record:
        place = _field(record, "source", list)
        if len(place) != 2:
            raise FormatError(f"the field 'source' should be [file, line], not {_shown(place)}")
        source = Source(_entry(files, place[0], "file"), _require(place[1], int, "a line"))
    label = _field(record, "label", str) if "label" in record else None
    scope = _field(record, "scope", str, "")
    read_node(graph, op, inputs, slots, attrs, declared, pool, label, scope, source)


def find_op(name: str) -> Op:
    """The op of a document; an unknown one is the document's fault."""
    op = OPS.get(name)
    if op is None:
        raise FormatError(
            f"no op is called '{name}'",
            hint=suggest(name) or "declare it here too, as where it was written",
        )
    return op


def read_node(  # many parameters: the fields of a node, as they are stored
    graph: Graph,
    op: Op,
    inputs: Sequence[int],
    slots: tuple[str, ...],
    raw: dict[str, Any],
    declared: Type,
    pool: Pool,
    label: str | None,
    scope: str = "",
    source: Source | None = None,
) -> None:
    """Append one node of a document; its type must be the one stated."""
    operands = [graph.node(i) for i in inputs]
    attrs = decode_attrs(op, raw, declared, pool)
    if op.axis_params:
        attrs = settle_axes(op, attrs, [node.type for node in operands])
    if label is not None:
        as_text(label, "a label", empty=False)
    as_text(scope, "a scope")
    node = graph.insert(op, operands, slots, attrs, label=label, scope=scope, source=source)
    if node.type != declared:
        raise FormatError(f"it is stated to be {declared}, but {op.name} gives {node.type}")


def decode_attrs(op: Op, raw: dict[str, Any], declared: Type, pool: Pool) -> dict[str, Any]:
    """Attributes from their JSON values; absent ones take the default."""
    for name in raw:
        if name not in op.attribute_names:
            hint = did_you_mean(name, op.attribute_names)
            raise FormatError(f"{op.name} has no attribute '{name}'", hint=hint)
    if op.name in LEAVES and isinstance(declared, TensorType):
        raw = {"shape": [str(d) for d in declared.shape], "dtype": declared.dtype.name, **raw}
    attrs: dict[str, Any] = {}
    for param in op.attributes:
        if param.name not in raw:
            if param.default is REQUIRED:
                raise FormatError(f"{op.name} needs the attribute '{param.name}'")
            attrs[param.name] = param.default
            continue
        value = raw[param.name]
        if value is not None and isinstance(param.kind, Attribute):
            value = param.kind.decode(value, pool)
            if param.kind.name == "values" and not isinstance(value, Data):
                value = _literal(value, declared)
        attrs[param.name] = canonical(param, value)
    return attrs


def _literal(value: Any, declared: Type) -> Data:
    """A constant written in place: its node's type says how to read it."""
    if not isinstance(declared, TensorType):
        raise FormatError(f"a constant cannot be {declared}")
    data = as_data(value, declared.dtype)
    # An empty list says nothing of the sizes beside the empty one.
    if data.array.size == 0 and declared.size == 0:
        return Data(np.zeros([int(size) for size in declared.shape], declared.dtype.numpy))
    return data
