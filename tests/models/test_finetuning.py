"""Fine-tuning tracks PyTorch step by step: AdamW, warm-up, cosine, clipping and accumulation; whole models and low-rank changes."""

import math

import numpy as np
import pytest
import torch
import transformers

import darner
from darner import models, nn, optim

from . import parity

STEPS, PARTS, WARMUP, RATE = 20, 3, 5, 3e-3
SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 44,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
}
LORA = nn.LoRA(rank=4, alpha=8.0, targets=("*q_proj", "*v_proj", "*down_proj"))


class LowRank(torch.nn.Module):
    """A frozen matrix with a low-rank change, as LoRA's paper has it."""

    def __init__(self, linear, down, up):
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.down = torch.nn.Parameter(torch.tensor(down))
        self.up = torch.nn.Parameter(torch.tensor(up))

    def forward(self, x):
        scale = LORA.alpha / LORA.rank
        return self.linear(x) + scale * (x @ self.down.T) @ self.up.T


def factor(step):
    """What the rate is multiplied by: a warm-up, then half a cosine down to a tenth."""
    if step < WARMUP:
        return step / WARMUP
    share = min((step - WARMUP) / (STEPS - WARMUP), 1.0)
    return 0.1 + 0.9 * 0.5 * (1.0 + math.cos(math.pi * share))


def batches():
    rng = np.random.default_rng(7)
    for _ in range(STEPS * PARTS):
        tokens = (rng.integers(0, 61, (2, 1)) + np.arange(13)) % 61  # something to learn
        labels = tokens[:, 1:].copy()
        labels[rng.random(labels.shape) < 0.2] = -100
        yield {"tokens": tokens[:, :-1], "labels": labels}


def torch_losses(theirs, clip):
    trained = [weight for weight in theirs.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=RATE, weight_decay=0.1, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    losses = []
    for count, batch in enumerate(batches(), 1):
        loss = parity.cross_entropy(theirs, parity.tensors(batch, "f32"))
        (loss / PARTS).backward()
        losses.append(loss.item())
        if count % PARTS == 0:
            torch.nn.utils.clip_grad_norm_(trained, clip)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    return losses


def darner_losses(session):
    losses = []
    for batch in batches():
        session.run(parity.arrays(batch, "f32"))
        losses.append(session.read_loss())
    return losses


def adamw(clip, **options):
    return optim.AdamW(
        RATE,
        beta1=0.9,
        beta2=0.95,
        weight_decay=0.1,
        clip_norm=clip,
        accumulate=PARTS,
        schedule=optim.linear_warmup(WARMUP) >> optim.cosine(STEPS - WARMUP, end=0.1),
        **options,
    )


def peer():
    config = transformers.LlamaConfig(**SIZES)
    return parity.build(transformers.LlamaForCausalLM, config)


@pytest.mark.parametrize("clip", [0.5, 100.0])
def test_a_whole_model_learns_as_with_pytorch(clip):
    theirs = peer()
    model = parity.model_of(theirs)
    session = darner.build_session(model.training_graph(batch=2, length=12), optimizer=adamw(clip))
    parity.copy_weights(session, parity.weights_of(theirs), model)
    found, wanted = darner_losses(session), torch_losses(theirs, clip)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4)
    assert np.mean(wanted[-6:]) < np.mean(wanted[:6]) - 0.05, "it learned something"


def test_a_low_rank_change_learns_as_with_pytorch_and_the_rest_stays():
    theirs = peer()
    model = models.from_config(parity.model_of(theirs).config.to_hf(), linear=LORA.linear)
    graph = model.training_graph(batch=2, length=12)
    session = darner.build_session(graph, optimizer=adamw(0.5, multipliers=LORA.frozen(graph)))
    weights = parity.weights_of(theirs)
    rng = np.random.default_rng(8)
    for name, value in session.parameters().items():
        if ".lora_" in name:  # B as well starts away from 0, so that A learns at once
            weights[name] = (0.1 * rng.standard_normal(value.shape)).astype(np.float32)
    parity.copy_weights(session, weights, model)
    theirs.requires_grad_(False)
    changed = 0
    for name, linear in list(theirs.named_modules()):
        if f"{name}.lora_A.weight" in weights:
            down, up = weights[f"{name}.lora_A.weight"], weights[f"{name}.lora_B.weight"]
            theirs.set_submodule(name, LowRank(linear, down, up))
            changed += 1
    assert changed == 6
    before = {name: value.copy() for name, value in session.parameters().items()}
    found, wanted = darner_losses(session), torch_losses(theirs, 0.5)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4)
    for name, value in session.parameters().items():
        assert np.array_equal(value, before[name]) != (".lora_" in name), name
