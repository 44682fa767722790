"""Texts beside PyTorch: how fast they are written, and how fast, and how well, a small model of characters learns them.

    python -m bench.text                        # generate: llama-s, prompts of 32 tokens, 64 new ones, batches of 1 and 8
    python -m bench.text --steps 200            # nanoGPT's small character model: milliseconds a step, in turns
    python -m bench.text --full --seed 0        # the same, trained to the end by both; losses on held-out text

``generate`` is darner's ``Generator`` and the ``generate`` of transformers, greedy, with the same weights; the tokens must be the
same before times count. ``prompt_ms`` is the time to the first token and ``token_ms`` that of each one after it.

The character model is nanoGPT's configuration for a CPU: 4 layers of 4 heads, 128 wide, 64 characters, batches of 12, AdamW with
a rate of 1e-3 that warms up for 100 steps and falls to 1e-4 at step 2000. Both sides have the same first weights and batches, and
the losses of the first steps must be the same. nanoGPT's own page has 1.88, the best of estimates by 20 batches each.
``--full`` gives that figure (``best_of_20``) and one by 200 batches after the last step (``final``), which varies less.
One JSON object a line.
"""

import argparse
import json
import math
import multiprocessing
import os
import statistics
import sys
import time
from contextlib import suppress

import numpy as np

import darner
from darner import data, models, optim
from darner.models.gpt2 import GPT2, GPT2Config
from darner.text import Generator

from .peers.turns import ALLOCATOR

