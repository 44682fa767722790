"""What bad things are done to, and what each of them holds, so that it can be seen that nothing changed.

Making a subject may take long (a session is compiled) while nothing that is done to it may change it: so one is made for
all rows of a process. A row that finds it changed fails, and the next row gets a new one.
"""

import dataclasses
import json
import os
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np

import darner
from darner import data, load, models, nn, optim, train
from darner.graph.op import OPS

SUBJECTS = {}
"""Functions that make a subject in an empty folder, by name."""


class Subject:
    """Something that can be used badly; ``thing`` is what actions get.

    ``held`` says all that it holds, in values that compare bit by bit.
    """

    def __init__(self, thing, held, close=lambda: None):
        self.thing, self.held, self.close = thing, held, close


def subject(make):
    """Declare a function that makes a subject, under its own name."""
    SUBJECTS[make.__name__] = make
    return make


# ---- nothing but values


@subject
def values(folder):
    """Constructors and functions: there is nothing that could change but what all share."""
    return Subject(
        SimpleNamespace(folder=folder, weights={"w": np.ones((2, 3), np.float32)}),
        lambda: (len(OPS), os.getcwd(), dict(os.environ)),
    )


# ---- graphs


@subject
def graph(folder):
    """A graph with a leaf of every kind, and nodes to misuse."""
    g = darner.Graph("model")
    m = SimpleNamespace(g=g, other=darner.Graph("other"))
    m.foreign = m.other.input("y", (4, 6))
    m.x = g.input("x", (4, 6))
    m.cube = g.input("cube", (2, 3, 4))
    m.image = g.input("image", (1, 3, 8, 8))
    m.ids = g.input("ids", (5,), "i32")
    m.mask = g.input("mask", (4, 6), "bool")
    m.bytes = g.input("bytes", (4,), "u8")
    m.z = g.input("z", (3,), "c64")
    m.half = g.input("half", (4, 6), "bf16")
    m.seq = g.input("seq", ("seq", 8))
    m.scalar = g.input("scalar", ())
    m.none = g.input("none", (0, 3))
    m.square = g.input("square", (3, 3))
    m.w = g.parameter("w", (6, 5), init="normal(0.1)")
    m.b = g.parameter("b", (5,))
    m.cache = g.state("cache", (4, 6))
    m.h = g.matmul(m.x, m.w, label="hidden")
    m.pair = g.node(g.top_k(m.h, 2)[0].inputs[0])
    m.loss = (m.h + m.b).square().mean(label="loss")
    g.set_update(m.cache, m.cache * 0.5)
    g.set_outputs([m.loss])
    m.frozen = g.copy().freeze()
    m.matrix = g.copy()
    m.matrix.set_outputs([m.matrix.node(m.h.id)])

    def held():
        users = [len(g.users(node)) for node in g.nodes]
        return g.to_json(), g.digest(), users, sorted(g._names), g._scopes, m.other.to_json()

    return Subject(m, held)


# ---- sessions


def network():
    """A loss that looks things up, and can fail on data: an index out of range."""
    g = darner.Graph("network")
    x, labels = g.input("x", (4, 6)), g.input("labels", (4,), "i32")
    table = g.parameter("table", (9, 6), init="normal(0.3)")
    ids = g.input("ids", (4,), "i32")
    h = (x + g.gather(table, ids)) @ g.parameter("w", (6, 5), init="normal(0.3)")
    logits = h.matmul(g.parameter("v", (5, 3), init="normal(0.3)"), label="logits")
    count = g.state("count", (), "i32")
    g.set_update(count, count + 1)
    g.set_outputs([g.cross_entropy_loss(logits, labels, label="loss"), logits])
    return g


RNG = np.random.default_rng(5)
GOOD = {
    "x": RNG.normal(size=(4, 6)).astype(np.float32),
    "labels": np.array([0, 2, 1, 1], np.int32),
    "ids": np.array([0, 8, 3, 3], np.int32),
}
"""Inputs that the network takes."""


def bits(session):
    """All that a session holds, bit for bit."""
    tables = {**session.parameters(), **session.state()}
    return {
        "values": {name: (str(v.dtype), v.shape, v.tobytes()) for name, v in tables.items()},
        "staged": {name: v.tobytes() for name, v in session._runner.staged.items()},
        "optimizer": repr(session.optimizer),
        "graph": session.graph.digest(),
        "multipliers": dict(session._learner.multipliers),
        "closed": session.closed,
        "shared": session._values.shared.sessions,
    }


def session_subject(folder, **options):
    """A session that has made two steps and has its inputs set, with another that it could share with."""
    options = {"threads": 1, "level": 1, "progress": False, **options}
    made = darner.build(network(), **options)
    for name, value in GOOD.items():
        made.set_input(name, value)
    made.step()
    made.step()
    good = Path(folder, "good.safetensors")
    made.save_checkpoint(good)
    thing = SimpleNamespace(s=made, folder=Path(folder), good=good, data=GOOD)
    with_bytes = {}

    def held():
        with_bytes["folder"] = contents(folder)
        return {**bits(made), **with_bytes}

    return Subject(thing, held, made.close)


