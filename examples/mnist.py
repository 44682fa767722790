"""A small convolutional network that learns to read handwritten digits: over 98 % of the test images, in under a minute.

python examples/mnist.py                    on MNIST where it is found, else on digits drawn here
python examples/mnist.py --data FOLDER      on the four MNIST files in FOLDER (or in $DARNER_DATA)
python examples/mnist.py --synthetic        on digits drawn here
"""

import argparse
import os

import darner
from darner import data, nn, optim, train

TEST_BATCH = 500


def build(batch):
    """The network, its loss and its scores. A session leaves dropout out where it does not train."""
    g = darner.Graph("mnist")
    x = g.input("x", (batch, 1, 28, 28))
    labels = g.input("labels", (batch,), "i32")
    x = nn.MaxPool2d(2)(nn.Conv2d("conv1", 1, 16, 3, padding=1)(x).relu())
    x = nn.MaxPool2d(2)(nn.Conv2d("conv2", 16, 32, 3, padding=1)(x).relu())
    x = nn.Linear("fc1", 32 * 7 * 7, 64)(x.reshape((batch, -1))).relu()
    logits = nn.Linear("fc2", 64, 10)(nn.Dropout(0.2)(x))
    g.relabel(logits, "logits")
    g.set_outputs([g.cross_entropy_loss(logits, labels, label="loss"), logits])
    return g


def found_digits(options):
    """Digits to learn from, digits to be tested on, and a word on where they are from."""
    if not options.synthetic:
        try:
            folder = data.mnist_folder(options.data)
            return *data.mnist(folder, dtype="f32"), f"MNIST from {folder}"
        except FileNotFoundError as error:
            if options.data:
                raise SystemExit(error) from None
            print("MNIST was not found (--data FOLDER says where it is): drawing digits instead")
    drawn = data.drawn_digits(options.drawn, seed=1), data.drawn_digits(TEST_BATCH * 4, seed=2)
    return *drawn, "digits drawn here"


def main():
    parser = argparse.ArgumentParser(description="Train a network to read digits.")
    parser.add_argument("--data", metavar="FOLDER", default=os.environ.get("DARNER_DATA"))
    parser.add_argument("--synthetic", action="store_true", help="do not look for MNIST")
    parser.add_argument("--drawn", type=int, default=20_000, help="how many digits to draw")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    learned, tested, origin = found_digits(options)
    print(
        f"{origin}: {len(learned.images):,} to learn from, {len(tested.images):,} to be tested on"
    )

    def batches(digits, size, **order):
        return data.Arrays({"x": digits.images[:, None], "labels": digits.labels}, size, **order)

    source = batches(learned, options.batch)
    steps = len(source) * options.epochs
    with train.Trainer(
        build(options.batch),
        source,
        optimizer=optim.Adam(3e-3, schedule=optim.cosine(steps)),
        epochs=options.epochs,
        validation=batches(tested, TEST_BATCH, shuffle=False),
        validation_graph=build(TEST_BATCH),
        metrics=["accuracy"],
        log_interval=100,
        progress=True,
        threads=options.threads,
    ) as trainer:
        history = trainer.train()
        right = history.validations[-1].values["accuracy"]
        print(f"{100 * right:.2f} % of the test images are right, after {history.steps:,} steps")


if __name__ == "__main__":
    main()
