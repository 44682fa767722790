"""The chain of a plan: which kernels that follow each other are run as one.

A chain is cut into stages (``stages``). A stage has one product or attention, whose work all blocks share, and before it the light kernels that it needs, which each block computes for itself. What blocks
hand each other are *words* (``exchange``): every result of a stage that a later one reads. So a chain depends on nothing but the order of its stages: any block may be ahead.
"""

from __future__ import annotations

from collections.abc import Iterator

from ....lower.plan import Plan
from .facts import Facts
from .forms import Chain
from .roles import matrix_of
from .stages import Stages

FEWEST_PRODUCTS = 2
"""Products of a chain that is worth it."""
STAGE, TOGETHER = 1.8, 1_800_000
"""Microseconds that a stage takes, and bytes that a chain reads in one: as SmolLM2-135M and a Llama 2048 wide show on an H200."""
KERNEL, APART = 1.6, 2_900_000
"""The same of kernels one by one."""


def chain_of(plan: Plan, blocks: int) -> Chain | None:
    """The longest chain of a plan on so many blocks; None where there is none that is worth it."""
    best: tuple[int, range] | None = None
    for run in _runs(plan):
        products = sum(matrix_of(plan.spec(k)) is not None for k in run)
        if products >= FEWEST_PRODUCTS and (best is None or products > best[0]):
            best = products, run
    chain = None if best is None else Stages(plan, best[1], blocks).chain()
    return chain if chain is not None and _pays(plan, chain) else None


def _pays(plan: Plan, chain: Chain) -> bool:
    """Whether a chain is expected to be quicker than its kernels one by one: it saves launches, and reads large matrices more slowly."""
    read = sum(plan.buffers[buffer].nbytes for some in chain.reads for buffer in some)
    together = STAGE * len(chain.stages) + read / TOGETHER
    return together < KERNEL * (chain.end - chain.first) + read / APART


def _runs(plan: Plan) -> Iterator[range]:
    """Ranges of kernels that can be one chain, each as long as it can be."""
    start = plan.commit
    while start < len(plan.kernels):
        facts = Facts(plan)
        end = start
        while end < len(plan.kernels) and facts.admits(end):
            end += 1
        # What comes after the last product needs no chain.
        last = end
        while last > start and not facts.is_main(last - 1):
            last -= 1
        if last > start:
            yield range(start, last)
        start = end + 1
