"""What is measured: models written once for all engines, their weights and data, and the least time they can take.

A workload is a frozen dataclass. ``result`` writes the model down in ``+``, ``@`` and the few functions of an engine's own
``Ops``, so that all engines do the same. Weights are random numbers that depend on their name alone.
"""

import math
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np

CACHED = 32 * 2**20
"""Bytes that a cache may hold: no floor counts their way through memory."""


class Ops(Protocol):
    """What an engine supplies beside ``+`` and ``@``. Images are (batch, channels, height, width)."""

    def embedding(self, table: Any, indices: Any) -> Any:
        """Rows of a table."""

    def rms_norm(self, x: Any, weight: Any, eps: float) -> Any:
        """Over the last axis."""

    def swiglu(self, gate: Any, up: Any) -> Any:
        """silu(gate) * up."""

    def attention(self, q: Any, k: Any, v: Any, sizes: "Llama") -> Any:
        """Causal, with rotary positions; of (batch, length, heads * head), the heads side by side."""

    def cached_attention(self, q: Any, k: Any, v: Any, layer: int, sizes: "Llama") -> Any:
        """Of one token: its key and value are written into the last row of the layer's cache, which is attended to."""

    def relu(self, x: Any) -> Any:
        """max(x, 0)."""

    def conv(self, x: Any, weight: Any, stride: int) -> Any:
        """With half the kernel as padding; the weight is (out, in, height, width)."""

    def max_pool(self, x: Any) -> Any:
        """Windows of 3x3, every second, padded by one."""

    def channels(self, bias: Any) -> Any:
        """A number for each channel, in a shape that can be added to images."""

    def batch_norm(self, x: Any, weight: Any, bias: Any, eps: float) -> Any:
        """By the statistics of this batch."""

    def mean_of_images(self, x: Any) -> Any:
        """(batch, channels)."""

    def cross_entropy(self, logits: Any, labels: Any) -> Any:
        """The mean over all rows."""


@dataclass(frozen=True)
class Weight:
    """How a weight is drawn: normal numbers of this width around ``center``."""

    shape: tuple[int, ...]
    scale: float
    center: float = 0.0
    seconds_spent: ClassVar[float] = 0.0
    """Drawing numbers in this process, which is no engine's work."""

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)

    def value(self, name: str) -> np.ndarray:
        """The numbers, by the weight's name alone."""
        started = time.perf_counter()
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        drawn = rng.standard_normal(self.shape, np.float32)
        drawn *= np.float32(self.scale)
        drawn += np.float32(self.center)
        Weight.seconds_spent += time.perf_counter() - started
        return drawn


class Workload:
    """One row of the table: what ``Mlp``, ``Llama`` and ``Resnet`` have in common."""

    family: ClassVar[str]
    mode: str

    @property
    def trains(self) -> bool:
        """Whether a step ends with an update of the weights."""
        return self.mode == "train"

    @property
    def name(self) -> str:
        """As in the table."""
        return f"{self.family}.{self.mode}"

    def weights(self) -> dict[str, Weight]:
        """All weights by name."""
        raise NotImplementedError

    def values(self) -> Iterator[tuple[str, np.ndarray]]:
        """The weights' numbers, one after the other, so that no engine has to hold them twice."""
        for name, weight in self.weights().items():
            yield name, weight.value(name)

    def inputs(self) -> dict[str, np.ndarray]:
        """The data of every step; integers are int32."""
        raise NotImplementedError

    def caches(self) -> dict[str, np.ndarray]:
        """What a step changes in place besides weights."""
        return {}

    def result(self, ops: Ops, weight: Callable[[str], Any], inputs: dict[str, Any]) -> Any:
        """The loss where it trains, else the logits."""
        raise NotImplementedError

    def forward_flops(self) -> float:
        """Of contractions, without gradients."""
        raise NotImplementedError

    def step_flops(self) -> float:
        """Of contractions in a step."""
        return self.forward_flops() * (3 if self.trains else 1)

    def moved(self) -> tuple[float, float]:
        """Bytes a step reads for its products (weights, caches), and bytes that the update of weights reads and writes."""
        parameters = 4.0 * sum(weight.size for weight in self.weights().values())
        passes = {"sgd": 2, "adam": 6, "adamw": 6}[self.optimizer] if self.trains else 0
        read = parameters + sum(cache.nbytes for cache in self.caches().values())
        return read, passes * parameters

    optimizer: ClassVar[str] = "sgd"
    rate: ClassVar[float] = 0.01

    def floor(self, flops_per_second: float, bytes_per_second: float, width: float = 4.0) -> float:
        """Seconds no step can be faster than: arithmetic at the peak or weights from memory, and then the update.

        ``width`` is the bytes of a number that products read. What a cache may hold counts for nothing. An update reads and writes weights and moments; gradients may never
        reach memory.
        """
        read, updated = (amount if amount > CACHED else 0.0 for amount in self.moved())
        products = max(self.step_flops() / flops_per_second, read * width / 4 / bytes_per_second)
        return products + updated / bytes_per_second


