"""A two-layer network for MNIST digits, trained until about 98 % of the test images are right.

    python examples/mnist.py                    on MNIST where it is found, else on digits drawn here
    python examples/mnist.py --data FOLDER      on the four MNIST files in FOLDER (or in $DARNER_DATA)
    python examples/mnist.py --synthetic        on digits drawn here

A step is one call into native code: forward, backward and Adam. The images of the test are classified by an inference
session that shares the parameters of the one that trains.
"""

import argparse
import os
import sys
import time
from itertools import pairwise

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.rule import Rule
from rich.table import Table

import darner

SIDE, HIDDEN, DIGITS = 28, 128, 10
PIXELS = SIDE * SIDE
TEST_BATCH = 500


# ------------------------------------------------------------- the network


def build(batch, training=True):
    """The network: with its loss to train it, with its scores to use it."""
    g = darner.Graph("mnist")
    x = g.input("x", [batch, PIXELS])
    w1 = g.parameter("w1", [PIXELS, HIDDEN])
    b1 = g.parameter("b1", [HIDDEN])
    w2 = g.parameter("w2", [HIDDEN, DIGITS])
    b2 = g.parameter("b2", [DIGITS])
    hidden = g.relu(g.bias_add(g.matmul(x, w1), b1))
    logits = g.bias_add(g.matmul(hidden, w2), b2, label="logits")
    if training:
        labels = g.input("labels", [batch, DIGITS])
        loss = g.cross_entropy_loss(logits, labels, label="loss")
        g.set_outputs([loss])
    else:
        g.set_outputs([logits])
    return g


def build_sessions(options):
    """One session that trains, and one with the same parameters that classifies."""
    chosen = {"threads": options.threads, "progress": False}  # there is a line of our own
    session = darner.build_session(build(options.batch), **chosen)
    rng = np.random.default_rng(options.seed)
    for name, fan_in in (("w1", PIXELS), ("w2", HIDDEN)):
        shape = session.parameters()[name].shape
        session.set_parameter(name, rng.normal(0.0, (2.0 / fan_in) ** 0.5, shape))
    if options.optimizer == "sgd":
        session.set_learning_rate(options.rate or 0.1)
    else:
        session.set_adam(options.rate or 1e-3, 0.9, 0.999, 1e-8)

    scores = build(TEST_BATCH, training=False)
    classifier = darner.build_inference_session(scores, share=session, **chosen)
    return session, classifier


