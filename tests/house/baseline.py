"""Today's offenders and counts, which may only become fewer.

``python -m tests.house.baseline`` rewrites the files after a repair or a move. It refuses where a list or a sum would grow, unless
``--accept-growth`` says that this is meant.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

from .rules import COUNTS, RULES, Offence, counts, package

FOLDER = Path(__file__).with_name("baseline")
RATCHET = Path(__file__).with_name("ratchet.toml")
COMMAND = "python -m tests.house.baseline"
HEAD = "# How often each layer has what may only become rarer. Rewritten by `" + COMMAND + "`.\n"


def listed(name: str) -> set[str]:
    """The entries of a rule's file."""
    path = FOLDER / f"{name}.txt"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {line for line in lines if line and not line.startswith("#")}


def offences(name: str) -> dict[str, Offence]:
    """The offenders of a rule by their keys, of the source as it is."""
    found: dict[str, Offence] = {}
    for offence in RULES[name](package()):
        found.setdefault(offence.key, offence)
    return found


def complaints(name: str, found: Mapping[str, Offence], entries: set[str]) -> list[str]:
    """What a test says: offenders that are not listed, and entries that offend no more."""
    fresh = [found[key] for key in sorted(found.keys() - entries)]
    gone = sorted(entries - found.keys())
    return [
        *(f"{offence.place}: {offence.message}" for offence in fresh),
        *(
            f"tests/house/baseline/{name}.txt: remove this line, it offends no more: {entry}"
            for entry in gone
        ),
    ]


def kept_counts() -> dict[str, dict[str, int]]:
    """The counts of ``ratchet.toml``."""
    table = tomllib.loads(RATCHET.read_text(encoding="utf-8")) if RATCHET.exists() else {}
    return {name: table.get(name, {}) for name in COUNTS}


def count_complaints(now: Mapping[str, int], kept: Mapping[str, int]) -> list[str]:
    """What a test says of the counts of one thing by layers."""
    said = []
    for layer in sorted(now.keys() | kept.keys()):
        before, after = kept.get(layer, 0), now.get(layer, 0)
        if after > before:
            said.append(f"{layer} has {after}, and had {before}: take back what is new")
        elif after < before:
            said.append(f"{layer} has {after} now, and had {before}: run `{COMMAND}`")
    return said


def as_toml(table: Mapping[str, Mapping[str, int]]) -> str:
    """The text of ``ratchet.toml``."""
    parts = [HEAD]
    for name, by_layer in table.items():
        rows = "".join(f'"{layer}" = {number}\n' for layer, number in by_layer.items())
        parts.append(f'["{name}"] # {sum(by_layer.values())}\n{rows}')
    return "\n".join(parts)


def main(arguments: list[str]) -> int:
    """Rewrite all files; 1 where something grew and that was not accepted."""
    first = not RATCHET.exists()
    accept = first or "--accept-growth" in arguments
    grew = []
    for name in RULES:
        before, now = listed(name), set(offences(name))
        print(f"{name}: {len(now)} ({len(now - before)} new, {len(before - now)} gone)")
        if len(now) > len(before) and not accept:
            grew += [f"  {offence}" for offence in sorted(now - before)]
            continue
        FOLDER.mkdir(exist_ok=True)
        text = "".join(f"{key}\n" for key in sorted(now))
        (FOLDER / f"{name}.txt").write_text(text, encoding="utf-8")
    now_counts, kept = counts(package()), kept_counts()
    for name in COUNTS:
        total, before_total = sum(now_counts[name].values()), sum(kept[name].values())
        print(f"{name}: {total} (was {before_total})")
        if total > before_total and not accept:
            grew.append(f"  {name}: {total}, was {before_total}")
            now_counts[name] = kept[name]
    RATCHET.write_text(as_toml(now_counts), encoding="utf-8")
    if grew:
        print("not written, as these grew; repair them, or say --accept-growth:", *grew, sep="\n")
    return bool(grew)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
