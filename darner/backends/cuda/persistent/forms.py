"""What a chain is: stages, the code that they share, and where their values are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ....graph.dtypes import DType
from ....lower.plan import Spec
from .roles import attention_of

What = Literal["memory", "words", "parts", "kept", "local"]


@dataclass(frozen=True)
class Place:
    """Where a stage finds a value, or leaves it.

    Attributes:
        what: memory of the device; words that blocks wait for; parts of an attention; shared memory that is kept through all stages; shared memory of this stage.
        number: which one: an argument of the stage, or a piece of shared memory.
        dtype: of its elements.
        count: how many there are.
        source: of parts, the attention's spec.
        rounded: types that elements are rounded to as they are read.
    """

    what: What
    number: int
    dtype: DType
    count: int
    source: str = ""
    rounded: tuple[DType, ...] = ()


@dataclass(frozen=True)
class Work:
    """A kernel in a stage.

    Attributes:
        spec: the digest of what it computes.
        operands: where they are.
        results: the places that each goes to.
        fault: the argument that faults are told in; -1 where there are none.
    """

    spec: str
    operands: tuple[Place, ...]
    results: tuple[tuple[Place, ...], ...]
    fault: int = -1


@dataclass(frozen=True)
class Form:
    """A stage without its memory: stages of equal forms have the same code.

    Attributes:
        gathers: words and parts that are brought to shared memory first, and where.
        light: what each block computes then, in order.
        main: the work that all share; None of the stage before the first.
        tail: what is element-wise after it.
        arguments: how many there are.
        strides: the argument that has the strides of a matrix whose columns are neighbours; -1 where there is none.
    """

    gathers: tuple[tuple[Place, Place], ...]
    light: tuple[Work, ...]
    main: Work | None
    tail: Work | None
    arguments: int
    strides: int = -1


@dataclass(frozen=True)
class Argument:
    """What a stage is given: a buffer of the plan, the strides of a matrix, words from a place on, or where a kernel tells of faults."""

    what: Literal["buffer", "strides", "words", "fault"]
    number: int


@dataclass(frozen=True)
class Columns:
    """A matrix whose columns are neighbours in memory.

    Attributes:
        pitch: vectors of a row.
        rows: how many there are.
        alone: whether all that the chain does with it is to multiply by it so.
    """

    pitch: int
    rows: int
    alone: bool


@dataclass(frozen=True)
class Chain:
    """Kernels of a plan that are run as one.

    Attributes:
        first: its first kernel.
        end: the one after its last.
        specs: by digest.
        forms: of its stages.
        stages: for each the number of its form, and its arguments.
        reads: for each stage the buffers that it reads in whole.
        matrices: those whose columns are neighbours, by their buffers.
        words: how many are handed over.
        kept: what is computed once.
    """

    first: int
    end: int
    specs: Mapping[str, Spec] = field(hash=False)
    forms: tuple[Form, ...]
    stages: tuple[tuple[int, tuple[Argument, ...]], ...]
    reads: tuple[tuple[int, ...], ...]
    matrices: Mapping[int, Columns] = field(hash=False)
    words: int
    kept: tuple[Place, ...]


# --------------------------------------------------------------------------- parts of an attention

MOST_PARTS = 12
FEWEST_KEYS = 32
"""Keys of a part at least."""
MOST_PART_WORDS = 6600
"""Words that every block reads of the parts of an attention, if it can be helped."""


def parts_of(spec: Spec, blocks: int) -> int:
    """How many parts the keys of an attention are cut into."""
    attention = attention_of(spec)
    if attention is None:
        return 0
    heads = attention.batch * attention.kv_heads
    rows = heads * attention.group * attention.queries
    most = max(1, min(MOST_PARTS, attention.keys // FEWEST_KEYS, blocks // heads))
    while most > 1 and rows * most * (attention.width + 2) > MOST_PART_WORDS:
        most -= 1
    return most


def part_words(spec: Spec, blocks: int) -> int:
    """The words of all parts: for each query of each head and each part its sums, their maximum, and the total of the weights."""
    attention = attention_of(spec)
    if attention is None:
        return 0
    rows = attention.batch * attention.heads * attention.queries
    return rows * parts_of(spec, blocks) * (attention.width + 2)
