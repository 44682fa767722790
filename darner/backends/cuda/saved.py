"""A program's kernels as bytes, so that an equal program is made without writing or compiling anything."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import astuple, replace
from typing import Any

from ...codegen.simt.dispatch import Binding, Written
from ..base.sections import join, split
from .stage import Stage, TensorMap

Codes = dict[str, bytes]
"""Object code by a stage's digest."""


def to_bytes(written: Mapping[str, Written], codes: Mapping[str, bytes]) -> bytes:
    """Kernels by the digest of their specs, with their object code; where there is none, with their source.

    >>> kernels = {"spec": Written((Stage("; source", "kernel", 32, (4, 1, 1), (Binding("operand"),)),), 256)}
    >>> again, codes = from_bytes(to_bytes(kernels, {}))
    >>> again == kernels, codes
    (True, {})
    """
    kept = {digest: code for digest, code in codes.items() if code}
    texts: dict[str, int] = {}
    content = {
        spec: [kernel.scratch, [_plain(stage, kept, texts) for stage in kernel.stages]]
        for spec, kernel in written.items()
    }
    head = zlib.compress(json.dumps([list(texts), content, list(kept)]).encode())
    return join([head, *kept.values()])


def from_bytes(saved: bytes) -> tuple[dict[str, Written], Codes]:
    """What ``to_bytes`` was given."""
    head, *codes = split(saved)
    texts, content, digests = json.loads(zlib.decompress(head))
    written = {
        spec: Written(tuple(_stage(stage, texts) for stage in stages), scratch)
        for spec, (scratch, stages) in content.items()
    }
    return written, dict(zip(digests, codes, strict=True))


def _plain(stage: Stage, kept: Mapping[str, bytes], texts: dict[str, int]) -> list[Any]:
    if stage.digest in kept:
        stage = replace(stage, kept=stage.digest, ir="")
    text = texts.setdefault(stage.ir, len(texts))
    return [text, *astuple(stage)[1:]]


def _stage(plain: list[Any], texts: list[str]) -> Stage:
    text, kernel, threads, groups, bindings, copies, shared, cluster, maps, *rest = plain
    return Stage(
        texts[text],
        kernel,
        threads,
        tuple(groups),
        tuple(Binding(*one) for one in bindings),
        copies and tuple(copies),
        shared,
        tuple(cluster),
        tuple(_map(one) for one in maps),
        *rest,
    )


def _map(plain: list[Any]) -> TensorMap:
    plain = [tuple(one) if isinstance(one, list) else one for one in plain]
    return TensorMap(Binding(*plain[0]), *plain[1:])
