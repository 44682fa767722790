"""Cases in PyTorch: eagerly or compiled, in whichever of several forms is fastest here."""

import time
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from ..peers.turns import NotOfferedError
from .prepared import Prepared, by_clock

Tensors = dict[str, torch.Tensor]
Call = Callable[[Tensors], list[torch.Tensor]]


def _contract(case: Any, given: Tensors) -> list[torch.Tensor]:
    turned = [
        value.mT if letter == "T" else value
        for value, letter in zip(given.values(), case.form, strict=True)
    ]
    return [torch.matmul(*turned)]


def _conv(case: Any, given: Tensors) -> list[torch.Tensor]:
    if case.part == "forward":
        x, w = given["x"], given["w"]
        return [functional.conv2d(x, w, None, case.stride, case.padding, 1, case.groups)]
    towards_input = case.part == "input"
    # The gradient needs the shape of what it is towards, and no numbers of it.
    missing = given["dy"].new_empty(()).expand(case.image if towards_input else case.weight)
    x, w = (missing, given["w"]) if towards_input else (given["x"], missing)
    wanted = (towards_input, not towards_input, False)
    found = torch.ops.aten.convolution_backward(
        given["dy"],
        x,
        w,
        None,
        [case.stride] * 2,
        [case.padding] * 2,
        [1, 1],
        False,
        [0, 0],
        case.groups,
        wanted,
    )
    return [item for item in found if item is not None]


def _attention(case: Any, given: Tensors) -> list[torch.Tensor]:
    options = {"is_causal": case.causal, "enable_gqa": case.heads != case.kv_heads}
    attend = functional.scaled_dot_product_attention
    return [attend(given["q"], given["k"], given["v"], **options)]


def _rows(case: Any, given: Tensors) -> list[torch.Tensor]:
    x, row = given["x"], (case.width,)
    if case.op == "softmax":
        return [torch.softmax(x, -1)]
    if case.op == "rms_norm":
        return [functional.rms_norm(x, row, given["weight"], 1e-5)]
    if case.op == "layer_norm":
        return [functional.layer_norm(x, row, given["weight"], given["bias"], 1e-5)]
    return [functional.cross_entropy(x, given["labels"])]


def _map(case: Any, given: Tensors) -> list[torch.Tensor]:
    if case.op == "gelu":
        return [functional.gelu(given["x"])]
    if case.op == "swiglu":
        return [functional.silu(given["gate"]) * given["up"]]
    return [torch.addcmul(given["bias"], given["x"], given["weight"])]


def _reduce(case: Any, given: Tensors) -> list[torch.Tensor]:
    reduce = torch.amax if case.op == "max" else getattr(torch, case.op)
    return [reduce(given["x"], case.axis)]


def _pool(case: Any, given: Tensors) -> list[torch.Tensor]:
    pool = functional.max_pool2d if case.op == "max" else functional.avg_pool2d
    return [pool(given["x"], case.window, case.stride)]


def _index(case: Any, given: Tensors) -> list[torch.Tensor]:
    if case.op == "gather":
        return [given["table"].index_select(0, given["indices"])]
    zeros = given["src"].new_zeros(case.result)
    return [zeros.index_add_(0, given["indices"], given["src"])]


def _order(case: Any, given: Tensors) -> list[torch.Tensor]:
    if case.op == "sort":
        return [torch.sort(given["x"], -1)[0]]
    return list(torch.topk(given["x"], case.k, -1))


def _move(case: Any, given: Tensors) -> list[torch.Tensor]:
    return [given["x"].permute(case.order).clone(memory_format=torch.contiguous_format)]


def _scan(case: Any, given: Tensors) -> list[torch.Tensor]:
    try:
        from mambapy.mamba import MambaBlock
    except ImportError as error:
        raise NotOfferedError("mambapy is not installed") from error
    sizes = SimpleNamespace(d_inner=case.channels, d_state=case.size)
    block, skip = SimpleNamespace(config=sizes), given["x"].new_zeros(case.channels)
    operands = [given[name] for name in ("x", "delta", "a", "b", "c")]
    return [MambaBlock.selective_scan_seq(block, *operands, skip)]


