"""A two-layer network for MNIST digits: described as a graph, printed, run once, and optimized for training.

    python examples/mnist_graph.py                    on made-up images
    python examples/mnist_graph.py --data FOLDER      on the MNIST files in FOLDER (or in $DARNER_DATA)

The graph runs on the reference backend: plain NumPy, one node after another. The weights are random, so the
loss of about ln(10) = 2.30 is what guessing among ten digits gives.
"""

import argparse
import inspect
import os
import sys
import time

import numpy as np
from rich import box
from rich.console import Console
from rich.rule import Rule
from rich.syntax import Syntax
from rich.table import Table

import darner

PIXELS, HIDDEN, DIGITS = 784, 128, 10


def build(batch):
    """The network and its loss, as a graph."""
    g = darner.Graph("mnist")
    x = g.input("x", (batch, PIXELS))
    labels = g.input("labels", (batch, DIGITS))
    w1 = g.parameter("fc1.weight", (PIXELS, HIDDEN))
    b1 = g.parameter("fc1.bias", (HIDDEN,))
    w2 = g.parameter("fc2.weight", (HIDDEN, DIGITS))
    b2 = g.parameter("fc2.bias", (DIGITS,))
    hidden = (x @ w1 + b1).relu(label="hidden")
    logits = g.add(hidden @ w2, b2, label="logits")
    loss = g.cross_entropy_loss(logits, labels, label="loss")
    g.set_outputs([loss, logits])
    return g


def initial_parameters(graph, rng):
    """Random weights of the usual size, and biases of 0."""
    values = {}
    for name, leaf in graph.parameters.items():
        if leaf.rank == 1:
            values[name] = np.zeros(leaf.shape, np.float32)
        else:
            values[name] = rng.normal(0, leaf.shape[0] ** -0.5, leaf.shape).astype(np.float32)
    return values


def load_batch(folder, batch, rng):
    """Images between 0 and 1, digits, and a word on where they are from."""
    if folder is None:
        images = rng.random((batch, PIXELS), np.float32)
        return images, rng.integers(0, DIGITS, batch), "random images (seed 0)"
    _, (images, digits) = darner.data.mnist(folder, dtype="f32")
    chosen = rng.permutation(len(digits))[:batch]
    return images[chosen].reshape(-1, PIXELS), digits[chosen], "MNIST test images"


def show_parameters(console, graph):
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("parameter")
    table.add_column("shape")
    table.add_column("type")
    table.add_column("values", justify="right")
    for name, leaf in graph.parameters.items():
        table.add_row(name, str(leaf.shape), str(leaf.dtype), f"{leaf.size:,}")
    total = sum(leaf.size for leaf in graph.parameters.values())
    table.add_section()
    table.add_row("total", "", "", f"{total:,}")
    console.print(table)


def show_mistake(console, graph):
    """What darner says when shapes do not fit: the op, the operands, the rule, the line."""
    logits = graph.outputs[1]
    try:
        graph.matmul(logits, graph.parameters["fc1.weight"], label="oops")
    except darner.ShapeError as error:
        console.print(f"ShapeError: {error}", style="red", highlight=False, soft_wrap=True)


def main():
    parser = argparse.ArgumentParser(description="Build, print and run a network for MNIST digits.")
    parser.add_argument("--data", metavar="FOLDER", default=os.environ.get("DARNER_DATA"))
    parser.add_argument("--batch", type=int, default=32)
    options = parser.parse_args()
    console = Console()
    rng = np.random.default_rng(0)

    def title(text):
        console.print()
        console.print(Rule(text, align="left", style="cyan"))
        console.print()

    try:
        images, digits, origin = load_batch(options.data, options.batch, rng)
    except (darner.FormatError, OSError) as error:
        console.print(f"cannot read MNIST: {error}", style="red", soft_wrap=True)
        return 1

    console.print(f"darner {darner.__version__}", style="bold")
    start = time.perf_counter()
    graph = build(options.batch).verify()
    built = time.perf_counter() - start

    title("what was written")
    source = Syntax("", "python", theme="ansi_dark").highlight(inspect.getsource(build))
    source.rstrip()
    console.print(source, soft_wrap=True)

    title("the graph, as text (Graph.from_text reads it back)")
    console.print(str(graph), markup=False, highlight=False, soft_wrap=True)

    title("the same graph, inspected: with labels, and the line that made each node")
    console.print(graph.inspect(), markup=False, highlight=False, soft_wrap=True)

    title("its parameters")
    show_parameters(console, graph)

    parameters = initial_parameters(graph, rng)
    one_hot = np.eye(DIGITS, dtype=np.float32)[digits]
    start = time.perf_counter()
    loss, logits = darner.run(graph, {"x": images, "labels": one_hot}, parameters)
    ran = time.perf_counter() - start
    correct = int((logits.argmax(axis=1) == digits).sum())

    title("one run on the reference backend (NumPy; the oracle, not the fast path)")
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="cyan")
    table.add_column()
    table.add_row("data", f"{options.batch} {origin}")
    table.add_row("loss", f"{loss.item():.4f}  (guessing gives {np.log(DIGITS):.4f})")
    table.add_row("correct", f"{correct} of {options.batch}  (the weights are random)")
    table.add_row("logits", f"{logits.dtype} {logits.shape}")
    table.add_row("time", f"{1e3 * built:.1f} ms to build and verify, {1e3 * ran:.1f} ms to run")
    console.print(table)

    loss_alone = graph.copy()
    loss_alone.set_outputs(loss_alone.outputs[:1])
    trained, report = darner.optimize_training(loss_alone)
    title("what a step of training computes, optimized before and after differentiation")
    console.print(str(trained), markup=False, highlight=False, soft_wrap=True)
    console.print()
    console.print(str(report), markup=False, highlight=False, soft_wrap=True)

    title("and a mistake, caught while building")
    show_mistake(console, graph)
    return 0


if __name__ == "__main__":
    sys.exit(main())
