"""A little of everything in one program: ``make smoke PYTHON=python3.14 VENV=.venv-3.14`` runs it on another Python.

It needs what darner runs on and no more, compares with NumPy, and takes some ten seconds. ``python -W error`` makes an error of every
warning, those of the compiler of Python included.
"""

import compileall
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

import darner
from darner import data, load, models, nn, optim, text, train


def every_module_compiles():
    """Anew, so that warnings show."""
    folder = Path(darner.__file__).parent
    with tempfile.TemporaryDirectory() as bytecode:
        before, sys.pycache_prefix = sys.pycache_prefix, bytecode
        compiled = compileall.compile_dir(folder, quiet=1, force=True)
        sys.pycache_prefix = before
    assert compiled


def a_graph_is_written_differentiated_and_read_back():
    g = darner.Graph("smoke")
    x = g.input("x", (4, 3))
    w = g.parameter("w", (3, 5))
    loss = (x @ w).tanh().sum()
    g.set_outputs([loss])
    assert str(darner.Graph.from_json(g.to_json())) == str(g)
    rng = np.random.default_rng(0)
    xs, ws = rng.normal(size=(4, 3)).astype("f4"), rng.normal(size=(3, 5)).astype("f4")
    (gradient,) = darner.run(darner.grad(g), {"x": xs}, {"w": ws})
    np.testing.assert_allclose(gradient, xs.T @ (1 - np.tanh(xs @ ws) ** 2), rtol=1e-4, atol=1e-5)


def a_classifier_learns_in_steps_and_is_read_back(folder):
    def classifier(batch):
        g = darner.Graph("digits")
        pixels = g.input("x", (batch, 1, 28, 28))
        labels = g.input("labels", (batch,), "i32")
        hidden = nn.Conv2d("conv", 1, 4, 3, stride=2)(pixels).relu()
        logits = nn.Linear("head", 4 * 13 * 13, 10)(hidden.reshape((batch, 4 * 13 * 13)))
        g.set_outputs([g.cross_entropy_loss(logits, labels, label="loss"), logits])
        return g

    digits = data.drawn_digits(512, seed=1)
    arrays = {"x": digits.images.reshape(-1, 1, 28, 28), "labels": digits.labels}
    batches = data.Arrays(arrays, batch=64)
    with train.Trainer(classifier(64), batches, optimizer=optim.Adam(1e-2), epochs=4) as trainer:
        losses = trainer.train().losses
        trainer.session.save_checkpoint(folder / "digits.safetensors")
    assert losses[-1] < 0.7 * losses[0]
    with darner.build_inference_session(classifier(64)) as session:
        session.load_checkpoint(folder / "digits.safetensors")
        feeds = {name: array[:64] for name, array in arrays.items()}
        assert abs(float(session.run(feeds)["loss"].item()) - losses[-1]) < 1.0


def a_llama_learns_the_alphabet_and_writes_it(folder):
    letters = "abcdefghijklmnopqrstuvwxyz "
    vocabulary = data.CharVocabulary(letters)
    windows = data.TokenWindows(vocabulary.encode(letters * 100), length=32, batch=8)
    config = {"model_type": "llama", "vocab_size": 27, "hidden_size": 32, "intermediate_size": 64}
    config |= {"num_hidden_layers": 1, "num_attention_heads": 4, "max_position_embeddings": 128}
    model = models.from_config(config)
    graph = model.training_graph(batch=8, length=32)
    with train.Trainer(graph, windows, optimizer=optim.AdamW(1e-2), steps=100) as trainer:
        trainer.train()
        load.save(folder / "alphabet", model.config.to_hf(), trainer.session.parameters())
    found = load.pretrained(folder / "alphabet")
    with found.inference_session(batch=1, length=8) as session:
        generator = text.Generator(found.model, session, vocabulary)
        assert generator.generate("hij", max_new_tokens=10).text == "klmnopqrst"
        generator.close()


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        every_module_compiles()
        a_graph_is_written_differentiated_and_read_back()
        a_classifier_learns_in_steps_and_is_read_back(folder)
        a_llama_learns_the_alphabet_and_writes_it(folder)
    print(f"darner {darner.__version__} works on Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
