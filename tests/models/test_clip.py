"""CLIP against transformers."""

import json

import numpy as np
import pytest
import torch
from transformers import CLIPConfig, CLIPModel

import darner
from darner import models
from darner.models import clip
from tests.models import parity

SIZES = {"batch": 3, "length": 9}
OUTPUTS = ("logits_per_image", "logits_per_text", "text_embeds", "image_embeds")
END = 38
TEXT = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 28,
    "vocab_size": 40,
    "max_position_embeddings": 11,
    "bos_token_id": 37,
    "eos_token_id": END,
}
VISION = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "image_size": 18,
    "patch_size": 6,
}
KINDS = {"usual": {}, "largest token": {"eos_token_id": 2}, "exact": {"hidden_act": "gelu"}}


def small(kind="usual"):
    config = CLIPConfig(
        text_config={**TEXT, **KINDS[kind]}, vision_config=dict(VISION), projection_dim=12
    )
    hf_model = parity.build(CLIPModel, config)
    for tower in (hf_model.text_model, hf_model.vision_model):
        tower.config._attn_implementation = "eager"
    return hf_model


def pairs(images=3, texts=3):
    """Images, and texts that end at different places; larger tokens than the end come after it."""
    rng = np.random.default_rng(1)
    tokens = rng.integers(3, 37, (texts, 9))
    for row, place in enumerate((8, 4, 6, 1, 3)[:texts]):
        tokens[row, place:] = END
        tokens[row, place + 1 :: 2] = 39
    tokens[0, 2] = 37
    return {"pixels": rng.normal(size=(images, 3, 18, 18)), "tokens": tokens}


def contrastive(hf_model, given):
    """The loss that transformers computes itself."""
    found = hf_model(input_ids=given["tokens"], pixel_values=given["pixels"], return_loss=True)
    return found.loss


@pytest.mark.parametrize(
    ("kind", "dtypes"), [("usual", ("f32", "f64")), ("largest token", ["f64"]), ("exact", ["f64"])]
)
def test_similarities_and_embeddings(kind, dtypes):
    hf_model = small(kind)
    model = parity.model_of(hf_model)
    parity.check_logits(hf_model, model, pairs(), sizes=SIZES, outputs=OUTPUTS, dtypes=dtypes)


def test_more_texts_than_images():
    hf_model = small()
    sizes = {"batch": 2, "texts": 5, "length": 9}
    model = parity.model_of(hf_model)
    parity.check_logits(hf_model, model, pairs(2, 5), sizes=sizes, outputs=OUTPUTS, dtypes=["f32"])


def test_gradients_of_the_contrastive_loss():
    hf_model = small()
    model = parity.model_of(hf_model)
    parity.check_gradients(hf_model, model, pairs(), sizes=SIZES, loss=contrastive)


def test_saved(tmp_path):
    hf_model = small()
    model = parity.model_of(hf_model)
    assert isinstance(model, clip.CLIP)
    parity.check_saved(hf_model, model, pairs(), tmp_path, sizes=SIZES, outputs=OUTPUTS)


def test_each_tower_alone_gives_the_same_and_shares_its_parameters():
    model = parity.model_of(small())
    given = parity.arrays(pairs(), "f32")
    with darner.build_inference_session(model.inference_graph(**SIZES), seed=2) as whole:
        whole.run(given)
        graphs = {
            "text_embeds": model.text_graph(**SIZES),
            "image_embeds": model.image_graph(batch=3),
        }
        for name, graph in graphs.items():
            with darner.build_inference_session(graph, share=whole) as tower:
                tower.run({key: given[key] for key in tower.input_names})
                found = tower.output(name)
            parity.assert_close(found, whole.output(name), 1e-5, name)
            np.testing.assert_allclose(np.linalg.norm(found, axis=-1), 1.0, rtol=1e-5)


def test_weights_start_as_wide_as_in_transformers():
    torch.manual_seed(0)
    config = CLIPConfig(
        text_config={**TEXT, "hidden_size": 64, "intermediate_size": 96, "initializer_factor": 0.5},
        vision_config={**VISION, "hidden_size": 96, "intermediate_size": 96},
        projection_dim=48,
    )
    hf_model = CLIPModel(config)
    model = parity.model_of(hf_model)
    with darner.build_inference_session(model.inference_graph(**SIZES)) as session:
        for name, wanted in parity.weights_of(hf_model).items():
            found = session.parameters()[name]
            if wanted.size < 64 or wanted.std() == 0:
                np.testing.assert_allclose(found.mean(), wanted.mean(), atol=1e-6, err_msg=name)
            else:
                assert found.std() == pytest.approx(wanted.std(), rel=0.3), name


def test_early_configurations_say_the_towers_twice():
    """The second holds, and what it leaves out is as usual, whatever the first says."""
    found = {
        "model_type": "clip",
        "text_config": {**TEXT, "eos_token_id": 2},
        "text_config_dict": {"hidden_size": 32, "num_hidden_layers": 3},
        "vision_config_dict": None,
    }
    ours = models.from_config(found).config
    theirs = CLIPConfig(**{name: found[name] for name in found if name != "model_type"})
    for part in ("text_config", "vision_config"):
        written = json.loads(json.dumps(ours.to_hf()[part]))
        wanted = getattr(theirs, part).to_dict()
        names = {name for name in wanted if name in type(getattr(ours, part)).__dataclass_fields__}
        assert {name: written[name] for name in names} == {name: wanted[name] for name in names}
    assert ours.text_config.eos_token_id == 49407
    assert "text_config_dict" not in ours.to_hf()


def test_mistakes_are_named():
    model = clip.CLIP(clip.CLIPConfig())
    with pytest.raises(darner.ShapeError, match="a text has 1 to 77 tokens, not 78"):
        model.inference_graph(length=78)
    with pytest.raises(darner.ArgumentError, match="a batch of 1 has no other pairs"):
        model.training_graph(batch=1)
