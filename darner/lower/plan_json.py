"""A plan as JSON, in a versioned form with a checksum, and as a file that is whole or not there.

    {"format": "darner.plan", "version": 1, "checksum": "...", "plan": {...}}

The checksum is of the plan's own text, so a file that was cut off or changed anywhere is told from a good one before
anything is made of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from pathlib import Path
from typing import Any, TypeAlias

from .._version import __version__
from ..graph.data import Data
from ..graph.errors import DarnerError, FormatError, Source
from ..graph.graph import Graph
from ..graph.parts import Parts
from ..graph.types import TensorType, parse_type
from .plan import KINDS, PLACES, VERSION, Buffer, Kernel, Plan, Spec

FORMAT = "darner.plan"

Record: TypeAlias = dict[str, Any]
"""A JSON object: fields by name."""

# --------------------------------------------------------------------------- writing


def to_json(plan: Plan) -> str:
    """One JSON document; ``from_json`` restores an equal plan."""
    return signed(_content(plan), plan.version)


def _content(plan: Plan) -> Record:
    files: dict[str, int] = {}
    types: dict[TensorType, int] = {}
    return {
        "name": plan.name,
        "target": plan.target,
        "darner": __version__,
        "options": dict(plan.options),
        "specs": {key: _write_spec(spec) for key, spec in plan.specs.items()},
        "constants": {key: data.to_json() for key, data in plan.constants.items()},
        "buffers": [_write_buffer(buffer, types) for buffer in plan.buffers],
        "types": list(map(str, types)),
        "kernels": [_write_kernel(kernel, files) for kernel in plan.kernels],
        "files": list(files),
        "outputs": list(plan.outputs),
        "output_names": list(plan.output_names),
        "updates": [list(pair) for pair in plan.updates],
        "arena_bytes": plan.arena_bytes,
        "naive_bytes": plan.naive_bytes,
        "commit": plan.commit,
        "bounds": {name: list(bound) for name, bound in plan.bounds.items()},
    }


def signed(content: Record, version: int = VERSION) -> str:
    """A document around a plan's content, with the checksum that reading asks for."""
    head = {"format": FORMAT, "version": version, "checksum": _checksum(content)}
    return _dumps({**head, "plan": content})


def _dumps(value: Any) -> str:
    """Text that is the same for the same value, and ASCII, whatever it holds."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise FormatError(f"the plan holds what JSON has not: {error}") from None
    except RecursionError:
        raise FormatError("the document is nested too deeply") from None


def _checksum(content: Any) -> str:
    return hashlib.blake2b(_dumps(content).encode(), digest_size=16).hexdigest()


def _write_spec(spec: Spec) -> Record:
    record = {"kind": spec.kind, "body": json.loads(spec.body.to_json())}
    if spec.inner is not None:
        record["step"] = _content(spec.inner)
    return record


def _write_buffer(buffer: Buffer, types: dict[TensorType, int]) -> Record:
    record: Record = {
        "type": types.setdefault(buffer.type, len(types)),
        "place": buffer.place,
    }
    for name, default in _OPTIONAL.items():
        if (value := getattr(buffer, name)) != default:
            record[name] = value
    # JSON has no infinities and no NaN; -0.0 equals the default.
    if buffer.parts is not None:
        record["parts"] = [buffer.parts.axis, [list(pair) for pair in buffer.parts.sources]]
    if buffer.place == "state":
        record["init"] = repr(float(buffer.init))
    return record


_OPTIONAL = {"name": None, "offset": None}


def _write_kernel(kernel: Kernel, files: dict[str, int]) -> Record:
    record: Record = {
        "spec": kernel.spec,
        "operands": list(kernel.operands),
        "results": list(kernel.results),
        "nodes": list(kernel.nodes),
    }
    if kernel.label is not None:
        record["label"] = kernel.label
    if kernel.source is not None:
        record["source"] = _write_source(kernel.source, files)
    if kernel.checks:
        record["checks"] = [
            [label, None if source is None else _write_source(source, files)]
            for label, source in kernel.checks
        ]
    return record


def _write_source(source: Source, files: dict[str, int]) -> list[int]:
    return [files.setdefault(source.file, len(files)), source.line]


def save(plan: Plan, path: Path) -> None:
    """Write a plan beside the file's place, and then put it there in one step; others may not write it, or it would not be believed."""
    text = to_json(plan)
    # A name that nobody else can have given to something that leads elsewhere.
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


