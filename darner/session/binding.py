"""From what users have to what a program reads: values checked against the types of leaves, and sizes of symbols from their shapes.

What a leaf accepts, so that no value changes its meaning on the way:

- an array of its own element type, as it is;
- an array of a narrower type of the same kind (f16 for f32, u8 for u32), which loses nothing;
- NumPy's default types: float64 for any float (rounded once) and int64 for any integer (where every value fits);
- Python's numbers and lists of them, where the type can hold them.

An array may come from any library that speaks DLPack. Its shape is the leaf's, or it is flat with as many elements.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from ..graph import dtypes
from ..graph.arrays import as_array
from ..graph.data import Array, as_data
from ..graph.dims import Dim, bind_dim, format_shape
from ..graph.dtypes import DType
from ..graph.errors import (
    ArgumentError,
    DTypeError,
    RunError,
    ShapeError,
    UnknownNameError,
    listed,
    nearest,
)
from ..graph.types import TensorType
from ..interpreter import solve_size


def known(what: str, name: Any, names: Collection[str]) -> str:
    """A name that is there, or an error that names the nearest."""
    if not isinstance(name, str) or name not in names:
        raise UnknownNameError(f"there is no {what} {name!r}", hint=nearest(str(name), names))
    return name


def as_value(value: Any, type_: TensorType, what: str) -> Array:
    """The value as an array of a leaf's element type: the caller's own memory where nothing must change.

    ``what`` names the leaf in errors: ``input 'x'``. Sizes that are symbols are not checked.
    """
    if (
        type(value) is np.ndarray
        and value.dtype == type_.dtype.numpy
        and value.shape == type_.shape
    ):
        return value
    array, typed = as_array(value, what)
    shaped = _shaped(array, type_, what)
    return _typed(shaped, type_.dtype, what, typed)


def _shaped(array: Array, type_: TensorType, what: str) -> Array:
    shape = type_.shape
    if len(shape) == array.ndim and all(
        not isinstance(size, int) or size == actual
        for size, actual in zip(shape, array.shape, strict=True)
    ):
        return array
    if array.ndim == 1 and not type_.symbols and array.size == type_.size:
        return array.reshape([int(size) for size in shape])
    found = f"{array.size} values" if array.ndim == 1 else f"the shape {format_shape(array.shape)}"
    count = "" if type_.symbols else f" ({type_.size} values)"
    raise ShapeError(f"{what} is {format_shape(shape)}{count}, but it is given {found}")


def check_shape(shape: tuple[int, ...], type_: TensorType, what: str) -> None:
    """Refuse a shape that is not a leaf's; sizes that are symbols are not checked."""
    alike = len(shape) == len(type_.shape) and all(
        not isinstance(size, int) or size == actual
        for size, actual in zip(type_.shape, shape, strict=True)
    )
    if not alike:
        raise ShapeError(
            f"{what} is {format_shape(type_.shape)}, but it is given the shape {format_shape(shape)}"
        )


def _typed(array: Array, wanted: DType, what: str, typed: bool) -> Array:
    if array.dtype == wanted.numpy:
        return array
    if not typed:
        try:
            return as_data(array.tolist(), wanted).array
        except ArgumentError as error:
            raise DTypeError(f"{what} is {wanted}: {error.rule}") from None
    hint = f"convert it: numpy.asarray(x, '{wanted.numpy.name}')"
    if array.dtype.kind == "c" and wanted.kind != "complex":
        hint = "give its real part, x.real, or its size, abs(x)"
    try:
        found = dtypes.dtype(array.dtype)
    except DTypeError:  # a type that NumPy has and graphs have not, such as uint16
        if wanted.is_int and np.can_cast(array.dtype, wanted.numpy, "safe"):
            return array.astype(wanted.numpy)
        raise DTypeError(f"{what} is {wanted}, but it is given {array.dtype}", hint=hint) from None
    if found.kind == wanted.kind:
        # A leaf says itself how exactly it keeps floats: wider ones are rounded to its type, as those of NumPy are.
        wider = wanted.is_float and found.itemsize > wanted.itemsize
        if np.can_cast(array.dtype, wanted.numpy, "safe") or wider:
            with np.errstate(over="ignore"):  # what is too large for the type is infinite in it
                return array.astype(wanted.numpy)
        if found is dtypes.i64:
            low, high = wanted.limits
            if array.size and (array.min() < low or array.max() > high):
                raise DTypeError(f"{what} is {wanted}: some values lie outside {low} to {high}")
            return array.astype(wanted.numpy)
    raise DTypeError(
        f"{what} is {wanted}, but it is given {found}",
        hint=hint,
    )


