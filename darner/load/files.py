"""The tensors of safetensors files, by name, read when they are looked at.

>>> import tempfile
>>> from darner import load
>>> folder = tempfile.TemporaryDirectory()
>>> found = load.save(folder.name, {"model_type": "line"}, {"w": np.ones((2, 3), np.float16)})
>>> weights = load.weights(folder.name)
>>> weights.info("w")
TensorInfo(shape=(2, 3), dtype=dtype('float16'), file='...model.safetensors')
>>> weights["w"].sum()
np.float16(6.0)
>>> folder.cleanup()
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ..graph.arrays import as_array
from ..graph.data import Array
from ..graph.errors import ArgumentError, DTypeError, FormatError, UnknownNameError, listed, nearest
from ..io.atomic import FileError
from ..io.reading import read_json, shown
from ..io.tensorfile import OpenFile, open_tensors
from .conversions import converted

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
ADAPTER = "adapter_model.safetensors"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
"""How the names of files end that run code when they are read, which darner does not do."""


@dataclass(frozen=True)
class TensorInfo:
    """What is known of a tensor without reading it.

    Attributes:
        shape: its sizes.
        dtype: its element type, as NumPy has it.
        file: the file it is in; empty for arrays in memory.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    file: str = ""

    @property
    def nbytes(self) -> int:
        """How many bytes it takes."""
        return prod(self.shape) * self.dtype.itemsize

    @classmethod
    def of(cls, array: Array) -> TensorInfo:
        """That of an array in memory."""
        return cls(array.shape, array.dtype)


@dataclass(frozen=True)
class Stored:
    """A tensor in a file, under the name it has there."""

    file: OpenFile
    name: str


