"""What is measured: one kernel each, by its sizes; its inputs, and the least it has to do.

A case is a frozen dataclass, and says nothing of engines: each has a function for every kind, in ``with_darner``,
``with_torch`` and ``with_numpy``. Where ``part`` is ``both``, the result is followed by the gradients of ``trained`` for the
cotangent ``d_output``.
"""

import math
import zlib
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

Shape = tuple[int, ...]


class Case:
    """One kernel to measure: what all kinds have in common."""

    kind: ClassVar[str]
    part: str = "forward"

    @property
    def variant(self) -> str:
        """Which of the kind's functions it is: ``contract.NT``, ``rows.softmax.both``."""
        more = [getattr(self, name) for name in ("op", "form") if hasattr(self, name)]
        more += [self.part] if self.part != "forward" else []
        return ".".join([self.kind, *more])

    @property
    def sizes(self) -> str:
        """The sizes, to be read by people."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """What it is and how large."""
        return f"{self.variant} {self.sizes}"

    @property
    def shapes(self) -> dict[str, Shape]:
        """Of the inputs, the cotangent left out."""
        raise NotImplementedError

    @property
    def result(self) -> Shape:
        """The shape of the result."""
        raise NotImplementedError

    @property
    def trained(self) -> tuple[str, ...]:
        """The inputs whose gradients are wanted where the part is ``both``."""
        return tuple(self.shapes)

    @property
    def flops(self) -> float:
        """Additions and multiplications in products; 0 where memory alone counts."""
        return 0.0

    @property
    def moved(self) -> float:
        """Bytes of operands and results, each once."""
        forward = sum(map(math.prod, self.shapes.values())) + math.prod(self.result)
        if self.part != "both":
            return 4.0 * forward
        trained = sum(math.prod(self.shapes[name]) for name in self.trained)
        return 4.0 * (forward + math.prod(self.result) + trained)

    def inputs(self) -> dict[str, np.ndarray]:
        """Normal numbers, by the case's name alone."""
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        shapes = self.shapes | ({"d_output": self.result} if self.part == "both" else {})
        return {name: self.drawn(rng, name, shape) for name, shape in shapes.items()}

    def drawn(self, rng: np.random.Generator, name: str, shape: Shape) -> np.ndarray:
        """The numbers of one input."""
        return np.asarray(rng.standard_normal(shape, np.float32))


@dataclass(frozen=True)
class Contract(Case):
    """A product of matrices ``m x k`` and ``k x n``; ``form`` says which operand is stored transposed."""

    kind: ClassVar[str] = "contract"
    m: int
    k: int
    n: int
    form: str = "NN"
    batch: int = 0

    @property
    def variant(self) -> str:
        return f"contract.{'batch' if self.batch else self.form}"

    @property
    def sizes(self) -> str:
        lead = f"{self.batch}*" if self.batch else ""
        form = f" {self.form}" if self.batch else ""
        return f"{lead}{self.m}x{self.k}x{self.n}{form}"

    @property
    def shapes(self) -> dict[str, Shape]:
        lead = (self.batch,) if self.batch else ()
        left = (self.k, self.m) if self.form[0] == "T" else (self.m, self.k)
        right = (self.n, self.k) if self.form[1] == "T" else (self.k, self.n)
        return {"a": (*lead, *left), "b": (*lead, *right)}

    @property
    def result(self) -> Shape:
        return (*((self.batch,) if self.batch else ()), self.m, self.n)

    @property
    def flops(self) -> float:
        return 2.0 * max(self.batch, 1) * self.m * self.k * self.n


