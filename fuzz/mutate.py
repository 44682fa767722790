"""Changes to documents that leave most of them readable, so that what lies behind the parser is reached.

Bytes changed at random are nearly always refused by the first parser that sees them. Here a document is read, something in it
is replaced, removed, repeated or renamed, and it is written again. One change in four is of bytes all the same.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from copy import deepcopy
from typing import Any

ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 63, 64, 65, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63),
    *(-(2**63), 10**30, 0.5, -0.0, 1e308, 1e-320, float("nan"), float("inf"), float("-inf")),
    *("", "0", "x", "%0", "a.b", "../x", "\0", "\ud800", "é", " ", "f32[2, 3]", "seq", "-1", "1e5"),
    *([], {}, [0], [[]], [None], [-1], {"": 0}, [1, 2], "A" * 300, [0] * 70),
)
"""Values that readers forget."""
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|%\d+|\w+|\s+|.', re.DOTALL)
_DEEP = 60

Mutator = Callable[[bytes, int, int], bytes]


def of_json(words: tuple[str, ...] = ()) -> Callable[[bytes, random.Random], bytes | None]:
    """A change of a JSON document; None where the bytes are none."""

    def changed(data: bytes, rng: random.Random) -> bytes | None:
        try:
            document = json.loads(data)
        except (ValueError, RecursionError):
            return None
        for _ in range(1 + (rng.random() < 0.3)):
            document = _changed(document, rng, words)
        try:
            return json.dumps(document).encode()
        except (ValueError, RecursionError):
            return None

    return changed


def of_tensors(data: bytes, rng: random.Random) -> bytes | None:
    """A change of the header of a safetensors file, whose length is written anew; sometimes of its data."""
    length = int.from_bytes(data[:8], "little")
    body = data[8 + length :]
    header = of_json(("F32", "I64", "BOOL", "shape", "dtype", "data_offsets", "__metadata__"))(
        data[8 : 8 + length], rng
    )
    if header is None:
        return None
    if rng.random() < 0.2:
        body = body[: rng.randrange(len(body) + 1)] + bytes(rng.randrange(9))
    return len(header).to_bytes(8, "little") + header + body


def of_text(words: tuple[str, ...] = ()) -> Callable[[bytes, random.Random], bytes | None]:
    """A change of a text in tokens: quoted strings, ids, words, spaces, signs."""

    def changed(data: bytes, rng: random.Random) -> bytes | None:
        tokens = _TOKEN.findall(data.decode(errors="replace"))
        if not tokens:
            return None
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(tokens))
            match rng.randrange(6):
                case 0:
                    del tokens[at]
                case 1:
                    tokens[at] = rng.choice(tokens)
                case 2:
                    tokens.insert(at, rng.choice(tokens))
                case 3:
                    tokens[at] = rng.choice(words) if words else str(rng.choice(ODD))
                case 4:
                    end = min(len(tokens), at + rng.randrange(1, 12))
                    tokens[at:at] = tokens[at:end]
                case _:
                    tokens[at] = json.dumps(rng.choice(ODD))
            if not tokens:
                break
        return "".join(tokens).encode(errors="replace")

    return changed


def of_bytes(words: tuple[str, ...] = ()) -> Callable[[bytes, random.Random], bytes]:
    """A change of bytes: one flipped, set, removed or put in, a run of them repeated, or a word put in."""
    inserted = [word.encode("latin-1", "replace") for word in words] or [b"\0", b"0", b"\xff\xff"]

    def changed(data: bytes, rng: random.Random) -> bytes:
        made = bytearray(data)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(made) + 1)
            end = min(len(made), at + rng.choice((1, 1, 2, 4, 16)))
            match rng.randrange(6):
                case 0:
                    made[at:end] = bytes(byte ^ 1 << rng.randrange(8) for byte in made[at:end])
                case 1:
                    made[at:end] = rng.randbytes(end - at)
                case 2:
                    del made[at:end]
                case 3:
                    made[at:at] = rng.choice(inserted)
                case 4:
                    made[at:at] = made[at:end]
                case _:
                    del made[at:]
        return bytes(made)

    return changed


def mutator(
    change: Callable[[bytes, random.Random], bytes | None] | None, words: tuple[str, ...]
) -> Mutator:
    """What atheris calls: a change of this kind, or one in four times, and where that fails, one of bytes."""
    plain = of_bytes(words)

    def mutate(data: bytes, limit: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if change is not None and rng.random() < 0.75:
            found = change(data, rng)
            if found is not None and len(found) <= limit:
                return found
        return plain(data, rng)[:limit]

    return mutate


def _odd(rng: random.Random) -> Any:
    """One of the odd values, which nobody else has."""
    return deepcopy(rng.choice(ODD))


def _changed(document: Any, rng: random.Random, words: tuple[str, ...]) -> Any:
    """The document with something in it changed."""
    places = _places(document)
    if not places:
        return _odd(rng)
    parent, key = rng.choice(places)
    value = parent[key]
    match rng.randrange(9):
        case 0 | 1:
            parent[key] = _odd(rng)
        case 2:
            other, there = rng.choice(places)
            parent[key] = deepcopy(other[there])
        case 3:
            del parent[key]
        case 4:
            _repeat(parent, key, rng)
        case 5:
            parent[key] = _nudged(value, rng)
        case 6:
            parent[key] = rng.choice(([value], {"x": value}, [value, deepcopy(value)], str(value)))
        case 7 if words:
            parent[key] = rng.choice(words)
        case _:
            _rename(parent, key, rng, words)
    return document


def _places(document: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    waiting = [(document, 0)]
    while waiting:
        value, depth = waiting.pop()
        if depth > _DEEP:
            continue
        keys = (
            list(value)
            if isinstance(value, dict)
            else range(len(value))
            if isinstance(value, list)
            else ()
        )
        for key in keys:
            found.append((value, key))
            waiting.append((value[key], depth + 1))
    return found


def _repeat(parent: Any, key: Any, rng: random.Random) -> None:
    if isinstance(parent, list):
        parent.insert(rng.randrange(len(parent) + 1), deepcopy(parent[key]))
    else:
        parent[f"{key}{rng.randrange(3)}"] = deepcopy(parent[key])


def _nudged(value: Any, rng: random.Random) -> Any:
    if isinstance(value, bool) or value is None:
        return _odd(rng)
    if isinstance(value, int):
        return rng.choice((value + 1, value - 1, -value, value * 2, value * 10**9, float(value)))
    if isinstance(value, float):
        return rng.choice((-value, value * 2, int(value) if abs(value) < 1e300 else 0))
    if isinstance(value, str):
        at = rng.randrange(len(value) + 1)
        piece = rng.choice(("", " ", "\n", '"', "\\", "%", "0", "{", "*", "]"))
        return value[:at] + piece + value[at + rng.randrange(2) :]
    return _odd(rng)


def _rename(parent: Any, key: Any, rng: random.Random, words: tuple[str, ...]) -> None:
    if isinstance(parent, dict):
        parent[rng.choice((*words, "", "x", f"{key} "))] = parent.pop(key)
    else:
        rng.shuffle(parent)