class Weights(Mapping[str, Array]):
    """Tensors by name: those of one safetensors file, of a folder of them, or arrays in memory.

    A tensor of a file is read whenever it is asked for, and not kept. The file stays open: it may be replaced by another of its
    name, but not be written to.

    Under the names that Meganeura's ``SafeTensorsModel`` has, there are the methods ``tensor_*``.

    Attributes:
        path: what it was opened from; empty for arrays in memory.
    """

    def __init__(self, path: str, tensors: Mapping[str, Stored | Array]) -> None:
        self.path = path
        self._tensors = dict(tensors)

    @classmethod
    def of(cls, tensors: Weights | Mapping[str, Any] | str | os.PathLike[str]) -> Weights:
        """What is given as weights: some already, arrays by name, or the path of a file or folder."""
        if isinstance(tensors, Weights):
            return tensors
        if isinstance(tensors, Mapping):
            return cls("", {name: as_array(tensors[name], f"'{name}'")[0] for name in tensors})
        return weights(tensors)

    def __getitem__(self, name: str) -> Array:
        return self.read(name)

    def read(self, name: str, room: Array | None = None) -> Array:
        """A tensor; one of a file fills ``room``, as many bytes as it has, where that is given.

        Raises:
            FormatError: its file was cut short or written to since it was opened.
            FileError: the system will not read it.
        """
        found = self._known(name)
        return found.file.array(found.name, room) if isinstance(found, Stored) else found

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def info(self, name: str) -> TensorInfo:
        """Shape, element type and file of a tensor, which is not read for it."""
        found = self._known(name)
        if not isinstance(found, Stored):
            return TensorInfo.of(found)
        entry = found.file.entries[found.name]
        return TensorInfo(entry.shape, entry.dtype, found.file.path)

    @property
    def nbytes(self) -> int:
        """How many bytes all tensors take."""
        return sum(self.info(name).nbytes for name in self)

    @property
    def files(self) -> tuple[str, ...]:
        """The files the tensors are in."""
        return tuple(dict.fromkeys(info.file for name in self if (info := self.info(name)).file))

    @property
    def metadata(self) -> dict[str, str]:
        """What the files say about themselves."""
        found: dict[str, str] = {}
        for file in self._opened():
            found |= file.metadata
        return found

    def check_unchanged(self) -> None:
        """An error where a file was cut short or written to since it was opened."""
        for file in self._opened():
            file.file.check_unchanged()

    def _opened(self) -> list[OpenFile]:
        stored = (tensor.file for tensor in self._tensors.values() if isinstance(tensor, Stored))
        return list({id(file): file for file in stored}.values())

    def _known(self, name: str) -> Stored | Array:
        if name not in self._tensors:
            where = f"in '{self.path}'" if self.path else "among the weights"
            raise UnknownNameError(
                f"there is no tensor {name!r} {where}", hint=nearest(str(name), self)
            )
        return self._tensors[name]

    def __repr__(self) -> str:
        kinds = sorted({self.info(name).dtype.name for name in self})
        where = f" of '{self.path}'" if self.path else ""
        size = f"{self.nbytes / 1e6:,.1f} MB"
        return f"<Weights{where}: {len(self)} tensors, {size}, {', '.join(kinds) or 'none'}>"

    # ------------------------------------------------------------- Meganeura's names

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Weights:
        """``load.weights``."""
        return weights(path)

    @classmethod
    def download(cls, repo: str, revision: str | None = None) -> Weights:
        """The weights of a model of the hub, from its cache where they are there."""
        from .hub import folder

        return weights(folder(repo, revision))

    tensor_info = info

    def tensor_f32(self, name: str) -> Array:
        """A tensor that is stored as f32."""
        dtype = self.info(name).dtype
        if dtype != np.float32:
            raise DTypeError(
                f"'{name}' is stored as {dtype.name}, not float32", hint="use tensor_f32_auto"
            )
        return self[name]

    def tensor_f32_auto(self, name: str) -> Array:
        """A tensor as f32: of any float type that f32 holds without loss (f16, bf16, fp8)."""
        return converted(name, self[name], np.dtype(np.float32))

    def tensor_f32_transposed(self, name: str) -> Array:
        """A matrix that is stored as f32, with rows and columns exchanged."""
        return self._transposed(name, self.tensor_f32(name))

    def tensor_f32_auto_transposed(self, name: str) -> Array:
        """A matrix as f32, with rows and columns exchanged."""
        return self._transposed(name, self.tensor_f32_auto(name))

    @staticmethod
    def _transposed(name: str, array: Array) -> Array:
        if array.ndim != 2:
            raise ArgumentError(
                f"'{name}' has {array.ndim} axes; a matrix, which is transposed, has 2"
            )
        return np.ascontiguousarray(array.T)


SafeTensorsModel = Weights
"""Meganeura's name for `Weights`."""


def weights(path: str | os.PathLike[str], *, check_total: bool = True) -> Weights:
    """The tensors of a ``.safetensors`` file, or of a folder: ``model.safetensors``, or shards with an index.

    Of a folder with an index it is made sure that every shard is there and whole, that every tensor is where the index says,
    and that their sizes add up to what it says.

    Args:
        path: the file, the folder, or the index (``*.safetensors.index.json``) of some shards.
        check_total: whether the sizes must add up to the index's ``total_size``. Some programs write a wrong one.

    Raises:
        FileError: there is no such file or folder, or it cannot be read.
        FormatError: a file is damaged or of another format, or the index and the shards do not agree.
    """
    found = Path(path).expanduser()
    if found.is_dir():
        found = _main_file(found)
    name = found.name
    if name.endswith(".index.json"):
        return _sharded(found, Path(path), check_total)
    if name.endswith(PICKLES):
        raise _pickled(found)
    file = open_tensors(found)
    return Weights(os.fspath(path), {name: Stored(file, name) for name in file.entries})