@subject
def trained_on_reference(folder):
    """A training session by Adam on the reference backend."""
    return session_subject(folder, device="reference", optimizer=optim.Adam(0.01))


@subject
def trained_on_cpu(folder):
    """A training session by Adam on the CPU."""
    return session_subject(folder, optimizer=optim.AdamW(0.01, clip_norm=1.0))


@subject
def accumulating(folder):
    """A training session two runs into three that share an update."""
    return session_subject(folder, optimizer=optim.Adam(0.01, accumulate=3))


@subject
def inferring(folder):
    """An inference session."""
    return session_subject(folder, mode="infer")


@subject
def without_optimizer(folder):
    """A training session that only computes gradients."""
    return session_subject(folder, device="reference")


@subject
def symbolic(folder):
    """An inference session whose sizes are symbols."""
    g = darner.Graph("symbolic")
    x = g.input("x", ("seq", 4))
    y = g.input("y", ("2*seq+1",))
    g.set_outputs([x.sum(1) @ g.parameter("w", (4, 2)).sum(1)[:1].broadcast_to(("seq",)), y.sum()])
    made = darner.build(g, mode="infer", device="reference", progress=False)
    made.run({"x": np.ones((3, 4), np.float32), "y": np.ones(7, np.float32)})
    return Subject(SimpleNamespace(s=made, folder=folder), lambda: bits(made), made.close)


@subject
def closed(folder):
    """A session that was closed."""
    made = darner.build(network(), device="reference", progress=False, optimizer=optim.SGD(0.1))
    made.close()
    return Subject(SimpleNamespace(s=made, folder=Path(folder)), lambda: made.closed)


# ---- files


def contents(folder):
    """The files of a folder, with what is in each."""
    found = sorted(path for path in Path(folder).rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


SIZES = {"vocab_size": 27, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
LLAMA = {"model_type": "llama", **SIZES, "num_attention_heads": 2, "max_position_embeddings": 32}


@cache
def llama_weights():
    """Arrays for a very small Llama."""
    graph = models.from_config(LLAMA).inference_graph(batch=1, length=1)
    rng = np.random.default_rng(0)
    return {
        name: rng.normal(size=leaf.shape).astype(np.float32)
        for name, leaf in graph.parameters.items()
    }


@subject
def files(folder):
    """A folder in which rows write damaged files; what is there besides stays as it is."""
    folder = Path(folder)
    (folder / "precious.txt").write_text("not to be touched")
    return Subject(folder, lambda: (folder / "precious.txt").read_bytes())


@subject
def model_folder(folder):
    """The folder of a very small Llama, whole; actions get a copy of it to damage, and the folder itself."""
    whole = Path(folder, "whole")
    load.save(whole, LLAMA, llama_weights())
    data.CharVocabulary("abcdefghijklmnopqrstuvwxyz ").save(whole / "vocabulary.json")
    learned = {
        "model.layers.0.self_attn.q_proj.lora_A.weight": np.ones((2, 8), np.float32),
        "model.layers.0.self_attn.q_proj.lora_B.weight": np.ones((8, 2), np.float32),
    }
    load.save_adapter(Path(folder, "adapter"), learned, nn.LoRA(rank=2, targets=("*q_proj",)))
    return Subject(SimpleNamespace(whole=whole, folder=Path(folder)), lambda: contents(folder))


# ---- training


def batches(count=3):
    """Batches as a list."""
    return [dict(GOOD) for _ in range(count)]


@subject
def trainer(folder):
    """A trainer in the middle of its training, with checkpoints."""
    made = train.Trainer(
        network(),
        batches(),
        optimizer=optim.SGD(0.1, momentum=0.9),
        steps=2,
        device="reference",
        progress=False,
        checkpoint=Path(folder, "run"),
        checkpoint_every=1,
    )
    made.train()

    def held():
        state = json.dumps([made.progress.to_json(), made.feed.state()])
        return bits(made.session), state, contents(folder), repr(made.optimizer_in_use())

    made.optimizer_in_use = lambda: made.session.optimizer
    thing = SimpleNamespace(t=made, s=made.session, folder=Path(folder), run=Path(folder, "run"))
    return Subject(thing, held, made.close)


# ---- the command line


class CommandFailed(Exception):
    """A command that ended with a status other than 0; its text is the status and what it said on standard error."""


def command(*arguments):
    """Run a command in this process. It must not end by a traceback."""
    import contextlib
    import io

    from darner.cli import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as ended:
            status = ended.code
    if status:
        raise CommandFailed(f"{status}: {err.getvalue()}")


@subject
def cli(folder):
    """A folder for commands, with a small model and a text in it."""
    folder = Path(folder)
    load.save(folder / "model", LLAMA, llama_weights())
    data.CharVocabulary("abcdefghijklmnopqrstuvwxyz ").save(folder / "model" / "vocabulary.json")
    (folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog " * 20)
    (folder / "empty.txt").write_text("")
    (folder / "bad.json").write_text("{")
    return Subject(folder, lambda: contents(folder))


def copied(value):
    """A frozen dataclass with other fields: its checks run again."""
    return lambda **changes: dataclasses.replace(value, **changes)
