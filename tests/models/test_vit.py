"""ViT against transformers."""

import numpy as np
import pytest
from transformers import ViTConfig, ViTForImageClassification

import darner
from darner import models, nn
from darner.models import vit
from tests.models import parity

SIZES = {"batch": 3}
SMALL = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "image_size": 18,
    "patch_size": 6,
    "num_labels": 5,
}
KINDS = {
    "usual": {},
    "oblong": {"image_size": [12, 21], "patch_size": [6, 5], "qkv_bias": False},
    "one channel": {"num_channels": 1, "hidden_act": "gelu_new", "layer_norm_eps": 1e-3},
}


def small(kind="usual", **changes):
    config = ViTConfig(**{**SMALL, **KINDS[kind], **changes})
    return parity.build(ViTForImageClassification, config)


def images(model):
    rng = np.random.default_rng(1)
    shape = model.inference_graph(batch=3).inputs["pixels"].shape
    return {"pixels": rng.normal(size=shape), "labels": rng.integers(0, 5, 3)}


@pytest.mark.parametrize("kind", KINDS)
def test_logits(kind):
    hf_model = small(kind)
    model = parity.model_of(hf_model)
    parity.check_logits(hf_model, model, images(model), sizes=SIZES)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients(kind):
    hf_model = small(kind)
    model = parity.model_of(hf_model)
    parity.check_gradients(hf_model, model, images(model), sizes=SIZES)


def test_saved(tmp_path):
    hf_model = small()
    model = parity.model_of(hf_model)
    assert isinstance(model, vit.ViT)
    parity.check_saved(hf_model, model, images(model), tmp_path, sizes=SIZES)


def test_features_of_every_patch():
    hf_model = small()
    model = parity.model_of(hf_model)
    given = images(model)
    with darner.build_inference_session(model.features_graph(batch=3)) as session:
        weights = parity.weights_of(hf_model)
        parity.copy_weights(
            session, {name: weights[name] for name in weights if name.startswith("vit.")}, model
        )
        session.run({"pixels": given["pixels"].astype(np.float32)})
        found = session.output("last_hidden_state")
    wanted = parity.call(hf_model.vit, parity.tensors(given, "f32")).last_hidden_state
    parity.assert_close(found, wanted.detach().numpy(), 1e-4, "last_hidden_state")


def test_dropout_trains_and_is_nothing_in_inference():
    options = {**SMALL, "hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3}
    dropped = models.from_config({"model_type": "vit", **options})
    plain = models.from_config({"model_type": "vit", **SMALL})
    graph = dropped.training_graph(batch=3)
    assert sum(node.op.name == "dropout" for node in graph.nodes) == 1 + 3 * 2
    served = dropped.inference_graph(batch=3)
    assert sum(node.op.name == "scaled_dot_attention" for node in served.nodes) == 2
    given = parity.arrays(images(plain), "f32")
    with darner.build_session(graph, optimizer=darner.optim.Adam(1e-2)) as session:
        losses = [session.run(given) and session.read_loss() for _ in range(12)]
    assert losses[-1] < 0.5 * losses[0]
    outputs = []
    for model in (dropped, plain):
        with darner.build_inference_session(model.inference_graph(batch=3), seed=4) as session:
            session.run({"pixels": given["pixels"]})
            outputs.append(session.output("logits"))
    parity.assert_close(outputs[0], outputs[1], 1e-5, "logits")


def test_low_rank_changes_of_queries_and_values():
    lora = nn.LoRA(rank=2, targets=("*query", "*value"))
    model = models.from_config({"model_type": "vit", **SMALL}, linear=lora.linear)
    graph = model.training_graph(batch=2)
    changed = {name for name in graph.parameters if ".lora_A." in name}
    assert changed == {
        f"vit.encoder.layer.{layer}.attention.attention.{kind}.lora_A.weight"
        for layer in range(2)
        for kind in ("query", "value")
    }


def test_mistakes_are_named():
    with pytest.raises(darner.ArgumentError, match="3 heads do not divide the width 16"):
        models.from_config({"model_type": "vit", **SMALL, "hidden_size": 16}).inference_graph()
    with pytest.raises(darner.ArgumentError, match="an image of 8 x 8 has no patches of 16 x 16"):
        vit.ViTConfig(image_size=8)