@dataclass(frozen=True)
class Mlp(Workload):
    """A network of one hidden layer."""

    family: ClassVar[str] = "mlp"
    rate: ClassVar[float] = 0.1
    mode: str = "train"
    batch: int = 128
    sizes: tuple[int, int, int] = (784, 128, 10)

    def weights(self) -> dict[str, Weight]:
        """Two layers."""
        first, hidden, last = self.sizes
        return {
            "in.weight": Weight((first, hidden), 0.05),
            "in.bias": Weight((hidden,), 0.05),
            "out.weight": Weight((hidden, last), 0.05),
            "out.bias": Weight((last,), 0.05),
        }

    def inputs(self) -> dict[str, np.ndarray]:
        """Noise and labels."""
        rng = np.random.default_rng(0)
        images = rng.standard_normal((self.batch, self.sizes[0]), np.float32)
        return {
            "x": images,
            "labels": rng.integers(0, self.sizes[2], self.batch).astype(np.int32),
        }

    def result(self, ops: Ops, weight: Callable[[str], Any], inputs: dict[str, Any]) -> Any:
        """The loss."""
        hidden = ops.relu(inputs["x"] @ weight("in.weight") + weight("in.bias"))
        logits = hidden @ weight("out.weight") + weight("out.bias")
        return ops.cross_entropy(logits, inputs["labels"])

    def forward_flops(self) -> float:
        """Of both layers."""
        first, hidden, last = self.sizes
        return 2.0 * self.batch * hidden * (first + last)

    def step_flops(self) -> float:
        """The images need no gradient."""
        return 3 * self.forward_flops() - 2.0 * self.batch * self.sizes[0] * self.sizes[1]


