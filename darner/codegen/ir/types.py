"""How element types are stored, and the types that their sums are kept in."""

from __future__ import annotations

STORAGE_BYTES = {"f32": 4, "f64": 8, "bf16": 2, "f16": 2}


ACCUMULATOR = {"f32": "f32", "f64": "f64", "bf16": "f32", "f16": "f32"}
