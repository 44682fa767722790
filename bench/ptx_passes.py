"""What LLVM's passes cost kernels for NVIDIA's GPUs, and what they are worth: milliseconds to PTX, its size, and the registers that NVIDIA's assembler gives it.

python -m bench.ptx_passes
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import llvmlite.binding as llvm

from darner import Graph
from darner.backends.base.llvm import emitted, run_passes
from darner.backends.cuda.code import TRIPLE, _target, parsed
from darner.backends.cuda.machine import Machine
from darner.codegen.simt.families import written
from darner.graph.node import Node
from darner.lower.lower import lower
from darner.lower.roles import whole_ops
from tests.cuda.ptxas import assembled, assembler

ARCH = "sm_90a"
PASSES = {
    "a": "always_inliner",
    "s": "sroa",
    "c": "simplify_cfg",
    "i": "instruction_combine",
    "g": "new_gvn",
}
PIPELINES = ("asc", "asci", "ascig", "O1", "O2", "O3")
RUNS = 5

KERNELS: dict[str, Callable[[Graph], Node]] = {
    "product 512^3": lambda g: g.input("a", (512, 512)) @ g.input("b", (512, 512)),
    "softmax 512 x 1000": lambda g: g.input("a", (512, 1000)).softmax(-1),
    "gelu": lambda g: g.input("a", (512, 1000)).gelu(),
    "attention": lambda g: g.scaled_dot_attention(
        *(g.input(name, (1, 4, 256, 64)) for name in "qkv"), causal=True
    ),
}


def code(make: Callable[[Graph], Node]) -> str:
    """The IR of the last kernel of a graph."""
    graph, machine = Graph(), Machine.without_card(ARCH)
    graph.set_outputs([make(graph)])
    plan = lower(graph, target="cuda", whole=set(whole_ops()), ended=set(), alignment=256)
    found: str = written(plan.spec(plan.kernels[-1]), machine).stages[0].ir
    return found


def compiled(text: str, pipeline: str) -> tuple[float, str]:
    """Milliseconds of a pipeline and of the target, and the PTX."""
    machine = _target(ARCH)
    start = time.perf_counter()
    module = parsed(text)
    module.triple, module.data_layout = TRIPLE, str(machine.target_data)
    level = int(pipeline[1]) if pipeline[0] == "O" else 2
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(level))
    passes = builder.getModulePassManager()
    if pipeline[0] != "O":
        passes = llvm.create_new_module_pass_manager()
        for letter in pipeline:
            getattr(passes, f"add_{PASSES[letter]}_pass")()
    run_passes(passes, module, builder)
    ptx = emitted(machine, module, text=True).decode()
    return 1e3 * (time.perf_counter() - start), ptx


def main() -> None:
    """Print a row for each kernel and pipeline, which take turns."""
    for name, make in KERNELS.items():
        text = code(make)
        times: dict[str, list[float]] = {pipeline: [] for pipeline in PIPELINES}
        made = {}
        for _ in range(RUNS):
            for pipeline in PIPELINES:
                took, made[pipeline] = compiled(text, pipeline)
                times[pipeline].append(took)
        for pipeline in PIPELINES:
            told = assembled(made[pipeline], ARCH)["registers"] if assembler() else "-"
            took = statistics.median(times[pipeline])
            print(
                f"{name:20} {pipeline:6} {took:7.1f} ms {len(made[pipeline]):7} bytes {told} registers"
            )


if __name__ == "__main__":
    main()