def train_epoch(session, images, digits, batch, rng, report):
    """Show the session every image once, in random order; returns the loss of each step."""
    one_hot = np.eye(DIGITS, dtype=np.float32)
    order = rng.permutation(len(images))[: len(images) // batch * batch]
    losses = []
    for chosen in order.reshape(-1, batch):
        session.set_input("x", images[chosen])
        session.set_input("labels", one_hot[digits[chosen]])
        session.step()
        session.wait()
        losses.append(session.read_loss())
        report(losses)
    return losses


def accuracy(classifier, images, digits):
    """The share of images that are classified right."""
    right = 0
    for start in range(0, len(images), TEST_BATCH):
        part = images[start : start + TEST_BATCH]
        filled = np.zeros((TEST_BATCH, PIXELS), np.float32)
        filled[: len(part)] = part
        scores = classifier.run({"x": filled})["logits"][: len(part)]
        right += int((scores.argmax(axis=1) == digits[start : start + TEST_BATCH]).sum())
    return right / len(images)


# ------------------------------------------------------------- the digits


def load_mnist(folder):
    """Training and test set, each as images between 0 and 1 and digits."""
    sets = darner.data.mnist(folder, dtype="f32")
    return [(images.reshape(-1, PIXELS), digits) for images, digits in sets]


def found_data(options):
    """Training set, test set, and what they are."""
    if not options.synthetic:
        given = options.data or os.environ.get("DARNER_DATA")
        try:
            folder = darner.data.mnist_folder(given)
        except FileNotFoundError:
            where = given or "the usual places (--data FOLDER names another)"
            note = f"MNIST was not found in {where}: training on digits drawn here instead"
        else:
            return *load_mnist(folder), f"MNIST from {folder}"
    else:
        note = "digits drawn here"
    count = options.drawn
    return drawn_digits(count, seed=1), drawn_digits(max(count // 5, 1), seed=2), note


STROKES = {
    0: ["6,1 3,2 2,5 2,9 3,12 6,13 9,12 10,9 10,5 9,2 6,1"],
    1: ["3,4 6,1 6,13"],
    2: ["2,4 3,2 6,1 9,2 10,4 9,7 2,13 10,13"],
    3: ["2,2 6,1 9,2 10,4 9,6 6,7 9,8 10,10 9,12 6,13 2,12"],
    4: ["8,13 8,1 2,9 11,9"],
    5: ["10,1 3,1 3,6 6,5 9,6 10,9 9,12 6,13 2,12"],
    6: ["9,1 5,3 3,6 2,9 3,12 6,13 9,12 10,10 9,8 6,7 3,8 2,10"],
    7: ["2,1 10,1 5,13", "4,7 9,7"],
    8: ["6,7 3,6 2,4 3,2 6,1 9,2 10,4 9,6 6,7 3,8 2,10 3,12 6,13 9,12 10,10 9,8 6,7"],
    9: ["10,5 9,7 6,8 3,7 2,5 3,2 6,1 9,2 10,5 9,9 7,13"],
}
"""Each digit as lines through points, on a grid of 12 by 14."""

MASTER = 64


def master(digit, width):
    """A large picture of a digit, drawn with a pen of some width, in the middle of an empty field."""
    y, x = np.mgrid[:MASTER, :MASTER] + 0.5
    distance = np.full((MASTER, MASTER), np.inf)
    for line in STROKES[digit]:
        points = [tuple(map(float, point.split(","))) for point in line.split()]
        placed = [(MASTER / 2 + 3.2 * (px - 6), MASTER / 2 + 3.2 * (py - 7)) for px, py in points]
        for (ax, ay), (bx, by) in pairwise(placed):
            dx, dy = bx - ax, by - ay
            along = np.clip(((x - ax) * dx + (y - ay) * dy) / (dx * dx + dy * dy), 0, 1)
            distance = np.minimum(distance, np.hypot(x - ax - along * dx, y - ay - along * dy))
    return np.clip(1.0 - (distance - width) / 2.0, 0.0, 1.0).astype(np.float32)


def drawn_digits(count, seed):
    """Digits in many hands: turned, slanted, stretched, moved, thick and thin, with noise. Equal for equal seeds."""
    rng = np.random.default_rng(seed)
    widths = np.linspace(1.5, 4.5, 4)
    masters = np.stack([[master(digit, width) for width in widths] for digit in range(DIGITS)])
    digits = rng.integers(0, DIGITS, count).astype(np.uint8)
    styles = rng.integers(0, len(widths), count)
    angle = rng.normal(0.0, 0.2, (count, 1))
    slant = rng.normal(0.0, 0.25, (count, 1))
    scale = MASTER / SIDE / rng.uniform(0.75, 1.15, (2, count, 1))
    shift = rng.uniform(-2.5, 2.5, (2, count, 1))
    images = np.empty((count, PIXELS), np.float32)
    y, x = (axis.reshape(1, -1) - (SIDE - 1) / 2 for axis in np.mgrid[:SIDE, :SIDE])
    for start in range(0, count, 1000):  # a thousand at a time fit the cache
        part = slice(start, start + 1000)
        px, py = x - shift[0, part], y - shift[1, part]
        cos, sin = np.cos(angle[part]), np.sin(angle[part])
        px, py = cos * px - sin * py, sin * px + cos * py
        # A slow wave across the picture bends straight lines, as a hand does.
        px = px + slant[part] * py + 0.8 * np.sin(py / 5 + 20 * slant[part])
        column = np.clip(px * scale[0, part] + MASTER / 2, 0, MASTER - 2)
        row = np.clip(py * scale[1, part] + MASTER / 2, 0, MASTER - 2)
        i, j = row.astype(np.intp), column.astype(np.intp)
        down, right = row - i, column - j
        pictures = masters[digits[part], styles[part]].reshape(-1, MASTER * MASTER)

        def at(place, pictures=pictures):
            return np.take_along_axis(pictures, place, axis=1)

        place = i * MASTER + j
        upper = at(place) * (1 - right) + at(place + 1) * right
        lower = at(place + MASTER) * (1 - right) + at(place + MASTER + 1) * right
        images[part] = upper * (1 - down) + lower * down
    images += rng.normal(0.0, 0.1, images.shape).astype(np.float32)
    return np.clip(images, 0.0, 1.0, out=images), digits


# ------------------------------------------------------------- what is shown


def picture(image, unicode):
    """An image in characters, two pixels to each."""
    shades = " ░▒▓█" if unicode else " .:*#"
    rows = image.reshape(SIDE // 2, 2, SIDE).mean(axis=1)
    return ["".join(shades[int(4.999 * value)] for value in row) for row in rows]


def show_images(console, images, digits, unicode):
    """As many images as fit in a row, above their digits."""
    count = max(1, min(6, (console.width - 2) // (SIDE + 1)))
    columns = [picture(image, unicode) for image in images[:count]]
    for line in zip(*columns, strict=True):
        console.print(" ".join(line), markup=False, highlight=False, style="cyan")
    console.print(" ".join(str(digit).center(SIDE) for digit in digits[:count]), highlight=False)


def plot(values, width, height, unicode):
    """A curve in text: the mean of each slice of the values, on a logarithmic scale."""
    columns = 2 * width if unicode else width
    rows = 4 * height if unicode else height
    slices = np.array_split(np.log(np.maximum(values, 1e-4)), min(columns, len(values)))
    means = np.array([part.mean() for part in slices])
    low, high = means.min(), max(means.max(), means.min() + 1e-6)
    levels = np.rint((high - means) / (high - low) * (rows - 1)).astype(int)
    cells = np.zeros((height, width), int)
    for column, level in enumerate(levels):
        before = levels[column - 1] if column else level
        for dot in range(min(level, before + 1), max(level, before - 1) + 1):
            if unicode:  # a character of Braille has 2 by 4 dots
                bit = [[0, 3], [1, 4], [2, 5], [6, 7]][dot % 4][column % 2]
                cells[dot // 4, column // 2] |= 1 << bit
            else:
                cells[dot, column] = 1
    lines = []
    for row in range(height):
        value = np.exp(high - (high - low) * row / max(height - 1, 1))
        marks = [(chr(0x2800 + cell) if unicode else "*") if cell else " " for cell in cells[row]]
        shown = "".join(marks).rstrip()
        lines.append(f"{value:8.4f} {'┤' if unicode else '|'}{shown}")
    lines.append(" " * 9 + ("└" + "─" * width if unicode else "+" + "-" * width))
    lines.append(f"{'step':>8}  0{len(values):>{width - 1},}")
    return lines


def show_report(console, session, unicode):
    """What the session is made of."""
    plan = session.plan()
    kinds = [kernel.kind for kernel in map(plan.spec, plan.kernels)]
    counted = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    phases = ", ".join(f"{name} {spent:.2f} s" for name, spent in session.build_seconds.items())
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="cyan")
    table.add_column()
    table.add_row("session", repr(session))
    table.add_row("built in", phases)
    table.add_row("a step", f"{len(kinds)} kernels: {counted}")
    table.add_row("memory", str(session.memory_summary()))
    console.print(table, highlight=False, soft_wrap=True)
    console.print()
    report = str(session.report) if unicode else str(session.report).replace("→", "->")
    console.print(report, markup=False, highlight=False, soft_wrap=True)


def show_training(console, session, classifier, sets, options):
    """Train, with a line that moves and a row for each epoch; returns all losses and the last accuracy."""
    (images, digits), (test_images, test_digits) = sets
    rng = np.random.default_rng(options.seed)
    steps = len(images) // options.batch
    losses, share = [], accuracy(classifier, test_images, test_digits)
    console.print("epoch     loss   accuracy      time   samples/s", style="bold", highlight=False)
    console.print(f"    0             {100 * share:7.2f} %   before training", highlight=False)
    line = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[shown]}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with line:
        task = line.add_task("    1", total=steps, shown="compiling")
        for epoch in range(1, options.epochs + 1):
            line.reset(
                task, total=steps, description=f"{epoch:5}", shown="compiling" * (epoch == 1)
            )
            start, built = time.perf_counter(), sum(session.build_seconds.values())

            def report(done, start=start):
                if len(done) % 50 == 0:
                    speed = len(done) * options.batch / (time.perf_counter() - start)
                    shown = f"loss {np.mean(done[-50:]):.4f}  {speed:,.0f} samples/s"
                    line.update(task, completed=len(done), shown=shown)

            found = train_epoch(session, images, digits, options.batch, rng, report)
            # The first step compiles, which is told apart.
            compiled = sum(session.build_seconds.values()) - built
            spent = time.perf_counter() - start - compiled
            share = accuracy(classifier, test_images, test_digits)
            losses += found
            note = f"   after {compiled:.1f} s to compile" if compiled > 0.05 else ""
            console.print(
                f"{epoch:5} {np.mean(found):8.4f}  {100 * share:7.2f} %  {spent:6.2f} s"
                f"  {len(found) * options.batch / spent:10,.0f}{note}",
                highlight=False,
            )
    return losses, share


def main():
    parser = argparse.ArgumentParser(description="Train a network to read digits.")
    parser.add_argument("--data", metavar="FOLDER", help="of the four MNIST files")
    parser.add_argument("--synthetic", action="store_true", help="do not look for MNIST")
    parser.add_argument("--drawn", type=int, default=20_000, help="how many digits to draw")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1, help="1 by default: steps are short")
    parser.add_argument("--optimizer", choices=["adam", "sgd"], default="adam")
    parser.add_argument("--rate", type=float, help="the learning rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", metavar="FILE", help="a checkpoint to write at the end")
    options = parser.parse_args()
    console = Console()
    unicode = (console.encoding or "").lower().startswith("utf")

    def title(text):
        console.print()
        console.print(Rule(text, align="left", style="cyan"))
        console.print()

    try:
        training, test, note = found_data(options)
    except (darner.FormatError, OSError) as error:
        console.print(f"cannot read MNIST: {error}", style="red", soft_wrap=True)
        return 1
    console.print(f"darner {darner.__version__}", style="bold", highlight=False)
    console.print(note, highlight=False, soft_wrap=True)
    counts = f"{len(training[0]):,} images to learn from, {len(test[0]):,} to be tested on"
    console.print(counts, highlight=False)
    console.print()
    show_images(console, test[0], test[1], unicode)

    session, classifier = build_sessions(options)
    with session, classifier:
        title(f"training: batches of {options.batch}, {type(session.optimizer).__name__}")
        start = time.perf_counter()
        losses, share = show_training(console, session, classifier, (training, test), options)
        spent = time.perf_counter() - start
        title("the loss of each step")
        for line in plot(np.array(losses), min(72, console.width - 12), 10, unicode):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        title("the session")
        show_report(console, session, unicode)
        if options.save:
            session.save_checkpoint(options.save)
    title("the end")
    console.print(
        f"{100 * share:.2f} % of the test images are right, after {spent:.1f} s of training and testing",
        style="bold green" if share >= 0.97 else "bold",
        highlight=False,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