def _delta(case: Any, given: Tensors) -> list[torch.Tensor]:
    """As transformers has it without kernels: tokens one by one, and sequences by chunks."""
    from transformers.models.qwen3_next import modeling_qwen3_next as qwen

    one = case.steps == 1
    rule = qwen.torch_recurrent_gated_delta_rule if one else qwen.torch_chunk_gated_delta_rule
    o, state = rule(
        given["q"],
        given["k"],
        given["v"],
        g=given["g"],
        beta=given["beta"],
        initial_state=given.get("state"),
        output_final_state=case.part == "step",
    )
    return [o] if state is None else [o, state]


WRITTEN: dict[str, Callable[[Any, Tensors], list[torch.Tensor]]] = {
    "contract": _contract,
    "conv": _conv,
    "attention": _attention,
    "rows": _rows,
    "map": _map,
    "reduce": _reduce,
    "pool": _pool,
    "index": _index,
    "order": _order,
    "move": _move,
    "scan": _scan,
    "delta": _delta,
}
"""Each kind as a function of tensors."""


def _adam(given: Tensors) -> Callable[[], list[torch.Tensor]]:
    parameter = torch.nn.Parameter(given["p"])
    parameter.grad = given["gradient"]
    optimizer = torch.optim.Adam([parameter], lr=1e-3, fused=True)

    def call() -> list[torch.Tensor]:
        optimizer.step()
        return [parameter]

    return call


def _forms(case: Any, given: Tensors) -> list[Tensors]:
    """The inputs, and images with channels last beside them: some functions like these better."""
    if case.kind not in ("conv", "pool"):
        return [given]
    last = {
        name: value.contiguous(memory_format=torch.channels_last) if value.ndim == 4 else value
        for name, value in given.items()
    }
    return [given, last]


def _into(function: Callable[[Tensors], list[torch.Tensor]], given: Tensors) -> Call:
    """A compiled function that writes into memory that is there already."""
    room = [torch.empty_like(value) for value in function(given)]

    def written(given: Tensors) -> list[torch.Tensor]:
        for place, value in zip(room, function(given), strict=True):
            place.copy_(value)
        return room

    return torch.compile(written, dynamic=False, fullgraph=True)


def calls(case: Any, given: Tensors, compiled: bool) -> list[Callable[[], list[torch.Tensor]]]:
    """The ways to compute a case, of which the fastest counts."""
    if case.variant == "map.adam":
        return [_adam(given)]

    def forward(given: Tensors) -> list[torch.Tensor]:
        return WRITTEN[case.kind](case, given)

    found: list[Callable[[], list[torch.Tensor]]] = []
    for values in _forms(case, given):
        if case.part == "both":
            function = torch.compile(forward, dynamic=False) if compiled else forward
            found.append(_with_gradients(case, function, values))
        else:
            function = _into(forward, values) if compiled else forward
            found.append(lambda function=function, values=values: function(values))
    if case.kind == "contract" and not compiled:
        out = forward(given)[0]
        a, b = (v.mT if c == "T" else v for v, c in zip(given.values(), case.form, strict=True))
        found.append(lambda: [torch.matmul(a, b, out=out)])
    return found


def _with_gradients(case: Any, forward: Call, given: Tensors) -> Callable[[], list[torch.Tensor]]:
    cotangent = given["d_output"]
    values = {name: value for name, value in given.items() if name != "d_output"}
    trained = [values[name].requires_grad_() for name in case.trained]

    def call() -> list[torch.Tensor]:
        (y,) = forward(values)
        return [y, *torch.autograd.grad(y, trained, cotangent)]

    return call


def fastest(choices: list[Callable[[], Any]]) -> Callable[[], Any]:
    """The one whose best of a few calls is the least."""
    if len(choices) == 1:
        return choices[0]

    def best(call: Callable[[], Any]) -> float:
        call()
        spent = []
        for _ in range(5):
            start = time.perf_counter()
            call()
            spent.append(time.perf_counter() - start)
        return min(spent)

    return min(choices, key=best)


def prepare(
    case: Any, arrays: dict[str, np.ndarray], threads: int, *, compiled: bool = False
) -> Prepared:
    """The case over tensors that share no memory with others."""
    torch.set_num_threads(threads)
    if compiled:
        warnings.filterwarnings("ignore")
        torch._dynamo.reset()
    given = {name: torch.tensor(value) for name, value in arrays.items()}
    if "labels" in given:
        given["labels"] = given["labels"].long()
    call = fastest(calls(case, given, compiled))
    return by_clock(call, lambda found: [value.detach().numpy() for value in found])