def check_values(
    types: Mapping[str, TensorType],
    values: Mapping[str, Any],
    symbols: Collection[str] = (),
    *,
    whole: bool = True,
) -> None:
    """Raise what a run with these inputs would; ``whole`` where there are no others."""
    shapes = {}
    for name, value in values.items():
        what = f"input '{known('input', name, types)}'"
        shapes[name] = as_value(value, types[name], what).shape
    missing = [repr(name) for name in types if name not in shapes]
    if missing and whole:
        raise RunError(f"no value was given for input {listed(missing)}")
    if symbols and not missing:
        solve_sizes(types, shapes, symbols)


def is_bindable(array: Array) -> bool:
    """Whether a program can read the array where it lies."""
    return bool(array.flags.c_contiguous and array.flags.aligned)


def into(out: Any, array: Array, what: str) -> Array:
    """Write a value into the caller's array: one of the same shape, or flat and long enough."""
    if not isinstance(out, np.ndarray) or not out.flags.writeable:
        raise ArgumentError(f"out is a NumPy array that can be written, got {type(out).__name__}")
    if out.dtype != array.dtype:
        raise DTypeError(f"{what} is {array.dtype}, but out is {out.dtype}")
    if out.shape == array.shape:
        out[...] = array
    elif out.ndim == 1 and out.size >= array.size:
        out[: array.size] = array.reshape(-1)
    else:
        raise ShapeError(
            f"{what} is {format_shape(array.shape)}, but out is {format_shape(out.shape)}"
        )
    return out


# --------------------------------------------------------------------------- symbolic sizes


def solve_sizes(
    types: Mapping[str, TensorType], shapes: Mapping[str, tuple[int, ...]], symbols: Iterable[str]
) -> dict[str, int]:
    """The size of every symbol, from the shapes of inputs; they must agree.

    >>> from darner import symbol
    >>> seq = symbol("seq")
    >>> types = {"x": TensorType.new((seq, 2)), "y": TensorType.new((2 * seq + 1,))}
    >>> solve_sizes(types, {"x": (3, 2), "y": (7,)}, ["seq"])
    {'seq': 3}
    """
    sizes: dict[str, int] = {}
    origin: dict[str, str] = {}
    for name, type_ in types.items():
        for size, actual in zip(type_.shape, shapes[name], strict=True):
            for symbol, value in solve_size(size, actual).items():
                if sizes.setdefault(symbol, value) != value:
                    raise ShapeError(
                        f"'{symbol}' is {sizes[symbol]} in '{origin[symbol]}' but {value} in '{name}'"
                    )
                origin.setdefault(symbol, name)
    unknown = [symbol for symbol in symbols if symbol not in sizes]
    if unknown:
        raise ShapeError(f"no input settles the size {', '.join(unknown)}", hint="bind it first")
    for name, type_ in types.items():
        wanted = tuple(bind_dim(size, dict[str, Dim](sizes)) for size in type_.shape)
        if wanted != shapes[name]:
            given = ", ".join(f"{symbol}={value}" for symbol, value in sizes.items())
            raise ShapeError(
                f"input '{name}' is {format_shape(type_.shape)}, with {given} {format_shape(wanted)}, "
                f"but it is given {format_shape(shapes[name])}"
            )
    return sizes
