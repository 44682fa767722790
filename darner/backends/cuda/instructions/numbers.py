"""Conversions and functions of numbers that take one instruction."""

from __future__ import annotations

from .assembly import F32, I32, Builder, Value, assembly


def pack_bf16(builder: Builder, low: Value, high: Value) -> Value:
    """Two f32 as bf16 in a word, rounded to nearest even (sm_80)."""
    return assembly(builder, "cvt.rn.bf16x2.f32 $0, $2, $1;", [I32], [low, high], pure=True)[0]


def pack_f16(builder: Builder, low: Value, high: Value) -> Value:
    """Two f32 as f16 in a word, rounded to nearest even (sm_80)."""
    return assembly(builder, "cvt.rn.f16x2.f32 $0, $2, $1;", [I32], [low, high], pure=True)[0]


def round_tf32(builder: Builder, value: Value) -> Value:
    """The bits of an f32 rounded to tf32: nearest, ties away from zero (sm_80)."""
    return assembly(builder, "cvt.rna.tf32.f32 $0, $1;", [I32], [value], pure=True)[0]


def exp2_approximate(builder: Builder, value: Value) -> Value:
    """2 to the power of an f32, to 22 bits."""
    return assembly(builder, "ex2.approx.ftz.f32 $0, $1;", [F32], [value], pure=True)[0]


def reciprocal_approximate(builder: Builder, value: Value) -> Value:
    """1 by an f32, to 23 bits."""
    return assembly(builder, "rcp.approx.ftz.f32 $0, $1;", [F32], [value], pure=True)[0]
