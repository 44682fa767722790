"""An imported spelling costs nothing: primitives become what composites are."""

from collections import Counter

import pytest

import darner
from darner.optimizer.work import computes, kept_nodes
from tests.zoo import MODEL_VARIANTS, bert, gpt2, llama, unet, vit

ALIKE = {"gather": "embedding", "rope_with_tables": "rope", "dot_general": "matmul_at"}
"""Two names of one kernel."""


def kernels(graph, mode):
    """What a graph computes at every run, by kind."""
    kept = kept_nodes(graph, mode)
    names = [n.op.name for n in graph.nodes if computes(n) and not kept[n.id]]
    return Counter(ALIKE.get(name, name) for name in names)


@pytest.mark.parametrize("variant", range(MODEL_VARIANTS))
@pytest.mark.parametrize("make", [llama, gpt2, vit], ids=lambda make: make.__name__)
def test_a_block_in_primitives_is_the_block_in_composites(make, variant):
    wanted, _ = darner.optimize_inference(make(2, loss=False))
    found, report = darner.optimize_inference(
        make(2, spelling="primitive", variant=variant, loss=False)
    )
    assert kernels(found, "inference") == kernels(wanted, "inference")
    assert not report.passes[0].budgets_hit


@pytest.mark.parametrize("variant", range(MODEL_VARIANTS))
def test_a_unet_block_in_primitives_is_no_more_than_in_composites(variant):
    wanted, _ = darner.optimize_inference(unet(loss=False))
    found, _ = darner.optimize_inference(unet(spelling="primitive", variant=variant, loss=False))
    # Doubling an image is spelled by views in primitives, and an op of its own in composites.
    assert kernels(found, "inference") == kernels(wanted, "inference") - Counter(["resize_nearest"])


@pytest.mark.slow
@pytest.mark.parametrize("variant", [0, 2])
@pytest.mark.parametrize("make", [llama, gpt2, bert, unet], ids=lambda make: make.__name__)
def test_training_in_primitives_is_training_in_composites(make, variant):
    wanted, _ = darner.optimize_training(make(loss=True))
    found, _ = darner.optimize_training(make(spelling="primitive", variant=variant, loss=True))
    first, second = kernels(found, "train"), kernels(wanted, "train")
    if make is unet:
        second -= Counter(["resize_nearest"])
    if make is bert and variant == 2:
        # A finite number in place of -inf is kept as a bias, which the mask is made into.
        first -= Counter(["where"])
    assert first == second
