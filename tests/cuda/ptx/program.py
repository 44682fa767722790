"""The text of a kernel as instructions."""

import re
from dataclasses import dataclass, field

import numpy as np

WIDTHS = {"pred": bool, "b16": np.uint16, "b32": np.uint32, "b64": np.uint64}


@dataclass
class Instruction:
    op: str
    operands: list
    guard: tuple | None
    text: str


@dataclass
class Program:
    """A kernel: its instructions, its parameters, and where its own shared memory lies."""

    code: list
    parameters: list
    symbols: dict
    static: int
    types: dict = field(default_factory=dict)


def split(text):
    """Operands, of which those in braces and brackets are one."""
    found, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += (c in "{[(") - (c in ")]}")
        if c == "," and depth == 0:
            found.append(text[start:i].strip())
            start = i + 1
    return [*found, text[start:].strip()] if text.strip() else []


def parsed(ptx):
    """The program of a module's kernel."""
    ptx = re.sub(r"//[^\n]*", "", ptx)
    head = re.search(r"\.entry\s+\w+\s*\((.*?)\)(.*?)\{", ptx, re.S)
    parameters = []
    for item in split(head[1]):
        name = re.search(r"(\w+)(?:\[(\d+)\])?$", item.strip())
        parameters.append((name[1], int(name[2] or 8)))
    symbols, _static = {}, 0
    declared = ptx[: head.start()] + ptx[head.end() :]
    for align, name, size in re.findall(r"\.shared \.align (\d+) \.b8 (\w+)\[?(\d*)\]?;", declared):
        symbols[name] = (int(align), int(size or 0))
    at = 0
    places = {}
    for name, (align, size) in symbols.items():
        if size:
            at = -(-at // align) * align
            places[name] = at
            at += size
    at = -(-max(at, 1) // 1024) * 1024
    for name, (_, size) in symbols.items():
        if not size:
            places[name] = at
    places |= {name: name for name, _ in parameters}
    body = ptx[head.end() :]
    program = Program([], parameters, places, at)
    scopes, number, labels = [{}], 0, {}
    fixups = []
    position = 0
    body = body.strip()
    while position < len(body):
        label = re.match(r"\s*([\w$]+):", body[position:])
        if label:
            scopes[-1].setdefault(label[1], f"{label[1]}#{len(labels)}")
            labels[scopes[-1][label[1]]] = len(program.code)
            position += label.end()
            continue
        opened = re.match(r"\s*\{", body[position:])
        if opened:
            scopes.append({})
            position += opened.end()
            continue
        closed = re.match(r"\s*\}", body[position:])
        if closed:
            position += closed.end()
            scopes.pop()
            if not scopes:
                break
            continue
        end = re.match(r"\s*((?:[^;{}]|\{[^{}]*\})*);", body[position:])
        text = end[1].strip()
        position += end.end()
        if text.startswith(".reg"):
            kind, names = re.match(r"\.reg \.(\w+)\s+(.*)", text, re.S).groups()
            for name in split(names):
                many = re.match(r"(%\w+)<(\d+)>", name)
                if many:
                    for i in range(int(many[2])):
                        program.types[f"{many[1]}{i}"] = WIDTHS[kind]
                else:
                    number += 1
                    scopes[-1][name] = f"{name}#{number}"
                    program.types[scopes[-1][name]] = WIDTHS[kind]
            continue
        if text.startswith("."):
            continue
        guard = re.match(r"@(!?)([\w%]+)\s+", text)
        plain = text[guard.end() :] if guard else text
        op, _, rest = plain.partition(" ")
        # Names are looked up when the scope is known in whole: a label may come later.
        instruction = Instruction(op, split(rest), None, text)
        program.code.append(instruction)
        fixups.append((instruction, guard, list(scopes)))
    for instruction, guard, seen in fixups:

        def name_of(name, seen=seen):
            for scope in reversed(seen):
                if name in scope:
                    return scope[name]
            return name

        def renamed(operand, name_of=name_of):
            return re.sub(r"[%$\w]+", lambda m: name_of(m[0]), operand)

        if guard:
            instruction.guard = (bool(guard[1]), name_of(guard[2]))
        instruction.operands = [renamed(x) for x in instruction.operands]
        if instruction.op.startswith("bra"):
            instruction.operands = [labels[x] for x in instruction.operands]
    return program
