"""Attention of few queries over many keys: results of the emulated device and of its PTX run in Python against the reference, and code without spills."""

import numpy as np
import pytest

from darner.backends.cuda import kernels
from darner.backends.cuda.attention.few import FewCut, few_cuts, write_few
from darner.backends.cuda.attention.problem import tensor_attention
from darner.backends.cuda.attention.template import TENSOR_ATTENTION
from darner.backends.cuda.code import to_ptx
from darner.backends.cuda.machine import Machine
from tests.cuda import running, test_attention_wgmma
from tests.cuda.attentions import Case, assert_near, planned
from tests.cuda.ptxas import assembled, needs_ptxas

HOPPER = Machine.without_card("sm_90a")
EMULATED = Machine.without_card("sm_90a", emulated=True)
CAUSAL = {"causal": True, "offset": None}


def decoding(heads, kv_heads, queries, keys, width, **more):
    options = {"causal": True, "layout": "bshd", "offset": None, **more.pop("options", {})}
    return Case(heads, kv_heads, queries, keys, width, options=options, **more)


CASES = [
    (decoding(3, 1, 1, 200, 64, batch=2), FewCut(2, 1, 1, joined=False)),
    (decoding(6, 2, 2, 150, 32, value_width=64), FewCut(2, 2, 3, joined=False)),
    (decoding(8, 1, 2, 90, 72, value_width=80, dtype="f16"), FewCut(2, 1, 2, joined=False)),
    (Case(4, 2, 3, 70, 64, options={"window": 20}), FewCut(2, 1, 1, joined=False)),
    (Case(2, 2, 1, 65, 40, finish=True), FewCut(2, 1, 2, joined=False)),
]


def placed(arrays, keys):
    """Operands whose queries stand inside the keys."""
    if "offset" in arrays:
        arrays["offset"] = np.arange(len(arrays["offset"]), dtype=np.int32) * 31 + keys // 2
    return arrays


@pytest.mark.parametrize(("case", "cut"), CASES, ids=str)
def test_result_is_the_reference(case, cut, monkeypatch):
    def written(spec, machine):
        return write_few(spec, machine, tensor_attention(spec, few=True), cut)

    monkeypatch.setattr(running, "written", written)
    running.launches.cache_clear()
    arrays = placed(case.arrays(), case.keys)
    found = running.Kernels(planned(case.graph(), EMULATED), arrays, EMULATED).run()
    running.launches.cache_clear()
    assert_near(case, found, arrays)


@pytest.mark.parametrize("parts", [1, 3])
def test_blocks_of_a_cluster_put_together_what_they_have(parts, monkeypatch):
    case = decoding(4, 1, 1, 130, 64)
    cut = FewCut(2, 1, parts, joined=True)
    monkeypatch.setattr(
        kernels,
        "written",
        lambda spec, machine: write_few(spec, machine, tensor_attention(spec, few=True), cut),
    )
    monkeypatch.setattr(Case, "arrays", lambda self, own=Case.arrays: placed(own(self), self.keys))
    monkeypatch.setattr(test_attention_wgmma, "is_by", "mma.sync")
    assert_near(case, *test_attention_wgmma.run(case))


@needs_ptxas
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    "case",
    [
        decoding(32, 4, 1, 8192, 64),
        decoding(9, 3, 1, 512, 64),
        decoding(16, 2, 2, 4096, 128),
        decoding(4, 2, 1, 1000, 256),
    ],
    ids=str,
)
def test_the_assembler_spills_nothing(case, arch):
    machine = Machine.without_card(arch)
    (spec,) = planned(case.graph(), machine).specs.values()
    assert kernels.template_of(spec, machine) is TENSOR_ATTENTION
    for cut in few_cuts(tensor_attention(spec, few=True), machine):
        made = write_few(spec, machine, tensor_attention(spec, few=True), cut)
        told = assembled(to_ptx(made.stages[0].ir, arch), arch)
        assert told["spills"] == told["stack"] == told["losses"] == 0, cut.name