@dataclass(frozen=True)
class Llama(Workload):
    """A decoder: RMSNorm, rotary positions, causal attention with shared key heads, SwiGLU, a head of its own."""

    family: ClassVar[str] = "llama-s"
    optimizer: ClassVar[str] = "adam"
    rate: ClassVar[float] = 1e-3
    usual: ClassVar[tuple[int, int]] = (1, 128)
    """Batch and sequence that the name does not say."""
    tied: ClassVar[bool] = False
    """Whether the head is the table of words, and no weight of its own."""
    mode: str = "forward"
    batch: int = 1
    sequence: int = 128
    layers: int = 4
    width: int = 576
    heads: int = 9
    kv_heads: int = 3
    inner: int = 1536
    vocabulary: int = 8192
    theta: float = 10000.0
    eps: float = 1e-5

    @property
    def name(self) -> str:
        """With batch and sequence where they are not the usual ones."""
        batch = f" b{self.batch}" if self.batch != self.usual[0] else ""
        sequence = f" s{self.sequence}" if self.sequence != self.usual[1] else ""
        return f"{self.family}.{self.mode}{batch}{sequence}"

    @property
    def head(self) -> int:
        """The width of one head."""
        return self.width // self.heads

    @property
    def position(self) -> int:
        """Of the token that is decoded: the last of the cache."""
        return self.sequence - 1

    def rotations(self) -> tuple[np.ndarray, np.ndarray]:
        """Cosines and sines of the positions that a step has: (length, head), both halves the same."""
        pairs = np.arange(0, self.head, 2) / self.head
        first = self.position if self.mode == "decode" else 0
        angles = np.outer(np.arange(first, self.sequence), self.theta**-pairs)
        twice = np.concatenate([angles, angles], axis=1)
        return np.cos(twice).astype(np.float32), np.sin(twice).astype(np.float32)

    def weights(self) -> dict[str, Weight]:
        """Matrices are (in, out)."""
        width, kv = self.width, self.head * self.kv_heads
        found = {"words": Weight((self.vocabulary, width), 0.02)}
        for i in range(self.layers):
            found[f"layer{i}.norm1"] = Weight((width,), 0.1, 1.0)
            matrices = {
                "q": (width, width),
                "k": (width, kv),
                "v": (width, kv),
                "o": (width, width),
                "gate": (width, self.inner),
                "up": (width, self.inner),
                "down": (self.inner, width),
            }
            for name, shape in matrices.items():
                found[f"layer{i}.{name}"] = Weight(shape, shape[0] ** -0.5)
            found[f"layer{i}.norm2"] = Weight((width,), 0.1, 1.0)
        found["norm"] = Weight((width,), 0.1, 1.0)
        if not self.tied:
            found["head"] = Weight((width, self.vocabulary), 0.02)
        return found

    def inputs(self) -> dict[str, np.ndarray]:
        """Random tokens, and the next of each; the last alone where it decodes."""
        rng = np.random.default_rng(0)
        drawn = rng.integers(0, self.vocabulary, (self.batch, self.sequence + 1)).astype(np.int32)
        if self.mode == "decode":
            return {"tokens": np.ascontiguousarray(drawn[:, -1:])}
        tokens = {"tokens": np.ascontiguousarray(drawn[:, :-1])}
        return tokens | ({"labels": np.ascontiguousarray(drawn[:, 1:])} if self.trains else {})

    def caches(self) -> dict[str, np.ndarray]:
        """Keys and values of every layer: (batch, sequence, kv_heads * head)."""
        if self.mode != "decode":
            return {}
        shape = (self.batch, self.sequence, self.kv_heads * self.head)
        names = [f"layer{i}.{kind}" for i in range(self.layers) for kind in ("keys", "values")]
        return {name: Weight(shape, 0.5).value(name) for name in names}

    def result(self, ops: Ops, weight: Callable[[str], Any], inputs: dict[str, Any]) -> Any:
        """The loss of the next token, or logits of every token."""
        x = ops.embedding(weight("words"), inputs["tokens"])
        for i in range(self.layers):
            h = ops.rms_norm(x, weight(f"layer{i}.norm1"), self.eps)
            q, k, v = (h @ weight(f"layer{i}.{name}") for name in ("q", "k", "v"))
            if self.mode == "decode":
                mixed = ops.cached_attention(q, k, v, i, self)
            else:
                mixed = ops.attention(q, k, v, self)
            x = x + mixed @ weight(f"layer{i}.o")
            h = ops.rms_norm(x, weight(f"layer{i}.norm2"), self.eps)
            inner = ops.swiglu(h @ weight(f"layer{i}.gate"), h @ weight(f"layer{i}.up"))
            x = x + inner @ weight(f"layer{i}.down")
        head = weight("words").T if self.tied else weight("head")
        logits = ops.rms_norm(x, weight("norm"), self.eps) @ head
        return ops.cross_entropy(logits, inputs["labels"]) if self.trains else logits

    def moved(self) -> tuple[float, float]:
        """Of the words only the rows that are looked up are read, unless they are the head."""
        read, updated = super().moved()
        return (
            (read, updated) if self.tied else (read - 4.0 * self.width * self.vocabulary, updated)
        )

    def forward_flops(self) -> float:
        """Of all products, attention included: what the causal mask hides costs nothing."""
        weights = self.weights()
        matrices = sum(w.size for w in weights.values() if len(w.shape) == 2)
        if not self.tied:
            matrices -= weights["words"].size
        length = 1 if self.mode == "decode" else self.sequence
        pairs = self.sequence if self.mode == "decode" else length * (length + 1) / 2
        attention = 4.0 * self.layers * self.batch * self.width * pairs
        return 2.0 * self.batch * length * matrices + attention


@dataclass(frozen=True)
class Smollm(Llama):
    """SmolLM2-135M: thirty layers, and the words are the head. What ``--build`` is asked of a deep model."""

    family: ClassVar[str] = "smollm2"
    optimizer: ClassVar[str] = "adamw"
    usual: ClassVar[tuple[int, int]] = (4, 512)
    tied: ClassVar[bool] = True
    mode: str = "train"
    batch: int = 4
    sequence: int = 512
    layers: int = 30
    vocabulary: int = 49152