def _main_file(folder: Path) -> Path:
    """The file of a folder to begin with."""
    for name in (SINGLE, INDEX):
        if os.path.lexists(folder / name):  # whatever it is: opening it says what is wrong with it
            return folder / name
    try:
        others = sorted(os.listdir(folder))
    except OSError as error:
        raise FileError.of("read", folder, error) from error
    pickles = [name for name in others if name.endswith(PICKLES)]
    tensors = [name for name in others if name.endswith(".safetensors")]
    if pickles and not tensors:
        raise _pickled(folder / pickles[0])
    hint = f"in it are {listed(others) if others else 'no files'}"
    if ADAPTER in tensors:
        hint = "it is the folder of an adapter: use load.adapter"
    elif tensors:
        hint = f"name the file: load.weights('{folder / tensors[0]}')"
    raise FileError(
        f"there is neither {SINGLE} nor {INDEX} in '{folder}'", os.fspath(folder), hint=hint
    )


def _pickled(path: Path) -> FormatError:
    return FormatError(
        f"'{path}' is a pickle of PyTorch, which can run any code when it is read: darner reads safetensors alone",
        hint="convert it once, where PyTorch is: safetensors.torch.save_file(torch.load('"
        f"{path.name}', weights_only=True), '{SINGLE}'); or let transformers do it: "
        "AutoModel.from_pretrained(folder).save_pretrained(folder)",
    )


def _sharded(index: Path, shown_path: Path, check_total: bool) -> Weights:
    named, total = _parse_index(index)
    folder = index.parent
    shards = sorted(set(named.values()))
    missing = [shard for shard in shards if not os.path.isfile(folder / shard)]
    if missing:
        raise FileError(
            f"of the {len(shards)} shards that '{index}' names, "
            f"{len(missing)} are not there: {listed(missing)}",
            os.fspath(folder / missing[0]),
            hint="download them again",
        )
    files = {shard: open_tensors(folder / shard) for shard in shards}
    misplaced = [name for name, shard in named.items() if name not in files[shard].entries]
    if misplaced:
        where = [f"{shown(name)} (in {named[name]})" for name in misplaced[:9]]
        raise FormatError(
            f"{len(misplaced)} tensors are not where '{index}' says: {listed(where, count=len(misplaced))}"
        )
    tensors: dict[str, Stored | Array] = {
        name: Stored(files[shard], name) for name, shard in named.items()
    }
    for file in files.values():  # what the index does not name is there nonetheless
        for name in file.entries.keys() - named.keys():
            if name in tensors:
                raise FormatError(
                    f"{shown(name)} is in two shards, and '{index}' does not say which"
                )
            tensors[name] = Stored(file, name)
    found = Weights(os.fspath(shown_path), tensors)
    size = sum(found.info(name).nbytes for name in named)
    if check_total and total is not None and size != total:
        raise FormatError(
            f"the tensors of '{index}' take {size:,} bytes, but it says {total:,}",
            hint="download it again; if the program that wrote it counts in another way, check_total=False",
        )
    return found


def _parse_index(index: Path) -> tuple[dict[str, str], int | None]:
    """Which shard has which tensor, and how many bytes they take together, if it is said."""
    table = read_json(index)
    named, metadata = table.get("weight_map"), table.get("metadata")
    if not isinstance(named, dict) or not all(isinstance(shard, str) for shard in named.values()):
        raise FormatError(f"'{index}' has no weight_map from tensors to files")
    if not named:
        raise FormatError(f"'{index}' has a weight_map without tensors")
    for shard in set(named.values()):
        if not _is_beside(shard):
            if shard.endswith(PICKLES):
                raise _pickled(index.parent / shard)
            raise FormatError(
                f"'{index}' names the shard {shown(shard)}, which is no safetensors file beside it"
            )
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if total is None:
        return named, None
    # Some programs write a whole number as 1e9; what is infinite or no number is not one.
    whole = isinstance(total, float) and total.is_integer()
    if isinstance(total, bool) or not (isinstance(total, int) or whole) or not 0 <= total < 1 << 63:
        raise FormatError(
            f"'{index}' says a total_size of {shown(total)}, which is no number of bytes"
        )
    return named, int(total)


def _is_beside(name: str) -> bool:
    """Whether a name is that of a safetensors file, and leads to no other folder."""
    signs = any(sign in name for sign in "/\\\0") or name != Path(name).name
    return name.endswith(".safetensors") and not signs and len(os.fsencode(name)) < 256
