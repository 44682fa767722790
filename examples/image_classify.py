"""What a picture shows, by a ResNet.

    python examples/image_classify.py                             a small model is made, which tells shapes apart
    python examples/image_classify.py --model FOLDER cat.ppm ...  a ResNet as HuggingFace saves it, and one's own pictures

Pictures are .ppm files (`convert cat.jpg cat.ppm` makes one), or .npy files of (height, width, 3) bytes.
`pip install 'darner[hub]'` and `--model microsoft/resnet-50` download a model of a thousand classes.
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np

import darner
from darner import data, load, models, optim, train

SHAPES = ["disc", "square", "ring", "stripes"]
SHADES = " .:-=+*#%@"
MEAN, DEVIATION = [0.5] * 3, [0.25] * 3


def drawn(shape, rng, side=32):
    """A picture of a shape, somewhere, in two colours that differ, with noise: (side, side, 3) bytes."""
    y, x = np.mgrid[:side, :side] - rng.uniform(0.35, 0.65, (2, 1, 1)) * side
    size = rng.uniform(0.2, 0.35) * side
    far = np.hypot(x, y)
    inside = {
        "disc": far < size,
        "square": np.maximum(abs(x), abs(y)) < size,
        "ring": abs(far - size) < 0.08 * side,
        "stripes": np.sin((x + rng.uniform(-1, 1) * y) * 8 / size) > 0,
    }[shape]
    colours = rng.permutation(2)[:, None] * 120 + rng.uniform(0, 120, (2, 3))
    picture = np.where(inside[..., None], *colours) + rng.normal(0, 10, (side, side, 3))
    return picture.clip(0, 255).astype(np.uint8)


def read(path):
    """A picture from a .npy or a binary .ppm file."""
    if path.suffix == ".npy":
        picture = np.load(path)
    else:
        content, fields, at = path.read_bytes(), [], 0
        while len(fields) < 4:  # P6, width, height, largest value; lines of comments between them
            line, at = content[at : content.index(b"\n", at)], content.index(b"\n", at) + 1
            fields += line.partition(b"#")[0].split()
        if fields[0] != b"P6" or fields[3] != b"255":
            raise SystemExit(f"{path} is no .ppm file of the form P6 with bytes")
        picture = np.frombuffer(content, np.uint8, offset=at)
        picture = picture.reshape(int(fields[2]), int(fields[1]), 3)
    if picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype != np.uint8:
        raise SystemExit(
            f"{path} holds {picture.dtype}{list(picture.shape)}, not (height, width, 3) bytes"
        )
    return picture


def shown(picture, width=32):
    """A picture in characters, which are about twice as high as wide."""
    height = max(1, round(picture.shape[0] / picture.shape[1] * width / 2))
    rows = np.arange(height) * picture.shape[0] // height
    columns = np.arange(width) * picture.shape[1] // width
    grey = picture[rows][:, columns].mean(2)
    return "\n".join("".join(SHADES[int(value) * 10 // 256] for value in row) for row in grey)


def pixels(picture, size, mean, deviation):
    """The picture as the model wants it: its middle square at the model's size, channels first, normalised."""
    side = min(picture.shape[:2])
    top, left = ((length - side) // 2 for length in picture.shape[:2])
    square = picture[top : top + side, left : left + side].astype(np.float32) / 255
    g = darner.Graph("resize")
    g.set_outputs([g.input("x", (1, 3, side, side)).resize_bilinear((size, size))])
    (resized,) = darner.run(g, {"x": square.transpose(2, 0, 1)[None]})
    return (resized[0] - np.reshape(mean, (3, 1, 1))) / np.reshape(deviation, (3, 1, 1))


def make_model(folder, steps):
    """A small ResNet that has learned shapes, saved as HuggingFace does."""
    names = {str(i): name for i, name in enumerate(SHAPES)}
    config = {"model_type": "resnet", "embedding_size": 16, "hidden_sizes": [16, 32]}
    config |= {"depths": [1, 1], "layer_type": "basic", "id2label": names}
    model = models.from_config(config)
    rng = np.random.default_rng(0)
    labels = rng.integers(0, len(SHAPES), 3000).astype(np.int32)
    pictures = np.stack([pixels(drawn(SHAPES[i], rng), 32, MEAN, DEVIATION) for i in labels])
    source = data.Arrays({"pixels": pictures.astype(np.float32), "labels": labels}, batch=32)
    graph = model.training_graph(batch=32, image_size=32)
    with train.Trainer(graph, source, optimizer=optim.AdamW(3e-3), steps=steps) as trainer:
        print(f"loss {trainer.train().losses[-1]:.3f} after {steps} steps")
        session = trainer.session
        # The running statistics of its norms are states, and belong to the folder as parameters do.
        statistics = {name: value for name, value in session.state().items() if "running_" in name}
        load.save(folder, model.config.to_hf(), {**session.parameters(), **statistics})
    settings = {"size": {"shortest_edge": 32}, "image_mean": MEAN, "image_std": DEVIATION}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))


def main():
    parser = argparse.ArgumentParser(description="Say what pictures show.")
    parser.add_argument("pictures", nargs="*", type=Path, help=".ppm or .npy; drawn here if none")
    parser.add_argument("--model", metavar="FOLDER", help="of a ResNet, or its name on the hub")
    parser.add_argument("--steps", type=int, default=150, help="of training the model made here")
    parser.add_argument("--best", type=int, default=3, help="how many classes to show")
    options = parser.parse_args()
    rng = np.random.default_rng(1)
    pictures = {str(path): read(path) for path in options.pictures}
    pictures = pictures or {f"drawn here: {shape}": drawn(shape, rng) for shape in SHAPES}

    with tempfile.TemporaryDirectory() as scratch:
        if options.model is None:
            print("no --model: making a small one that tells shapes apart")
            make_model(Path(scratch), options.steps)
        found = load.pretrained(options.model or scratch)
        settings = json.loads((found.folder / "preprocessor_config.json").read_text())
        size = settings["size"].get("shortest_edge") or settings["size"]["height"]
        look = settings["image_mean"], settings["image_std"]
        batch = np.stack([pixels(picture, size, *look) for picture in pictures.values()])
        with found.inference_session(batch=len(batch), image_size=size) as session:
            logits = session.run({"pixels": batch.astype(np.float32)})["logits"]
    shares = np.exp(logits - logits.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    names = found.config["id2label"]
    for (name, picture), row in zip(pictures.items(), shares, strict=True):
        print(f"\n{name}\n{shown(picture)}")
        for i in np.argsort(-row)[: options.best]:
            print(f"  {100 * row[i]:5.1f} %  {names[str(i)]}")


if __name__ == "__main__":
    main()