# --------------------------------------------------------------------------- reading


def load(path: Path) -> Plan:
    """Read and check a file; a ``FormatError`` names it."""
    return from_bytes(path.read_bytes(), str(path))


def from_bytes(data: bytes, name: str) -> Plan:
    """Read and check the content of a file; a ``FormatError`` names it."""
    try:
        return from_json(data.decode())
    except UnicodeDecodeError as error:
        raise FormatError(f"{name} is not a plan: it is not text: {error.reason}") from None
    except FormatError as error:
        raise FormatError(f"{name}: {error}") from error


def from_json(text: str) -> Plan:
    """Read a document: its form and version, its checksum, its content, and the rules of a plan."""
    document = _parsed(text)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        found = document.get("format") if isinstance(document, dict) else document
        raise FormatError(f"not a plan: its format is {_shown(found)}, not '{FORMAT}'")
    version = _field(document, "version", int)
    if version > VERSION:
        raise FormatError(
            f"the plan is of version {version}: this darner reads up to {VERSION}",
            hint="build the plan again, or use a newer darner",
        )
    if version < 1:
        raise FormatError(f"the plan's version {version} does not exist")
    if version < VERSION:
        raise FormatError(
            f"the plan is of version {version}: this darner reads {VERSION}", hint="build it again"
        )
    content = _field(document, "plan", dict)
    found = _checksum(content)
    if (stated := _field(document, "checksum", str)) != found:
        raise FormatError(
            f"the plan is damaged: its checksum is {found}, not {_shown(stated)}",
            hint="build it again",
        )
    try:
        return _read(content, version).verify()
    except FormatError:
        raise
    except DarnerError as error:
        raise FormatError(f"the plan is not sound: {error.rule}") from error


def _parsed(text: str) -> Any:
    if not isinstance(text, str):
        raise FormatError(f"not a plan: expected text, got {type(text).__name__}")
    try:
        return json.loads(text, parse_constant=_no_constant)
    except ValueError as error:
        state = "is cut off or damaged" if text.lstrip().startswith('{"format"') else "is not JSON"
        raise FormatError(f"not a plan: the text {state}: {error}") from None
    except RecursionError:
        raise FormatError("not a plan: the JSON is nested too deeply") from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _read(content: Record, version: int) -> Plan:
    types = [_type(text) for text in _list(content, "types", str)]
    files = _list(content, "files", str)
    outputs = tuple(_list(content, "outputs", int))
    names = _field(content, "output_names", list)
    bounds = _field(content, "bounds", dict)
    if not all(name is None or isinstance(name, str) for name in names):
        raise FormatError("'output_names' should hold texts and nulls")
    plan = Plan(
        name=_field(content, "name", str),
        target=_field(content, "target", str),
        specs=dict(_spec(*item) for item in _field(content, "specs", dict).items()),
        buffers=tuple(_buffer(record, types) for record in _list(content, "buffers", dict)),
        kernels=tuple(_kernel(record, files) for record in _list(content, "kernels", dict)),
        outputs=outputs,
        output_names=tuple(names),
        updates=tuple(_pair(pair) for pair in _list(content, "updates", list)),
        constants=dict(_constant(*item) for item in _field(content, "constants", dict).items()),
        arena_bytes=_field(content, "arena_bytes", int),
        naive_bytes=_field(content, "naive_bytes", int),
        commit=_field(content, "commit", int),
        bounds={name: tuple(_list(bounds, name, int)) for name in bounds},
        options=_field(content, "options", dict),
        version=version,
    )
    for name in content:
        if name not in _FIELDS:
            raise FormatError(f"a plan has no field {_shown(name)}")
    return plan


_FIELDS = (
    *("name", "target", "darner", "options", "specs", "constants", "buffers", "types", "kernels"),
    *("files", "outputs", "output_names", "updates", "arena_bytes", "naive_bytes"),
    *("commit", "bounds"),
)
_NAMES = {dict: "an object", list: "a list", str: "text", int: "an integer"}


