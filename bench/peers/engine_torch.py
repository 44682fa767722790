"""The workloads in PyTorch: eagerly, or by ``torch.compile``.

Each in a form chosen for speed: fused optimizers throughout, images with channels last, and compiled training in which
loss and gradients are compiled while the fused optimizer runs as it is. ``frozen`` compiles inference with the
weights as constants, so that they are packed once. On a GPU compiled code is the best of what is measured (``max-autotune``),
replayed as CUDA graphs; in ``bf16`` training is ``autocast``'s, and inference holds its weights in bf16.
"""

import warnings
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from .place import CPU, Place
from .turns import Engine, NotOfferedError
from .workloads import Llama

TYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
"""What inference holds its weights in, and what training multiplies in."""


class TorchOps:
    """Functions of tensors; caches are (batch, kv_heads, sequence, head)."""

    def __init__(self, workload: Any, compiled: bool, place: Place = CPU) -> None:
        self.compiled = compiled
        self.caches: dict[str, torch.Tensor] = {}
        if isinstance(workload, Llama):
            self.cos, self.sin = (tensor(table, place) for table in workload.rotations())
            for name, value in workload.caches().items():
                by_head = self._by_head(tensor(value, place), workload.kv_heads)
                self.caches[name] = by_head.contiguous()
                if compiled and place.is_card:  # it stays where it is: a graph may write it
                    torch._dynamo.mark_static_address(self.caches[name])

    @staticmethod
    def _by_head(x: torch.Tensor, heads: int) -> torch.Tensor:
        return x.view(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)

    def _turned(self, x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return x * self.cos + torch.cat([-second, first], -1) * self.sin

    def embedding(self, table: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        return functional.embedding(indices, table)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        if self.compiled:  # written out, it fuses with its surroundings
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight
        return functional.rms_norm(x, weight.shape, weight, eps)

    def swiglu(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return functional.silu(gate) * up

    def attention(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sizes: Llama
    ) -> torch.Tensor:
        q, k = self._turned(self._by_head(q, sizes.heads)), self._by_head(k, sizes.kv_heads)
        return self._mixed(q, self._turned(k), self._by_head(v, sizes.kv_heads), causal=True)

    def cached_attention(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: int, sizes: Llama
    ) -> torch.Tensor:
        keys, values = self.caches[f"layer{layer}.keys"], self.caches[f"layer{layer}.values"]
        last = slice(sizes.position, sizes.position + 1)
        keys[:, :, last] = self._turned(self._by_head(k, sizes.kv_heads))
        values[:, :, last] = self._by_head(v, sizes.kv_heads)
        return self._mixed(self._turned(self._by_head(q, sizes.heads)), keys, values, causal=False)

    @staticmethod
    def _mixed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool) -> torch.Tensor:
        if q.dtype != v.dtype:  # autocast rotates in f32
            q, k = q.to(v.dtype), k.to(v.dtype)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
        return mixed.transpose(1, 2).reshape(q.shape[0], q.shape[2], -1)

    def relu(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x)

    def conv(self, x: torch.Tensor, weight: torch.Tensor, stride: int) -> torch.Tensor:
        return functional.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)

    def max_pool(self, x: torch.Tensor) -> torch.Tensor:
        return functional.max_pool2d(x, 3, 2, 1)

    def channels(self, bias: torch.Tensor) -> torch.Tensor:
        return bias[:, None, None]

    def batch_norm(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
    ) -> torch.Tensor:
        return functional.batch_norm(x, None, None, weight, bias, training=True, eps=eps)

    def mean_of_images(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((2, 3))

    def cross_entropy(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(logits.flatten(0, -2), labels.flatten())


class Model(torch.nn.Module):
    """A workload as a module: only the parameters of one are taken for constants."""

    def __init__(self, workload: Any, ops: TorchOps, weights: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.workload, self.ops = workload, ops
        for name, value in weights.items():
            parameter = torch.nn.Parameter(value.detach(), requires_grad=workload.trains)
            self.register_parameter(self._place(name), parameter)
            weights[name] = parameter

    @staticmethod
    def _place(name: str) -> str:
        return "weight_" + name.replace(".", "_")

    def forward(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """The result of the workload."""
        return self.workload.result(self.ops, lambda name: getattr(self, self._place(name)), inputs)


def tensor(value: np.ndarray, place: Place = CPU, trained: bool = False) -> torch.Tensor:
    """On its device, in its type, with channels last where it is an image or its kernel; integers as PyTorch likes them."""
    made = torch.from_numpy(value).to(place.device)
    if made.dtype == torch.int32:
        return made.long()
    if place.precision in TYPES and not trained:
        made = made.to(TYPES[place.precision])
    return made.contiguous(memory_format=torch.channels_last) if made.ndim == 4 else made


def prepare(
    workload: Any,
    threads: int,
    place: Place = CPU,
    *,
    compiled: bool = False,
    frozen: bool = False,
) -> Engine:
    """Weights as tensors, and a step over them."""
    if frozen and (workload.trains or place.is_card):
        raise NotOfferedError("weights are constants in inference on processors alone")
    if workload.trains and place.precision == "f16":
        raise NotOfferedError("there is no loss scaling here")
    torch.set_num_threads(threads)
    tf32 = place.precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = True
    trains = workload.trains
    weights = {
        name: tensor(value, place, trains).requires_grad_(trains)
        for name, value in workload.values()
    }
    inputs = {name: tensor(value, place, trains) for name, value in workload.inputs().items()}
    ops = TorchOps(workload, compiled, place)

    def result(inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        return workload.result(ops, weights.__getitem__, inputs)

    if compiled:
        warnings.filterwarnings("ignore", module="torch")
        from torch._inductor import config

        config.freezing = frozen
        model = Model(workload, ops, weights).train(workload.trains)
        mode = "max-autotune" if place.is_card else None
        result = torch.compile(model, dynamic=False, fullgraph=True, mode=mode)
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    if workload.trains:
        optimizer = kinds[workload.optimizer](weights.values(), lr=workload.rate, fused=True)

    def train() -> float:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(place.device, torch.bfloat16, enabled=place.precision == "bf16"):
            loss = result(inputs)
        loss.backward()
        optimizer.step()
        if place.is_card:
            torch.cuda.synchronize()
        return loss.item()

    def infer() -> torch.Tensor:
        with torch.no_grad():
            found = result(inputs)
        if place.is_card:
            torch.cuda.synchronize()
        return found

    return Engine(
        step=train if workload.trains else infer,
        read=np.array if workload.trains else lambda found: found.float().cpu().numpy(),
        version=torch.__version__,
    )