ROUNDS = 7
PROMPT, NEW = 32, 64
LLAMA = {
    "vocab_size": 8192,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 4,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
LAYERS, HEADS, WIDTH, LENGTH, BATCH = 4, 4, 128, 64, 12
RATE, LEAST, WARM, LAST, DECAY, CLIP, BETAS = 1e-3, 1e-4, 100, 2000, 0.1, 1.0, (0.9, 0.99)
STEPS = LAST + 1
"""nanoGPT counts from 0 to ``max_iters``, both included."""
EVERY = 250
"""Steps between estimates of the loss."""
SAME = 100
"""For so many steps losses must agree; rounding makes the two differ later."""


def in_turns(turns, rounds=ROUNDS):
    """The median time of each in milliseconds; before it counts, each has the machine for itself for a moment."""
    times = {name: [] for name in turns}
    for _ in range(rounds):
        for name, turn in turns.items():
            turn()
            start = time.perf_counter()
            turn()
            times[name].append((time.perf_counter() - start) * 1e3)
    return {name: statistics.median(found) for name, found in times.items()}


def serve(pipe, make, given):
    """Make something and call its methods, until there is nothing more to call."""
    made = make(*given)
    with suppress(EOFError):
        while True:
            name, arguments = pipe.recv()
            pipe.send(getattr(made, name)(*arguments))


class Apart:
    """Something in a process of its own: in one process the threads of both sides wait for each other's cores."""

    def __init__(self, make, *given):
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        context.Process(target=serve, args=(theirs, make, given), daemon=True).start()
        theirs.close()  # so that its end is noticed, should it fail

    def __getattr__(self, name):
        def call(*arguments):
            self._pipe.send((name, arguments))
            return self._pipe.recv()

        return call


# --------------------------------------------------------------------------- generation


class Peer:
    """transformers, with its own attention."""

    def __init__(self, threads):
        import torch
        import transformers

        self._torch = torch
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
        config = transformers.LlamaConfig(**LLAMA, **special)
        self._model = transformers.LlamaForCausalLM(config).eval()

    def weights(self):
        """By name."""
        return {name: value.numpy() for name, value in self._model.state_dict().items()}

    def write(self, prompts, count):
        """Tokens that follow."""
        given = self._torch.from_numpy(prompts)
        whole = self._torch.ones_like(given)
        with self._torch.inference_mode():
            found = self._model.generate(
                given, attention_mask=whole, max_new_tokens=count, do_sample=False
            )
        return found[:, prompts.shape[1] :].tolist()


def generation(batch, threads):
    """Milliseconds of a prompt and of a token, of both."""
    theirs = Apart(Peer, threads)
    model = models.from_config({"model_type": "llama", **LLAMA, "pad_token_id": 0})
    owner = darner.build_inference_session(
        model.inference_graph(batch=1, length=16), threads=threads
    )
    for name, value in theirs.weights().items():
        owner.set_parameter(name, value)
    generator = Generator(model, owner, options={"threads": threads})
    prompts = np.random.default_rng(0).integers(2, 8192, (batch, PROMPT))

    def ours(count):
        found = generator.generate(prompts.tolist(), max_new_tokens=count)
        return [one.tokens for one in found]

    def peer(count):
        return theirs.write(prompts, count)

    if ours(NEW) != peer(NEW):
        raise SystemExit("the texts differ: no times")
    turns = {
        (name, count): lambda write=write, count=count: write(count)
        for count in (1, NEW)
        for name, write in (("darner", ours), ("transformers", peer))
    }
    times = in_turns(turns)
    found = {
        name: {
            "prompt_ms": round(times[name, 1], 2),
            "token_ms": round((times[name, NEW] - times[name, 1]) / (NEW - 1), 3),
            "tokens_a_second": round(batch * NEW / times[name, NEW] * 1e3, 1),
        }
        for name in ("darner", "transformers")
    }
    generator.close()
    owner.close()
    ratio = times["transformers", NEW] / times["darner", NEW]
    return {"name": "llama-s.generate", "batch": batch, **found, "times_as_fast": round(ratio, 2)}


# --------------------------------------------------------------------------- the character model


class Batches:
    """Pieces of text at random, of the first nine tenths or of the rest."""

    def __init__(self, seed):
        text = data.shakespeare()
        codes = np.unique(np.frombuffer(text.encode("utf-32-le"), np.uint32), return_inverse=True)
        tokens = codes[1].astype(np.int32)
        split = int(0.9 * len(tokens))
        self.vocabulary = len(codes[0])
        self._parts = {"train": tokens[:split], "held_out": tokens[split:]}
        self._draws = np.random.default_rng(seed)

    def draw(self, part="train"):
        """Tokens and those that follow them."""
        tokens = self._parts[part]
        rows = self._draws.integers(0, len(tokens) - LENGTH, BATCH)[:, None] + np.arange(LENGTH)
        return tokens[rows], tokens[rows + 1]


def rate(step):
    """What nanoGPT's schedule gives."""
    if step < WARM:
        return RATE * (step + 1) / (WARM + 1)
    share = min((step - WARM) / (LAST - WARM), 1.0)
    return LEAST + 0.5 * (1.0 + math.cos(math.pi * share)) * (RATE - LEAST)


class Ours:
    """darner's GPT-2."""

    def __init__(self, vocabulary, seed, threads):
        config = GPT2Config(
            vocab_size=vocabulary,
            n_positions=LENGTH,
            n_embd=WIDTH,
            n_layer=LAYERS,
            n_head=HEADS,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            activation_function="gelu",
            bias=False,
        )
        graph = GPT2(config).training_graph(batch=BATCH, length=LENGTH)
        optimizer = optim.AdamW(
            RATE,
            beta1=BETAS[0],
            beta2=BETAS[1],
            weight_decay=DECAY,
            clip_norm=CLIP,
            decay_filter=optim.matrices_only,
            schedule=optim.linear_warmup(WARM, 1 / (WARM + 1))
            >> optim.cosine(LAST - WARM, end=LEAST / RATE),
        )
        self.session = darner.build_session(graph, optimizer=optimizer, seed=seed, threads=threads)
        self._scoring = darner.build_inference_session(graph, share=self.session, threads=threads)

    def steps(self, batches):
        """A step with each; the losses before them."""
        return [self._run(self.session, *batch) for batch in batches]

    def losses(self, batches):
        """The losses alone."""
        return [self._run(self._scoring, *batch) for batch in batches]

    @staticmethod
    def _run(session, tokens, labels):
        return float(session.run({"tokens": tokens, "labels": labels}, copy=False)["loss"][0])


class Theirs:
    """The same in PyTorch, from the same weights: eager, with its fused attention and AdamW."""

    def __init__(self, start, threads):
        import torch

        torch.set_num_threads(threads)
        self._torch = torch
        self._weights = {
            name: torch.tensor(value, requires_grad=True) for name, value in start.items()
        }
        groups = [
            {"params": [w for w in self._weights.values() if w.dim() >= 2], "weight_decay": DECAY},
            {"params": [w for w in self._weights.values() if w.dim() < 2], "weight_decay": 0.0},
        ]
        self._optimizer = torch.optim.AdamW(groups, lr=RATE, betas=BETAS, fused=True)
        self._steps = 0

    def _forward(self, tokens, labels):
        torch, weights = self._torch, self._weights
        functional = torch.nn.functional
        tokens, labels = (torch.from_numpy(x.astype(np.int64)) for x in (tokens, labels))

        def norm(x, name):
            return functional.layer_norm(x, (WIDTH,), weights[f"transformer.{name}.weight"])

        def product(x, name):
            return x @ weights[f"transformer.{name}.weight"]

        table = weights["transformer.wte.weight"]
        x = table[tokens] + weights["transformer.wpe.weight"]
        for layer in range(LAYERS):
            name = f"h.{layer}"
            heads = product(norm(x, f"{name}.ln_1"), f"{name}.attn.c_attn").split(WIDTH, dim=-1)
            q, k, v = (y.unflatten(-1, (HEADS, -1)).transpose(1, 2) for y in heads)
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + product(y.transpose(1, 2).flatten(2), f"{name}.attn.c_proj")
            y = functional.gelu(product(norm(x, f"{name}.ln_2"), f"{name}.mlp.c_fc"))
            x = x + product(y, f"{name}.mlp.c_proj")
        logits = norm(x, "ln_f") @ table.T
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

    def steps(self, batches):
        """A step with each; the losses before them."""
        return [self._step(*batch) for batch in batches]

    def losses(self, batches):
        """The losses alone."""
        with self._torch.no_grad():
            return [self._forward(*batch).item() for batch in batches]

    def _step(self, tokens, labels):
        for group in self._optimizer.param_groups:
            group["lr"] = rate(self._steps)
        loss = self._forward(tokens, labels)
        loss.backward()
        self._torch.nn.utils.clip_grad_norm_(list(self._weights.values()), CLIP)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._steps += 1
        return loss.item()


def pair(batches, seed, threads):
    """Both sides with the same first weights."""
    ours = Ours(batches.vocabulary, seed, threads)
    start = {name: np.array(value) for name, value in ours.session.parameters().items()}
    return {"darner": ours, "torch": Apart(Theirs, start, threads)}


def check_same(losses, steps):
    """Whether losses agree as far as rounding lets them."""
    ours, theirs = (np.array(losses[name][:steps]) for name in ("darner", "torch"))
    apart = float(np.abs(ours - theirs).max())
    if apart > 2e-3:
        raise SystemExit(f"the losses of the first {steps} steps are up to {apart:.2e} apart")
    return apart


def steps(count, seed, threads):
    """Milliseconds a step."""
    batches = Batches(seed)
    sides = pair(batches, seed, threads)
    drawn = [batches.draw() for _ in range(count)]
    losses = {name: side.steps(drawn) for name, side in sides.items()}
    apart = check_same(losses, min(count, SAME))
    turns = {name: lambda side=side: side.steps(drawn) for name, side in sides.items()}
    found = {name: round(value / count, 3) for name, value in in_turns(turns).items()}
    ratio = found["torch"] / found["darner"]
    return {
        "name": "shakespeare.step_ms",
        **found,
        "times_as_fast": round(ratio, 2),
        "losses_apart": apart,
    }


def full(seed, threads):
    """The losses on held-out text, of both."""
    results, losses = {}, {}
    sides = pair(Batches(seed), seed, threads)
    for name, side in sides.items():
        batches, held_out = Batches(seed), Batches(seed + 1000)
        losses[name], estimates, spent = [], [], 0.0
        for step in range(0, STEPS, EVERY):
            found = side.losses([held_out.draw("held_out") for _ in range(20)])
            estimates.append(statistics.mean(found))
            drawn = [batches.draw() for _ in range(min(EVERY, STEPS - step))]
            start = time.perf_counter()
            losses[name] += side.steps(drawn)
            spent += time.perf_counter() - start
        held_out = Batches(seed + 2000)
        final = side.losses([held_out.draw("held_out") for _ in range(200)])
        results[name] = {
            "best_of_20": round(min(estimates), 4),
            "final": round(statistics.mean(final), 4),
            "error": round(statistics.stdev(final) / math.sqrt(len(final)), 4),
            "seconds": round(spent, 1),
        }
    apart = check_same(losses, SAME)
    ends = [statistics.mean(losses[name][-SAME:]) for name in ("darner", "torch")]
    later = {"losses_apart": apart, "last_apart": abs(ends[0] - ends[1])}
    return {"name": "shakespeare.full", "seed": seed, **results, **later}


def main():
    """Run what is asked for."""
    if any(name not in os.environ for name in ALLOCATOR):
        # The allocator reads them when a process starts.
        os.execve(sys.executable, sys.orig_argv, {**ALLOCATOR, **os.environ})
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--batch", type=int, action="append")
    parser.add_argument("--steps", type=int, help="time a step of the character model")
    parser.add_argument("--full", action="store_true", help="train the character model")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.steps:
        print(json.dumps(steps(given.steps, given.seed, given.threads)))
    if given.full:
        print(json.dumps(full(given.seed, given.threads)))
    if not given.steps and not given.full:
        for batch in given.batch or (1, 8):
            print(json.dumps(generation(batch, given.threads)), flush=True)


if __name__ == "__main__":
    main()
