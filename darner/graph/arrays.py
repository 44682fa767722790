"""Whatever a user has for an array, as an array of NumPy: the one door for inputs, parameters, constants, checkpoints and data.

Nothing is lost or changed on the way. Memory is shared where it can be; another order of bytes is converted; what has no
plain numbers (masks, objects, text, dates, records) is refused, with what to write instead.
"""

from __future__ import annotations

import array
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from . import dlpack
from .errors import ArgumentError, DarnerError, DTypeError, RunError

_UNREADABLE = (BufferError, RuntimeError, TypeError, ValueError)
"""What libraries raise where they cannot give their values away."""

_STATES_OF_TENSORS: tuple[tuple[str, str, str], ...] = (
    ("is_neg", "is the negative of its memory, which only PyTorch knows", ".resolve_neg()"),
    ("is_conj", "is the conjugate of its memory, which only PyTorch knows", ".resolve_conj()"),
    ("requires_grad", "requires a gradient of PyTorch", ".detach()"),
    ("is_sparse", "is sparse", ".to_dense()"),
    ("is_quantized", "is quantised", ".dequantize()"),
)
"""Tensors whose memory is not their values: an attribute or method, what it says, and how to get the values."""


def as_array(
    value: Any, what: str, error: Callable[..., DarnerError] = RunError
) -> tuple[npt.NDArray[Any], bool]:
    """An array of the value, in its own memory where it can be, and whether it has an element type of its own.

    ``what`` names the place in errors (``input 'x'``), ``error`` is their class where no other fits better.
    """
    if type(value) is np.ndarray:
        return _plain(value, what, DTypeError), True
    if isinstance(value, np.ndarray | np.generic):
        return _plain(_unmasked(value, what), what, DTypeError), True
    from .node import Node  # which needs constants, and so this module

    if isinstance(value, Node):
        raise error(f"{what} is given a node of a graph, not values")
    if hasattr(value, "__dlpack__"):
        return _plain(_from_dlpack(value, what, error), what, DTypeError), True
    typed = (
        hasattr(value, "__array_interface__")
        or hasattr(value, "__array__")
        or isinstance(value, memoryview | array.array)
    )
    if isinstance(value, list | tuple):
        for item in value:
            if isinstance(item, np.ma.MaskedArray):
                _unmasked(item, what)
    try:
        found = np.asarray(value)
    except DarnerError:
        raise
    except (TypeError, ValueError, OverflowError) as reason:
        raise error(f"{what} is not given an array: {reason}") from None
    return _plain(found, what, DTypeError if typed else error), typed


def _unmasked(value: Any, what: str) -> npt.NDArray[Any]:
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        masked = int(np.sum(np.ma.getmaskarray(value)))
        raise ArgumentError(
            f"{what} is given an array with {masked} of {value.size} values masked, and a mask would be lost",
            hint="give the masked ones a value: .filled(value)",
        )
    return np.asarray(value)


def _plain(
    found: npt.NDArray[Any], what: str, error: Callable[..., DarnerError]
) -> npt.NDArray[Any]:
    """The array in the machine's order of bytes; an error where it does not hold numbers."""
    kind = found.dtype
    if kind.isbuiltin == 1 and kind.kind not in "OSUMmV":
        return found
    if not kind.isnative and kind.kind in "iufcb":
        return found.astype(kind.newbyteorder("="))  # the same numbers
    if (
        kind.kind in _NOT_NUMBERS and kind.isbuiltin != 2
    ):  # 2: a type of another package, such as bfloat16
        name, hint = _NOT_NUMBERS[kind.kind]
        if kind.kind == "V" and kind.names is None:
            name, hint = "raw bytes", "say what they are: .view(dtype)"
        if kind.kind == "O" and found.size and all(isinstance(item, int) for item in found.flat):
            raise error(f"{what} is given whole numbers of more than 64 bits")
        # What was no array at first is no x to convert.
        raise error(
            f"{what} is given {name} ({kind}), not numbers",
            hint=hint if error is DTypeError else None,
        )
    return found


_NOT_NUMBERS = {
    "O": (
        "objects of Python",
        "numpy.asarray(x, numpy.float32), or numpy.stack(x) for a row of arrays",
    ),
    "S": ("text", "bytes that are numbers are read by numpy.frombuffer(x, dtype)"),
    "U": ("text", "convert it: numpy.asarray(x, numpy.float32)"),
    "M": ("dates", "convert them: (x - start) / numpy.timedelta64(1, 's')"),
    "m": ("durations", "convert them: x / numpy.timedelta64(1, 's')"),
    "V": (
        "records",
        "give one field, x['name'], or numpy.lib.recfunctions.structured_to_unstructured(x)",
    ),
}


def _from_dlpack(value: Any, what: str, error: Callable[..., DarnerError]) -> npt.NDArray[Any]:
    # PyTorch gives away a tensor that is the negative of its memory as if it were the memory.
    is_negative = getattr(value, "is_neg", None)
    if callable(is_negative) and is_negative() is True:
        _refuse_states(value, what, error)
    try:
        device = value.__dlpack_device__() if hasattr(value, "__dlpack_device__") else (1, 0)
        number = int(device[0])
    except _UNREADABLE as reason:
        _refuse_states(value, what, error)
        raise error(f"{what} is given values that cannot be read: {reason}") from None
    if number not in dlpack.HOSTS:
        raise error(
            f"{what} is given memory of another device (DLPack's number {number})",
            hint="copy it to the host first: .cpu() in PyTorch, jax.device_get(x) in JAX",
        )
    try:
        return np.from_dlpack(value)
    except _UNREADABLE:  # above all element types that NumPy has not
        _refuse_states(value, what, error)
    try:
        return dlpack.read(value)
    except DarnerError as reason:
        raise error(f"{what} cannot be read: {reason.rule}", hint=reason.hint) from None
    except _UNREADABLE as reason:
        if not hasattr(value, "__array__"):
            raise error(f"{what} is given values that cannot be read: {reason}") from None
    try:
        return np.asarray(value)
    except _UNREADABLE as reason:
        raise error(f"{what} is given values that cannot be read: {reason}") from None


def _refuse_states(value: Any, what: str, error: Callable[..., DarnerError]) -> None:
    for name, text, hint in _STATES_OF_TENSORS:
        state = getattr(value, name, False)
        if state is not False and (state() if callable(state) else state) is True:
            raise error(f"{what} is given a tensor that {text}", hint=f"write {hint}")