def _shown(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _require(value: Any, kind: type, what: str) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise FormatError(f"{what} should be {_NAMES[kind]}, not {_shown(value)}")
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise FormatError(f"{what} is no text: {_shown(value)}") from None
    return value


def _field(record: Record, name: str, kind: type) -> Any:
    if name not in record:
        raise FormatError(f"the field '{name}' is missing")
    return _require(record[name], kind, f"the field '{name}'")


def _list(record: Record, name: str, kind: type) -> list[Any]:
    items = _field(record, name, list)
    return [_require(item, kind, f"an item of '{name}'") for item in items]


def _item(table: list[Any], index: Any, what: str) -> Any:
    if not 0 <= _require(index, int, f"a {what}'s number") < len(table):
        raise FormatError(f"{what} {index} is outside the table of {len(table)}")
    return table[index]


def _type(text: str) -> TensorType:
    try:
        found = parse_type(text)
    except DarnerError as error:
        raise FormatError(f"a type cannot be read: {error}") from error
    if not isinstance(found, TensorType):
        raise FormatError(f"a buffer cannot be {_shown(text)}: it is one tensor")
    return found


def _spec(key: str, record: Any) -> tuple[str, Spec]:
    _require(record, dict, "a spec")
    if (kind := _field(record, "kind", str)) not in KINDS:
        raise FormatError(f"the kind of a spec is {_shown(kind)}, not one of {', '.join(KINDS)}")
    try:
        body = Graph.from_json(_dumps(_field(record, "body", dict))).freeze()
    except DarnerError as error:
        raise FormatError(f"spec {_shown(key)}: {error.rule}", hint=error.hint) from error
    step = _read(_field(record, "step", dict), VERSION) if "step" in record else None
    return key, Spec(kind, body, step)


def _constant(key: str, record: Any) -> tuple[str, Data]:
    return key, Data.from_json(_require(record, dict, "a constant"))


def _buffer(record: Record, types: list[TensorType]) -> Buffer:
    if (place := _field(record, "place", str)) not in PLACES:
        raise FormatError(f"the place of a buffer is {_shown(place)}, not {', '.join(PLACES)}")
    init = 0.0
    if "init" in record:
        try:
            init = float(_field(record, "init", str))
        except ValueError:
            raise FormatError(f"a state cannot begin as {_shown(record['init'])}") from None
    return Buffer(
        type=_item(types, record.get("type"), "type"),
        place=place,
        name=_field(record, "name", str) if "name" in record else None,
        offset=_field(record, "offset", int) if "offset" in record else None,
        init=init,
        parts=_parts(record["parts"]) if "parts" in record else None,
    )


def _parts(row: object) -> Parts:
    axis, pairs = _two(row, "an axis and parts")
    sources = []
    for pair in _require(pairs, list, "the parts of a leaf"):
        name, size = _two(pair, "a part's name and size")
        sources.append((_require(name, str, "a part's name"), _require(size, int, "a part's size")))
    return Parts(_require(axis, int, "the axis of parts"), tuple(sources))


def _two(row: object, what: str) -> tuple[object, object]:
    if not isinstance(row, list) or len(row) != 2:
        raise FormatError(f"expected {what}, got {_shown(row)}")
    return row[0], row[1]


def _kernel(record: Record, files: list[str]) -> Kernel:
    checks = _list(record, "checks", list) if "checks" in record else []
    return Kernel(
        spec=_field(record, "spec", str),
        operands=tuple(_list(record, "operands", int)),
        results=tuple(_list(record, "results", int)),
        nodes=tuple(_list(record, "nodes", int)),
        label=_field(record, "label", str) if "label" in record else None,
        source=_source(record["source"], files) if "source" in record else None,
        checks=tuple(_check(item, files) for item in checks),
    )


def _source(place: Any, files: list[str]) -> Source:
    file, line = _pair(_require(place, list, "a line"))
    return Source(_item(files, file, "file"), line)


def _check(items: list[Any], files: list[str]) -> tuple[str | None, Source | None]:
    if len(items) != 2:
        raise FormatError(f"expected a label and a line, got {_shown(items)}")
    label, place = items
    if label is not None:
        _require(label, str, "a label")
    return label, None if place is None else _source(place, files)


def _pair(items: list[Any]) -> tuple[int, int]:
    if len(items) != 2:
        raise FormatError(f"expected two integers, got {_shown(items)}")
    first, second = (_require(item, int, "one of a pair") for item in items)
    return first, second
