"""The same training in PyTorch: warm-up, cosine, clipping, accumulation."""

import math

import numpy as np
import torch

import darner
from darner import optim, train
from tests.train.examples import classifier, listed

STEPS, ACCUMULATE, WARM, DECAY = 20, 3, 4, 20


def test_adamw_with_everything_follows_pytorch_step_by_step():
    batches = listed(11)
    schedule = optim.warmup(WARM) >> optim.cosine(DECAY)
    optimizer = optim.AdamW(0.05, weight_decay=0.1, clip_norm=0.2, schedule=schedule)
    with darner.build_session(
        classifier(dropout=0.0), optimizer=optimizer, threads=1, seed=5
    ) as session:
        start = {name: torch.tensor(value) for name, value in session.parameters().items()}
        made = train.Trainer(session, batches, steps=STEPS, accumulate=ACCUMULATE)
        found = list(made.train().losses)
        ended = dict(session.parameters())
    wanted, weights = torch_losses(batches, start)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4)
    assert wanted[0] - wanted[-1] > 0.3  # it learned
    for name, value in weights.items():
        np.testing.assert_allclose(ended[name], value.detach().numpy(), rtol=0, atol=1e-4)


def torch_losses(batches, start):
    weights = {name: value.clone().requires_grad_() for name, value in start.items()}
    optimizer = torch.optim.AdamW(weights.values(), 0.05, weight_decay=0.1)

    def factor(step):
        if step < WARM:
            return step / WARM
        return 0.5 * (1 + math.cos(math.pi * min(step - WARM, DECAY) / DECAY))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    losses, place = [], 0
    for _ in range(STEPS):
        total = 0.0
        for _ in range(ACCUMULATE):
            batch = batches[place % len(batches)]
            place += 1
            h = torch.tensor(batch["x"]) @ weights["in.weight"] + weights["in.bias"]
            scores = torch.tanh(h) @ weights["out.weight"]
            labels = torch.tensor(batch["labels"], dtype=torch.int64)
            loss = torch.nn.functional.cross_entropy(scores, labels)
            (loss / ACCUMULATE).backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(weights.values(), 0.2)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(total / ACCUMULATE)
    return losses, weights
