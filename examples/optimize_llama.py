"""A Llama of the size of SmolLM2-135M, optimized: what was found, in every layer, and how long it took.

    python examples/optimize_llama.py               30 layers, for inference and for training
    python examples/optimize_llama.py --layers 120  deeper: the same fusions in every layer
    python examples/optimize_llama.py --target cuda what another machine would choose

Only graphs are built; nothing is run.
"""

import argparse
import time

from rich.console import Console
from rich.rule import Rule

import darner
from darner import Graph
from darner.optimizer import TARGETS, derived_parameters

TOKENS, WIDTH, HEADS, KEY_HEADS, INNER, VOCABULARY = 128, 576, 9, 3, 1536, 49152
HEAD = WIDTH // HEADS


def build(layers):
    """The model and its loss over the next tokens, written plainly."""
    g = Graph("llama")
    tokens = g.input("tokens", (TOKENS,), "i32")
    labels = g.input("labels", (TOKENS,), "i32")
    words = g.parameter("words", (VOCABULARY, WIDTH))
    x = g.embedding(tokens, words)
    for i in range(layers):
        with g.scope(f"layer{i}"):
            h = x.rms_norm(g.parameter("norm1", (WIDTH,)))
            q = h @ g.parameter("q", (WIDTH, HEADS * HEAD))
            k = h @ g.parameter("k", (WIDTH, KEY_HEADS * HEAD))
            v = h @ g.parameter("v", (WIDTH, KEY_HEADS * HEAD))
            q, k = g.rope(q, 10000.0, HEAD), g.rope(k, 10000.0, HEAD)
            y = g.causal_attention(q, k, v, HEADS, KEY_HEADS, HEAD)
            x = x + y @ g.parameter("o", (WIDTH, WIDTH))
            h = x.rms_norm(g.parameter("norm2", (WIDTH,)))
            gate = h @ g.parameter("gate", (WIDTH, INNER))
            up = h @ g.parameter("up", (WIDTH, INNER))
            x = x + (gate * gate.sigmoid() * up) @ g.parameter("down", (INNER, WIDTH))
    logits = x.rms_norm(g.parameter("norm", (WIDTH,))) @ words.T
    g.set_outputs([g.cross_entropy_loss(logits, labels)])
    return g


def main():
    parser = argparse.ArgumentParser(description="Optimize a Llama and print what was done.")
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--target", choices=sorted(TARGETS), default="cpu")
    options = parser.parse_args()
    console = Console()
    graph = build(options.layers)
    for name, run in (
        ("inference", darner.optimize_inference),
        ("training", darner.optimize_training),
    ):
        start = time.perf_counter()
        result, report = run(graph, target=options.target)
        seconds = time.perf_counter() - start
        console.print(Rule(f"{name}: {seconds:.2f} s", align="left", style="cyan"))
        console.print(str(report), markup=False, highlight=False, soft_wrap=True)
    console.print(Rule("weights that are now stored side by side", align="left", style="cyan"))
    for item in list(derived_parameters(result).values())[:4]:
        console.print(f"  {item.name}: {item.type}", highlight=False)
    more = len(derived_parameters(result)) - 4
    if more > 0:
        console.print(f"  and {more} more; each is read, trained and saved by its own name")


if __name__ == "__main__":
    main()
