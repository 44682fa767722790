"""Reading a graph's text form back."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any

from .attributes import Pool
from .data import Data
from .errors import DarnerError, FormatError
from .graph import Graph
from .node import Node
from .op import OPS, Op, suggest
from .serial import decode_attrs
from .types import Type, parse_type

_decoder = json.JSONDecoder()
_HEAD = re.compile(r"graph @(.*) \{")
_NODE = re.compile(r"\s*%(\d+) = (\w+)\(")
_OPERAND = re.compile(r"%(\d+)")
_KEYWORD = re.compile(r"(\w+)=")
_UPDATE = re.compile(r"\s*update %(\d+) = %(\d+)")
_RETURN = re.compile(r"\s*return (.*)")


def from_text(text: str) -> Graph:
    """The graph written by ``to_text``. An error names the line."""
    lines = text.splitlines()
    pool = Pool()
    blocks: list[tuple[str | None, int]] = []
    key: str | None = None
    for number, line in enumerate(lines):
        if line.startswith("inner "):
            key = line[6:].strip()
        elif line.startswith("graph @"):
            blocks.append((key, number))
        elif line.startswith("constant "):
            with _At(number):
                _, name, body = line.split(" ", 2)
                pool.data[name] = Data.from_json(json.loads(body))
    if not blocks or blocks[0][0] is not None:
        raise FormatError("no line starts with 'graph @'")
    for inner, start in blocks[1:]:
        if inner is not None:
            pool.unread[inner] = partial(_read_block, lines, start, pool)
    return _read_block(lines, blocks[0][1], pool)


class _At:
    """Name the line in errors."""

    def __init__(self, number: int) -> None:
        self.number = number + 1

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, DarnerError):
            raise FormatError(f"line {self.number}: {error}") from error
        if isinstance(error, ValueError | KeyError | IndexError):
            raise FormatError(f"line {self.number} cannot be read: {error}") from error


def _read_block(lines: list[str], start: int, pool: Pool) -> Graph:
    with _At(start):
        head = _HEAD.fullmatch(lines[start].rstrip())
        if head is None:
            raise FormatError("expected 'graph @name {'")
        name = head.group(1)
        graph = Graph(json.loads(name) if name.startswith('"') else name)
    outputs: list[int] = []
    for number in range(start + 1, len(lines)):
        line = lines[number]
        with _At(number):
            if line.strip() == "}":
                graph.set_outputs(outputs)
                return graph
            if update := _UPDATE.fullmatch(line):
                graph.set_update(int(update.group(1)), int(update.group(2)))
            elif returned := _RETURN.fullmatch(line):
                outputs = [int(i) for i in _OPERAND.findall(returned.group(1))]
            elif line.strip():
                _read_node(graph, line, pool)
    raise FormatError("the text ends before the closing '}'")


def _read_node(graph: Graph, line: str, pool: Pool) -> Node:
    match = _NODE.match(line)
    if match is None:
        raise FormatError(f"expected '%id = op(...) : type', got {line.strip()!r}")
    index, name = int(match.group(1)), match.group(2)
    if index != len(graph):
        raise FormatError(f"expected node %{len(graph)}, got %{index}")
    op = OPS.get(name)
    if op is None:
        raise FormatError(f"no op is called '{name}'", hint=suggest(name))
    inputs, slots, raw, position = _read_arguments(op, line, match.end())
    rest = line[position:]
    if not rest.startswith(" : "):
        raise FormatError(f"expected ' : type' after the call, got {rest!r}")
    type_text, quote, tail = rest[3:].partition(' "')
    label = _decoder.decode(quote.strip() + tail) if quote else None
    declared = parse_type(type_text)
    attrs = decode_attrs(op, raw, declared, pool)
    node = graph.insert(op, inputs, tuple(slots), attrs, label=label, scope="")
    check_declared(node, declared)
    return node


def check_declared(node: Node, declared: Type) -> None:
    """The type a document states must be the one inferred."""
    if node.type != declared:
        raise FormatError(
            f"%{node.id} is stated to be {declared}, but {node.op.name} gives {node.type}"
        )


def _read_arguments(
    op: Op, line: str, position: int
) -> tuple[list[int], list[str], dict[str, Any], int]:
    """Operand ids, their slots, and attributes as JSON, up to the closing parenthesis."""
    inputs: list[int] = []
    slots: list[str] = []
    raw: dict[str, Any] = {}
    names = [param.name for param in op.operands if not param.optional]
    while not line.startswith(")", position):
        keyword = _KEYWORD.match(line, position)
        slot = names.pop(0) if keyword is None and names else keyword.group(1) if keyword else ""
        position = keyword.end() if keyword else position
        if operand := _OPERAND.match(line, position):
            inputs.append(int(operand.group(1)))
            slots.append(slot)
            position = operand.end()
        elif line.startswith(("[%", "[]"), position) and slot in {p.name for p in op.operands}:
            end = line.index("]", position)
            ids = [int(i) for i in _OPERAND.findall(line[position:end])]
            inputs += ids
            slots += [slot] * len(ids)
            position = end + 1
        else:
            raw[slot], position = _decoder.raw_decode(line, position)
        if line.startswith(", ", position):
            position += 2
        elif not line.startswith(")", position):
            raise FormatError(f"expected ', ' or ')' at column {position + 1}")
    return inputs, slots, raw, position + 1