@dataclass(frozen=True)
class Resnet(Workload):
    """ResNet-18 for small images: a 3x3 convolution at full size, then basic blocks two by two.

    Forward is inference: batch norms are folded into the convolutions, which have biases instead. Training normalises by
    the statistics of the batch.
    """

    family: ClassVar[str] = "resnet18"
    mode: str = "forward"
    batch: int = 4
    size: int = 64
    widths: tuple[int, ...] = (64, 128, 256, 512)
    classes: int = 10
    eps: float = 1e-5

    def convolutions(self) -> dict[str, tuple[int, int, int, int, int]]:
        """Name -> channels in, channels out, kernel, stride, and the size of the image it makes."""
        size, before = self.size, self.widths[0]
        found = {"stem": (3, before, 3, 1, size)}
        for stage, width in enumerate(self.widths):
            for block in range(2):
                stride = 2 if stage and not block else 1
                size = -(-size // stride)
                name = f"stage{stage}.block{block}"
                found[f"{name}.first"] = (before, width, 3, stride, size)
                found[f"{name}.second"] = (width, width, 3, 1, size)
                if stride > 1 or before != width:
                    found[f"{name}.short"] = (before, width, 1, stride, size)
                before = width
        return found

    def weights(self) -> dict[str, Weight]:
        """Convolutions are (out, in, kernel, kernel)."""
        found = {}
        for name, (before, after, kernel, _, _) in self.convolutions().items():
            summed = before * kernel * kernel
            found[f"{name}.weight"] = Weight((after, before, kernel, kernel), (2 / summed) ** 0.5)
            if self.trains:
                found[f"{name}.norm"] = Weight((after,), 0.1, 1.0)
            found[f"{name}.bias"] = Weight((after,), 0.1)
        found["head.weight"] = Weight((after, self.classes), 0.04)
        found["head.bias"] = Weight((self.classes,), 0.1)
        return found

    def inputs(self) -> dict[str, np.ndarray]:
        """Noise and labels."""
        rng = np.random.default_rng(0)
        images = rng.standard_normal((self.batch, 3, self.size, self.size), np.float32)
        labels = rng.integers(0, self.classes, self.batch).astype(np.int32)
        return {"x": images} | ({"labels": labels} if self.trains else {})

    def result(self, ops: Ops, weight: Callable[[str], Any], inputs: dict[str, Any]) -> Any:
        """The loss, or the scores of the classes."""
        convolutions = self.convolutions()

        def layer(name: str, x: Any) -> Any:
            y = ops.conv(x, weight(f"{name}.weight"), convolutions[name][3])
            bias = weight(f"{name}.bias")
            if self.trains:
                return ops.batch_norm(y, weight(f"{name}.norm"), bias, self.eps)
            return y + ops.channels(bias)

        x = self.features(ops, layer, inputs["x"])
        logits = ops.mean_of_images(x) @ weight("head.weight") + weight("head.bias")
        return ops.cross_entropy(logits, inputs["labels"]) if self.trains else logits

    def features(self, ops: Ops, layer: Callable[[str, Any], Any], x: Any) -> Any:
        """What the last block makes."""
        x = ops.relu(layer("stem", x))
        for stage in range(len(self.widths)):
            for block in range(2):
                name = f"stage{stage}.block{block}"
                y = layer(f"{name}.second", ops.relu(layer(f"{name}.first", x)))
                short = f"{name}.short"
                x = ops.relu(y + (layer(short, x) if short in self.convolutions() else x))
        return x

    def _flops(self, name: str) -> float:
        before, after, kernel, _, size = self.convolutions()[name]
        return 2.0 * self.batch * before * after * (kernel * size) ** 2

    def forward_flops(self) -> float:
        """Of all convolutions, in their direct form."""
        return sum(self._flops(name) for name in self.convolutions())

    def step_flops(self) -> float:
        """The images need no gradient."""
        return super().step_flops() - (self._flops("stem") if self.trains else 0.0)


@dataclass(frozen=True)
class Resnet50(Resnet):
    """ResNet-50: a 7x7 stem and a pooling, then blocks of three convolutions; inference alone."""

    family: ClassVar[str] = "resnet50"
    batch: int = 32
    size: int = 224
    classes: int = 1000
    blocks: tuple[int, ...] = (3, 4, 6, 3)

    def convolutions(self) -> dict[str, tuple[int, int, int, int, int]]:
        """As of ResNet-18; a block makes four times the width of its stage."""
        size, before = -(-self.size // 2), self.widths[0]
        found = {"stem": (3, before, 7, 2, size)}
        size = -(-size // 2)
        for stage, (width, count) in enumerate(zip(self.widths, self.blocks, strict=True)):
            for block in range(count):
                stride = 2 if stage and not block else 1
                name = f"stage{stage}.block{block}"
                found[f"{name}.first"] = (before, width, 1, 1, size)
                size = -(-size // stride)
                found[f"{name}.second"] = (width, width, 3, stride, size)
                found[f"{name}.third"] = (width, 4 * width, 1, 1, size)
                if not block:
                    found[f"{name}.short"] = (before, 4 * width, 1, stride, size)
                before = 4 * width
        return found

    def features(self, ops: Ops, layer: Callable[[str, Any], Any], x: Any) -> Any:
        """What the last block makes."""
        x = ops.max_pool(ops.relu(layer("stem", x)))
        for stage, count in enumerate(self.blocks):
            for block in range(count):
                name = f"stage{stage}.block{block}"
                y = ops.relu(layer(f"{name}.second", ops.relu(layer(f"{name}.first", x))))
                x = ops.relu(
                    layer(f"{name}.third", y) + (x if block else layer(f"{name}.short", x))
                )
        return x


@dataclass(frozen=True)
class Gemm(Workload):
    """One product of square matrices, of which the right one is a weight."""

    family: ClassVar[str] = "gemm"
    mode: str = "forward"
    size: int = 1024

    @property
    def name(self) -> str:
        """With its size."""
        return f"gemm.{self.size}"

    def weights(self) -> dict[str, Weight]:
        """The right matrix."""
        return {"w": Weight((self.size, self.size), 1.0)}

    def inputs(self) -> dict[str, np.ndarray]:
        """The left one."""
        rng = np.random.default_rng(0)
        return {"x": rng.standard_normal((self.size, self.size), np.float32)}

    def result(self, ops: Ops, weight: Callable[[str], Any], inputs: dict[str, Any]) -> Any:
        """The product."""
        return inputs["x"] @ weight("w")

    def forward_flops(self) -> float:
        """Of the product."""
        return 2.0 * self.size**3


FAMILIES: dict[str, type[Any]] = {
    kind.family: kind for kind in (Mlp, Llama, Smollm, Resnet, Resnet50, Gemm)
}
WORKLOADS: dict[str, Any] = {
    workload.name: workload
    for workload in (
        Mlp("train"),
        Llama("forward"),
        Llama("train"),
        Llama("decode"),
        Resnet("forward"),
        Resnet("train"),
        Smollm("train"),
        Smollm("forward", 1, 128),
        Smollm("decode", 1, 512),
        Resnet50("forward"),
        *(Gemm(size=size) for size in (256, 512, 1024, 2048, 4096)),
    )
}
"""By name, as the specification has them."""

USUAL = tuple(name for name in WORKLOADS if not name.startswith(("smollm2", "resnet50", "gemm")))
"""Those that are measured where none is named: a step of a deep model takes many seconds."""

QUICK = ("mlp.train", "llama-s.forward", "llama-s.train", "llama-s.decode")


def chosen(names: list[str], batches: list[int], sequences: list[int]) -> list[Any]:
    """Workloads by name, or by the beginning of it; those of Llama in every batch and sequence."""
    found = []
    for name in names:
        matching = [one for full, one in WORKLOADS.items() if full.startswith(name)]
        if not matching:
            raise ValueError(f"there is no workload '{name}'; there are {', '.join(WORKLOADS)}")
        for one in matching:
            if isinstance(one, Llama) and not isinstance(one, Smollm):
                found += [
                    replace(one, batch=batch, sequence=sequence)
                    for batch in batches
                    for sequence in sequences
                ]
            else:
                found.append(one)
    return list(dict.fromkeys(found))


def to_json(workload: Any) -> dict[str, Any]:
    """What ``from_json`` reads."""
    return {"family": workload.family, **asdict(workload)}


def from_json(values: dict[str, Any]) -> Any:
    """The workload that ``to_json`` wrote."""
    fields = {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}
    return FAMILIES[fields.pop("family")](**fields)
