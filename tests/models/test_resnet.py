"""ResNet against transformers and against torchvision's network, written out here."""

import numpy as np
import pytest
from transformers import ResNetConfig, ResNetForImageClassification

from darner.models import resnet
from tests.models import parity

SIZES = {"batch": 3, "image_size": (33, 40)}
KINDS = {
    "basic": {"layer_type": "basic", "hidden_sizes": [8, 12], "depths": [2, 1]},
    "bottleneck": {"layer_type": "bottleneck", "hidden_sizes": [16, 24], "depths": [1, 2]},
    "early": {
        "layer_type": "bottleneck",
        "hidden_sizes": [16, 16],
        "depths": [1, 1],
        "downsample_in_first_stage": True,
        "downsample_in_bottleneck": True,
        "hidden_act": "gelu",
    },
}


def small(kind):
    config = ResNetConfig(embedding_size=8, num_labels=5, **KINDS[kind])
    return parity.build(ResNetForImageClassification, config)


def images(seed=1):
    rng = np.random.default_rng(seed)
    return {"pixels": rng.normal(size=(3, 3, 33, 40)), "labels": rng.integers(0, 5, 3)}


@pytest.mark.parametrize("kind", KINDS)
def test_logits(kind):
    hf_model = small(kind)
    parity.check_logits(hf_model, parity.model_of(hf_model), images(), sizes=SIZES)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients(kind):
    hf_model = small(kind)
    parity.check_gradients(hf_model, parity.model_of(hf_model), images(), sizes=SIZES)


@pytest.mark.parametrize("kind", ["basic", "bottleneck"])
def test_saved(kind, tmp_path):
    hf_model = small(kind)
    model = parity.model_of(hf_model)
    assert isinstance(model, resnet.ResNet)
    parity.check_saved(hf_model, model, images(), tmp_path, sizes=SIZES)