@dataclass(frozen=True)
class Convolution(Case):
    """Images (batch, channels, height, width); part ``input`` and ``weight`` are the gradients, alone."""

    kind: ClassVar[str] = "conv"
    batch: int
    channels: int
    filters: int
    height: int
    width: int
    kernel: int = 3
    stride: int = 1
    groups: int = 1
    part: str = "forward"

    @property
    def variant(self) -> str:
        return f"conv.{self.part}"

    @property
    def sizes(self) -> str:
        more = f" /{self.stride}" if self.stride > 1 else ""
        more += f" groups {self.groups}" if self.groups > 1 else ""
        image = f"{self.batch}*{self.channels}x{self.height}x{self.width}"
        return f"{image} {self.kernel}x{self.kernel} -> {self.filters}{more}"

    @property
    def padding(self) -> int:
        """Half the kernel."""
        return self.kernel // 2

    @property
    def image(self) -> Shape:
        """The shape of x."""
        return (self.batch, self.channels, self.height, self.width)

    @property
    def weight(self) -> Shape:
        """The shape of w."""
        return (self.filters, self.channels // self.groups, self.kernel, self.kernel)

    @property
    def made(self) -> Shape:
        """The shape of y."""
        sides = [
            (side + 2 * self.padding - self.kernel) // self.stride + 1
            for side in (self.height, self.width)
        ]
        return (self.batch, self.filters, *sides)

    @property
    def shapes(self) -> dict[str, Shape]:
        found = {"x": self.image, "w": self.weight, "dy": self.made}
        del found[{"forward": "dy", "input": "x", "weight": "w"}[self.part]]
        return found

    @property
    def result(self) -> Shape:
        return {"forward": self.made, "input": self.image, "weight": self.weight}[self.part]

    @property
    def flops(self) -> float:
        return 2.0 * math.prod(self.made) * math.prod(self.weight[1:])


@dataclass(frozen=True)
class Attention(Case):
    """Queries (batch, heads, queries, width), keys and values of ``kv_heads`` heads."""

    kind: ClassVar[str] = "attention"
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    width: int
    causal: bool = False
    part: str = "forward"

    @property
    def sizes(self) -> str:
        heads = f"{self.heads}" if self.heads == self.kv_heads else f"{self.heads}/{self.kv_heads}"
        causal = " causal" if self.causal else ""
        return f"{self.batch}*{heads} {self.queries}x{self.keys}x{self.width}{causal}"

    @property
    def shapes(self) -> dict[str, Shape]:
        kept = (self.batch, self.kv_heads, self.keys, self.width)
        return {"q": self.result, "k": kept, "v": kept}

    @property
    def result(self) -> Shape:
        return (self.batch, self.heads, self.queries, self.width)

    @property
    def flops(self) -> float:
        """Two products forward, five for the gradients; what the mask hides costs nothing."""
        pairs = self.queries * self.keys
        if self.causal:
            pairs = sum(min(self.keys, i + 1) for i in range(self.queries))
        products = 7 if self.part == "both" else 2
        return 2.0 * products * self.batch * self.heads * pairs * self.width


@dataclass(frozen=True)
class Rows(Case):
    """Softmax, norms and losses of every row: op is softmax, rms_norm, layer_norm or cross_entropy."""

    kind: ClassVar[str] = "rows"
    op: str
    rows: int
    width: int
    part: str = "forward"

    @property
    def sizes(self) -> str:
        return f"{self.rows}x{self.width}"

    @property
    def shapes(self) -> dict[str, Shape]:
        others = {
            "softmax": {},
            "rms_norm": {"weight": (self.width,)},
            "layer_norm": {"weight": (self.width,), "bias": (self.width,)},
            "cross_entropy": {"labels": (self.rows,)},
        }
        return {"x": (self.rows, self.width)} | others[self.op]

    @property
    def result(self) -> Shape:
        return () if self.op == "cross_entropy" else (self.rows, self.width)

    @property
    def trained(self) -> tuple[str, ...]:
        return tuple(name for name in self.shapes if name != "labels")

    def drawn(self, rng: np.random.Generator, name: str, shape: Shape) -> np.ndarray:
        if name == "labels":
            return rng.integers(0, self.width, shape).astype(np.int32)
        return super().drawn(rng, name, shape)


@dataclass(frozen=True)
class Map(Case):
    """Element by element: op is gelu, swiglu, affine (times a row, plus a row) or adam, which updates in place."""

    kind: ClassVar[str] = "map"
    op: str
    rows: int
    width: int

    @property
    def sizes(self) -> str:
        return f"{self.rows}x{self.width}"

    @property
    def shapes(self) -> dict[str, Shape]:
        full, row = (self.rows, self.width), (self.width,)
        return {
            "gelu": {"x": full},
            "swiglu": {"gate": full, "up": full},
            "affine": {"x": full, "weight": row, "bias": row},
            "adam": {"p": full, "gradient": full},
        }[self.op]

    @property
    def result(self) -> Shape:
        return (self.rows, self.width)

    @property
    def moved(self) -> float:
        if self.op == "adam":  # reads the gradient; reads and writes the parameter and two moments
            return 4.0 * 7 * math.prod(self.result)
        return super().moved


@dataclass(frozen=True)
class Reduce(Case):
    """op (sum, mean, max or argmax) over one axis of three."""

    kind: ClassVar[str] = "reduce"
    op: str
    shape: Shape
    axis: int

    @property
    def sizes(self) -> str:
        return f"{'x'.join(map(str, self.shape))} axis {self.axis}"

    @property
    def shapes(self) -> dict[str, Shape]:
        return {"x": self.shape}

    @property
    def result(self) -> Shape:
        return tuple(size for i, size in enumerate(self.shape) if i != self.axis)


@dataclass(frozen=True)
class Pool(Case):
    """op (max or mean) over windows of images."""

    kind: ClassVar[str] = "pool"
    op: str
    batch: int
    channels: int
    height: int
    width: int
    window: int
    stride: int
    part: str = "forward"

    @property
    def sizes(self) -> str:
        image = f"{self.batch}*{self.channels}x{self.height}x{self.width}"
        return f"{image} {self.window}x{self.window} /{self.stride}"

    @property
    def shapes(self) -> dict[str, Shape]:
        return {"x": (self.batch, self.channels, self.height, self.width)}

    @property
    def result(self) -> Shape:
        sides = [(side - self.window) // self.stride + 1 for side in (self.height, self.width)]
        return (self.batch, self.channels, *sides)


@dataclass(frozen=True)
class Index(Case):
    """op: gather takes ``count`` rows of a table, scatter_add adds ``count`` rows to those of zeros."""

    kind: ClassVar[str] = "index"
    op: str
    rows: int
    width: int
    count: int

    @property
    def sizes(self) -> str:
        return f"{self.count} of {self.rows}x{self.width}"

    @property
    def shapes(self) -> dict[str, Shape]:
        indices = {"indices": (self.count,)}
        if self.op == "gather":
            return {"table": (self.rows, self.width)} | indices
        return {"src": (self.count, self.width)} | indices

    @property
    def result(self) -> Shape:
        return (self.count if self.op == "gather" else self.rows, self.width)

    @property
    def moved(self) -> float:
        written = self.rows if self.op == "scatter_add" else 0
        return 4.0 * ((2 * self.count + written) * self.width + self.count)

    def drawn(self, rng: np.random.Generator, name: str, shape: Shape) -> np.ndarray:
        if name == "indices":
            return rng.integers(0, self.rows, shape).astype(np.int32)
        return super().drawn(rng, name, shape)


@dataclass(frozen=True)
class Order(Case):
    """op (sort or top_k) of every row; top_k gives the values of the ``k`` largest and their places."""

    kind: ClassVar[str] = "order"
    op: str
    rows: int
    width: int
    k: int = 0

    @property
    def sizes(self) -> str:
        return f"{self.rows}x{self.width}" + (f" k {self.k}" if self.op == "top_k" else "")

    @property
    def shapes(self) -> dict[str, Shape]:
        return {"x": (self.rows, self.width)}

    @property
    def result(self) -> Shape:
        return (self.rows, self.k if self.op == "top_k" else self.width)


@dataclass(frozen=True)
class Move(Case):
    """Three axes in another order, in new memory."""

    kind: ClassVar[str] = "move"
    shape: Shape
    order: Shape

    @property
    def sizes(self) -> str:
        return f"{'x'.join(map(str, self.shape))} by {''.join(map(str, self.order))}"

    @property
    def shapes(self) -> dict[str, Shape]:
        return {"x": self.shape}

    @property
    def result(self) -> Shape:
        return tuple(self.shape[i] for i in self.order)


@dataclass(frozen=True)
class SelectiveScan(Case):
    """The recurrence of Mamba, with a state of ``size`` numbers for every channel."""

    kind: ClassVar[str] = "scan"
    batch: int
    steps: int
    channels: int
    size: int
    part: str = "forward"

    @property
    def sizes(self) -> str:
        return f"{self.batch}*{self.steps}x{self.channels}x{self.size}"

    @property
    def shapes(self) -> dict[str, Shape]:
        row = (self.batch, self.steps, self.size)
        pace = (self.channels, self.size)
        return {"x": self.result, "delta": self.result, "a": pace, "b": row, "c": row}

    @property
    def result(self) -> Shape:
        return (self.batch, self.steps, self.channels)

    def drawn(self, rng: np.random.Generator, name: str, shape: Shape) -> np.ndarray:
        if name == "delta":
            return rng.uniform(0.01, 0.2, shape).astype(np.float32)
        return (
            -rng.uniform(0.1, 8, shape).astype(np.float32)
            if name == "a"
            else super().drawn(rng, name, shape)
        )


@dataclass(frozen=True)
class DeltaRule(Case):
    """The recurrence of Gated DeltaNet, with a matrix for every head; ``step`` carries it from one token to the next."""

    kind: ClassVar[str] = "delta"
    batch: int
    steps: int
    heads: int
    width: int
    part: str = "forward"

    @property
    def sizes(self) -> str:
        return f"{self.batch}*{self.heads} {self.steps}x{self.width}"

    @property
    def shapes(self) -> dict[str, Shape]:
        gate = (self.batch, self.steps, self.heads)
        rows = dict.fromkeys(("q", "k", "v"), self.result)
        state = {"state": (self.batch, self.heads, self.width, self.width)}
        return {**rows, "g": gate, "beta": gate, **(state if self.part == "step" else {})}

    @property
    def result(self) -> Shape:
        return (self.batch, self.steps, self.heads, self.width)

    def drawn(self, rng: np.random.Generator, name: str, shape: Shape) -> np.ndarray:
        if name in ("g", "beta"):
            return rng.uniform(*((-1, 0) if name == "g" else (0, 1)), shape).astype(np.float32)
        found = super().drawn(rng, name, shape)
        if name in ("q", "k"):
            found = found / np.linalg.norm(found, axis=-1, keepdims=True)
        return found.astype(np.float32)


KINDS: dict[str, Any] = {
    kind.kind: kind
    for kind in (
        Contract,
        Convolution,
        Attention,
        Rows,
        Map,
        Reduce,
        Pool,
        Index,
        Order,
        Move,
        SelectiveScan,
        DeltaRule,
    )
}


def to_json(case: Any) -> dict[str, Any]:
    """What ``from_json`` reads."""
    return {"kind": case.kind, **asdict(case)}


def from_json(values: dict[str, Any]) -> Any:
    """The case that ``to_json`` wrote."""
    fields = {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}
    return KINDS[fields.pop("kind")](**fields)
