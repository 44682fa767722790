"""Reading a graph's text form back."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any

from ..attributes import Pool
from ..errors import DarnerError, FormatError
from ..graph import Graph
from ..node import change_node
from ..op import Op
from ..regions import read_region
from ..types import parse_type
from .json import find_op, read_node

_decoder = json.JSONDecoder()
_HEAD = re.compile(r"graph @(.*) \{")
_NODE = re.compile(r"\s*%(\d+) = (\w+)\(")
_IDS = re.compile(r"%\d+(, %\d+)*")
_OPERAND = re.compile(r"%(\d+)")
_LIST = re.compile(r"\[((?:%\d+(?:, %\d+)*)?)\]")
_KEYWORD = re.compile(r"(\w+)=")
_UPDATE = re.compile(r"\s*update %(\d+) = %(\d+)")
_REMAT = re.compile(r"\s*remat (\".*)")
_SPANS = re.compile(r"%\d+(-%\d+)?(, %\d+(-%\d+)?)*")
_RETURN = re.compile(r"\s*return (.*)")


def from_text(text: str) -> Graph:
    """The graph written by ``to_text``. An error names the line."""
    if not isinstance(text, str):
        raise FormatError(f"expected text, got {type(text).__name__}")
    # Not splitlines: names may hold other characters that it takes for line ends.
    lines = text.replace("\r\n", "\n").split("\n")
    pool = Pool()
    main: int | None = None
    key: str | None = None
    inside = False
    for number, line in enumerate(lines):
        if inside:
            inside = line != "}"
        elif line.startswith("graph @"):
            inside = True
            if main is None and key is None:
                main = number
            elif key is not None:
                pool.unread[key] = partial(_read_block, lines, number, pool)
                key = None
            else:
                raise FormatError(f"line {number + 1}: a second graph needs 'inner' before it")
        elif line.startswith("inner "):
            key = line[6:]
        elif line.startswith("constant "):
            _read_constant(number, line, pool)
        elif line.strip():
            raise FormatError(
                f"line {number + 1}: expected 'graph @name {{', 'inner' or 'constant', "
                f"got {_shown(line)}"
            )
    if main is None:
        raise FormatError("no line starts with 'graph @'")
    return _read_block(lines, main, pool)


def _shown(line: str) -> str:
    return repr(line if len(line) <= 60 else line[:57] + "...")


def _at(number: int, error: Exception) -> FormatError:
    """The error with its line."""
    if isinstance(error, DarnerError):
        return FormatError(f"line {number + 1}: {error}")
    return FormatError(f"line {number + 1} cannot be read: {error}")


def _read_constant(number: int, line: str, pool: Pool) -> None:
    try:
        _, key, body = line.split(" ", 2)
        pool.add_data(key, json.loads(body))
    except (DarnerError, ValueError, RecursionError) as error:
        raise _at(number, error) from error


def _read_block(lines: list[str], start: int, pool: Pool) -> Graph:
    graph = Graph()
    outputs: list[int] = []
    for number in range(start, len(lines)):
        line = lines[number]
        try:
            if number == start:
                graph.name = _read_name(line)
            elif line == "}":
                graph.set_outputs(outputs)
                return graph
            elif update := _UPDATE.fullmatch(line):
                graph.set_update(int(update[1]), int(update[2]))
            elif region := _REMAT.fullmatch(line):
                _read_region(graph, region[1])
            elif returned := _RETURN.fullmatch(line):
                outputs = _read_return(graph, returned[1])
            elif line.strip():
                _read_line(graph, line, pool)
        except Exception as error:  # a shape rule may stumble over anything a document says
            raise _at(number, error) from error
    raise FormatError("the text ends before the closing '}'")


def _read_name(line: str) -> str:
    head = _HEAD.fullmatch(line.rstrip())
    if head is None:
        raise FormatError(f"expected 'graph @name {{', got {_shown(line)}")
    name = json.loads(head[1]) if head[1].startswith('"') else head[1]
    return Graph(name).name


def _read_region(graph: Graph, text: str) -> None:
    """A scope to recompute: its name, its policy, and which nodes lie in it."""
    path, position = _decoder.raw_decode(text)
    policy: Any = {}
    if text.startswith(" {", position):
        policy, position = _decoder.raw_decode(text, position + 1)
    spans = text[position + 1 :]
    if not _SPANS.fullmatch(spans):
        raise FormatError(f"expected 'remat \"scope\" %id-%id, %id', got {_shown(text)}")
    read_region(graph, path, policy)
    for span in spans.split(", "):
        first, _, last = span.replace("%", "").partition("-")
        for i in range(int(first), int(last or first) + 1):
            change_node(graph.node(i), scope=path)


def _read_return(graph: Graph, text: str) -> list[int]:
    if not _IDS.fullmatch(text):
        raise FormatError(f"expected 'return %id, %id', got {_shown(text)}")
    return [graph.node(int(i)).id for i in _OPERAND.findall(text)]


def _read_line(graph: Graph, line: str, pool: Pool) -> None:
    match = _NODE.match(line)
    if match is None:
        raise FormatError(f"expected '%id = op(...) : type', got {_shown(line.strip())}")
    index, op = int(match[1]), find_op(match[2])
    if index != len(graph):
        raise FormatError(f"expected node %{len(graph)}, got %{index}")
    inputs, slots, raw, position = _read_arguments(op, line, match.end())
    rest = line[position:]
    if not rest.startswith(" : "):
        raise FormatError(f"expected ' : type' after the call, got {_shown(rest)}")
    type_text, quote, tail = rest[3:].partition(' "')
    label = _decoder.decode('"' + tail) if quote else None
    read_node(graph, op, inputs, tuple(slots), raw, parse_type(type_text), pool, label)


def _read_arguments(
    op: Op, line: str, position: int
) -> tuple[list[int], list[str], dict[str, Any], int]:
    """Operand ids, their slots, and attributes as JSON, up to the closing parenthesis."""
    inputs: list[int] = []
    slots: list[str] = []
    raw: dict[str, Any] = {}
    expected = [param.name for param in op.operands if not param.optional]
    while not line.startswith(")", position):
        if keyword := _KEYWORD.match(line, position):
            slot, position = keyword[1], keyword.end()
            if slot in raw or slot in slots:
                raise FormatError(f"argument '{slot}' is given twice")
        elif expected:
            slot = expected.pop(0)
        else:
            raise FormatError(f"too many operands at column {position + 1}: {op.signature}")
        if operand := _OPERAND.match(line, position):
            inputs.append(int(operand[1]))
            slots.append(slot)
            position = operand.end()
        elif slot in op.by_name and op.by_name[slot].is_operand:
            several = _LIST.match(line, position)
            if several is None:
                raise FormatError(f"expected %id for '{slot}' at column {position + 1}")
            ids = [int(i) for i in _OPERAND.findall(several[1])]
            inputs += ids
            slots += [slot] * len(ids)
            position = several.end()
        else:
            raw[slot], position = _decoder.raw_decode(line, position)
        if line.startswith(", ", position):
            position += 2
        elif not line.startswith(")", position):
            raise FormatError(f"expected ', ' or ')' at column {position + 1}")
    return inputs, slots, raw, position + 1
