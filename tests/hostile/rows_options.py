"""Options out of range, of the wrong kind, or that contradict each other."""

import numpy as np

import darner
from darner import (
    ArgumentError,
    SessionConfig,
    ShapeError,
    UnknownNameError,
    VerifyError,
    nn,
    optim,
    text,
)
from darner.session import build
from tests.hostile.rows import Table
from tests.hostile.subjects import network

bad = Table("values")
ROWS = bad
NAN, INF = float("nan"), float("inf")


def built(**options):
    """A session of the network with options."""
    build(network(), **{"device": "reference", "progress": False, **options}).close()


def empty():
    """A graph without an output."""
    return darner.Graph("empty")


def matrix():
    """A graph whose only output is no loss."""
    g = darner.Graph("matrix")
    g.set_outputs([g.parameter("w", (2, 3)) * 2.0])
    return g


def integers():
    """A graph whose loss is an integer."""
    g = darner.Graph("integers")
    g.set_outputs([g.input("n", (3,), "i32").sum()])
    return g


def layer(make, *shape, dtype="f32"):
    """A layer put on an input of some shape."""
    g = darner.Graph("layer")
    return make(g.input("x", shape, dtype))


# fmt: off
# ---- sessions
bad("device that is none", lambda v: SessionConfig(device="tpu"), ArgumentError, "tpu")
bad("device that is a number", lambda v: SessionConfig(device=0), ArgumentError, "device")
bad("device that is a list", lambda v: SessionConfig(device=["cpu"]), ArgumentError, "device")
bad("mode that is none", lambda v: SessionConfig(mode="eval"), ArgumentError, "mode")
bad("mode that is a bool", lambda v: SessionConfig(mode=True), ArgumentError, "mode")
bad("threads below 1", lambda v: SessionConfig(threads=0), ArgumentError, "threads")
bad("threads below 0", lambda v: SessionConfig(threads=-4), ArgumentError, "threads")
bad("threads of a half", lambda v: SessionConfig(threads=1.5), ArgumentError, "threads")
bad("threads of text", lambda v: SessionConfig(threads="4"), ArgumentError, "threads")
bad("threads of a bool", lambda v: SessionConfig(threads=True), ArgumentError, "threads")
bad("precision that is none", lambda v: SessionConfig(precision="fp16"), ArgumentError, "f16")
bad("level above the last", lambda v: SessionConfig(level=4), ArgumentError, "level")
bad("level of a bool", lambda v: SessionConfig(level=True), ArgumentError, "level")
bad("level of text", lambda v: SessionConfig(level="3"), ArgumentError, "level")
bad("seed below 0", lambda v: SessionConfig(seed=-1), ArgumentError, "seed")
bad("seed of 65 bits", lambda v: SessionConfig(seed=2**64), ArgumentError, "64 bits")
bad("seed of a float", lambda v: SessionConfig(seed=1.0), ArgumentError, "seed")
bad("cache that is a number", lambda v: SessionConfig(cache=3), ArgumentError, "cache")
bad("cache that is a list", lambda v: SessionConfig(cache=["/tmp"]), ArgumentError, "cache")
bad("progress that is text", lambda v: SessionConfig(progress="yes"), ArgumentError, "progress")
bad("gradients kept by text", lambda v: SessionConfig(keep_gradients="all"), ArgumentError, "keep_gradients")
bad("no specialisation", lambda v: SessionConfig(specialisations=0), ArgumentError, "specialisations")
bad("tuning by a number", lambda v: SessionConfig(tune=1), ArgumentError, "tune")
bad("tuning without a GPU", lambda v: SessionConfig(tune=True), ArgumentError, "not tuned")
bad("option misspelt", lambda v: SessionConfig().with_changes(thread=2), ArgumentError, "threads")
bad("option misspelt in building", lambda v: built(optimiser=optim.SGD(0.1)), ArgumentError, "optimizer")
bad("optimizer by its name", lambda v: SessionConfig(optimizer="adam"), ArgumentError, "darner.optim")
bad("optimizer for inference", lambda v: SessionConfig(mode="infer", optimizer=optim.SGD(0.1)), ArgumentError, "inference")
bad("config that is a dictionary", lambda v: build(network(), {"threads": 1}), ArgumentError, "SessionConfig")
bad("session of a text", lambda v: build("graph"), ArgumentError, "Graph")
bad("session of nothing", lambda v: build(None), ArgumentError, "Graph")
bad("session of a graph without outputs", lambda v: build(empty(), device="reference"), (ArgumentError, VerifyError), "output")
bad("training without a loss", lambda v: build(matrix(), device="reference"), (ArgumentError, ShapeError), "loss")
bad("training by a loss of integers", lambda v: build(integers(), device="reference"), (ArgumentError, ShapeError, TypeError), "i32")
bad("initialised by a rule that is none", lambda v: built(init="glrot"), ArgumentError, "glrot")
bad("initialised by a pattern to a number", lambda v: built(init={"*": 3}), ArgumentError, "initialiser")
bad("initialised by a list", lambda v: built(init=["zeros"]), ArgumentError, "initialiser")
bad("shared with a string", lambda v: built(share="session"), ArgumentError, "session")
bad("shared with a list of one that is none", lambda v: built(share=[None]), ArgumentError, "session")
bad("plan kept in a number", lambda v: built(plan_file=3), ArgumentError, "plan_file")
# ---- optimizers
bad("rate of NaN", lambda v: optim.SGD(NAN), ArgumentError, "finite")
bad("rate without bound", lambda v: optim.Adam(INF), ArgumentError, "finite")
bad("rate below 0", lambda v: optim.SGD(-0.1), ArgumentError, "at least 0")
bad("rate of text", lambda v: optim.SGD("0.1"), ArgumentError, "number")
bad("rate of a bool", lambda v: optim.SGD(True), ArgumentError, "number")
bad("rate of a list", lambda v: optim.Adam([0.1]), ArgumentError, "number")
bad("rate that is a schedule", lambda v: optim.SGD(optim.cosine(9)), ArgumentError, "schedule")
bad("momentum below 0", lambda v: optim.SGD(0.1, momentum=-0.5), ArgumentError, "momentum")
bad("nesterov without momentum", lambda v: optim.SGD(0.1, nesterov=True), ArgumentError, "momentum")
bad("nesterov of a number", lambda v: optim.SGD(0.1, momentum=0.9, nesterov=1), ArgumentError, "nesterov")
bad("beta of 1", lambda v: optim.Adam(0.1, beta1=1.0), ArgumentError, "beta1")
bad("beta below 0", lambda v: optim.Adam(0.1, beta2=-0.1), ArgumentError, "beta2")
bad("beta of NaN", lambda v: optim.AdamW(0.1, beta1=NAN), ArgumentError, "beta1")
bad("epsilon of 0 and less", lambda v: optim.Adam(0.1, epsilon=-1e-9), ArgumentError, "epsilon")
bad("decay below 0", lambda v: optim.AdamW(0.1, weight_decay=-0.1), ArgumentError, "weight_decay")
bad("decay by a filter that is text", lambda v: optim.AdamW(0.1, decay_filter="bias"), ArgumentError, "decay_filter")
bad("clipping to 0", lambda v: optim.SGD(0.1, clip_norm=0.0), ArgumentError, "clip_norm")
bad("clipping to NaN", lambda v: optim.SGD(0.1, clip_value=NAN), ArgumentError, "clip_value")
bad("clipping below 0", lambda v: optim.SGD(0.1, clip_value=-1), ArgumentError, "clip_value")
bad("accumulating none", lambda v: optim.SGD(0.1, accumulate=0), ArgumentError, "accumulate")
bad("accumulating a half", lambda v: optim.SGD(0.1, accumulate=2.5), ArgumentError, "accumulate")
bad("accumulating a bool", lambda v: optim.SGD(0.1, accumulate=True), ArgumentError, "accumulate")
bad("master of text", lambda v: optim.SGD(0.1, master="f32"), ArgumentError, "master")
bad("multipliers as a list", lambda v: optim.SGD(0.1, multipliers=[("w", 1.0)]), ArgumentError, "multipliers")
bad("multiplier below 0", lambda v: optim.SGD(0.1, multipliers={"w": -1.0}), ArgumentError, "multiplier")
bad("multiplier by a number", lambda v: optim.SGD(0.1, multipliers={3: 1.0}), ArgumentError, "name")
bad("multiplier of nothing there is", lambda v: built(optimizer=optim.SGD(0.1, multipliers={"nothing": 0.5})), (ArgumentError, UnknownNameError), "nothing")
bad("schedule of a function as it is", lambda v: optim.SGD(0.1, schedule=lambda step: 1.0), ArgumentError, "from_function")
bad("lion with a beta of 2", lambda v: optim.Lion(0.1, beta2=2.0), ArgumentError, "beta2")
bad("adafactor by a rate of text", lambda v: optim.Adafactor("x"), ArgumentError, "number")
bad("optimizer without a rule", lambda v: built(optimizer=Ruleless(0.1)), ArgumentError, "rule")
# ---- schedules
bad("warm-up of no steps", lambda v: optim.warmup(0), ArgumentError, "steps")
bad("warm-up of a half", lambda v: optim.warmup(2.5), ArgumentError, "steps")
bad("warm-up from below 0", lambda v: optim.warmup(3, start=-1.0), ArgumentError, "start")
bad("cosine of no steps", lambda v: optim.cosine(0), ArgumentError, "steps")
bad("cosine to NaN", lambda v: optim.cosine(3, end=NAN), ArgumentError, "end")
bad("polynomial of a power below 0", lambda v: optim.polynomial(3, power=-1), ArgumentError, "power")
bad("exponential above bounds", lambda v: optim.exponential(-1.0), ArgumentError, "factor")
bad("steps of decay of 0", lambda v: optim.step_decay(0), ArgumentError, "every")
bad("pieces that are none", lambda v: optim.piecewise({}), ArgumentError, "piecewise")
bad("pieces by text", lambda v: optim.piecewise({"a": 1.0}), ArgumentError, "piecewise")
bad("joined of nothing", lambda v: optim.join([]), ArgumentError, "join")
bad("joined without an end", lambda v: optim.constant() >> optim.cosine(3), ArgumentError, "steps")
bad("joined with a number", lambda v: optim.warmup(3) >> 0.5, ArgumentError, "schedule")
bad("schedule times a text", lambda v: optim.warmup(3) * "2", ArgumentError, "factor")
bad("schedule at a step below 0", lambda v: optim.warmup(3)(-1), ArgumentError, "step")
bad("schedule of a number", lambda v: optim.from_function(3), ArgumentError, "function")
# ---- layers
bad("layer of no inputs", lambda v: nn.Linear("a", 0, 3), ArgumentError, "inputs")
bad("layer of a half output", lambda v: nn.Linear("a", 3, 2.5), ArgumentError, "outputs")
bad("layer stored otherwise", lambda v: nn.Linear("a", 3, 2, stored="row"), ArgumentError, "stored")
bad("layer on another width", lambda v: layer(nn.Linear("a", 3, 2), 5, 4), ShapeError, "4")
bad("embedding of no words", lambda v: nn.Embedding("a", 0, 4), ArgumentError, "0")
bad("embedding of floats", lambda v: layer(nn.Embedding("a", 7, 4), 5), TypeError, "integers")
bad("norm of another width", lambda v: layer(nn.LayerNorm("a", 9), 5, 4), ShapeError, "9")
bad("groups that do not divide", lambda v: nn.GroupNorm("a", 3, 8), (ArgumentError, ShapeError), "3")
bad("dropout of 2", lambda v: nn.Dropout(2.0), ArgumentError, "2")
bad("rank of 0", lambda v: layer(nn.LoRA(rank=0).linear("a", 4, 4), 2, 4), ArgumentError, "rank")
bad("heads that do not divide", lambda v: nn.Attention("a", 10, 3), (ArgumentError, ShapeError), "heads")
# ---- sampling
bad("temperature below 0", lambda v: text.Sampling(temperature=-1.0), ArgumentError, "temperature")
bad("temperature of NaN", lambda v: text.Sampling(temperature=NAN), ArgumentError, "temperature")
bad("top k below 0", lambda v: text.Sampling(top_k=-1), ArgumentError, "top_k")
bad("top k of a half", lambda v: text.Sampling(top_k=1.5), ArgumentError, "top_k")
bad("top p of 0", lambda v: text.Sampling(top_p=0.0), ArgumentError, "top_p")
bad("top p above 1", lambda v: text.Sampling(top_p=1.1), ArgumentError, "top_p")
bad("min p of NaN", lambda v: text.Sampling(min_p=NAN), ArgumentError, "min_p")
bad("penalty of 0", lambda v: text.Sampling(repetition_penalty=0.0), ArgumentError, "repetition_penalty")
# ---- vocabularies
bad("vocabulary of nothing", lambda v: darner.data.CharVocabulary(""), ArgumentError, "one character")
bad("vocabulary of a list", lambda v: darner.data.CharVocabulary(["a", "b"]), ArgumentError, "a text")
bad("vocabulary with a character twice", lambda v: darner.data.CharVocabulary("abca"), ArgumentError, "twice")
bad("text with a stranger", lambda v: darner.data.CharVocabulary("ab").encode("abc"), ArgumentError, "'c'")
bad("text of bytes", lambda v: darner.data.CharVocabulary("ab").encode(b"ab"), ArgumentError, "text")
bad("token above the last", lambda v: darner.data.CharVocabulary("ab").decode([0, 2]), ArgumentError, "2")
bad("token below the first", lambda v: darner.data.CharVocabulary("ab").decode([-1]), ArgumentError, "-1")
bad("tokens that are fractions", lambda v: darner.data.CharVocabulary("ab").decode(np.array([0.5])), ArgumentError, "whole")
bad("temperature of text", lambda v: text.Sampling(temperature="hot"), ArgumentError, "temperature")
bad("temperature of None", lambda v: text.Sampling(temperature=None), ArgumentError, "temperature")
bad("seed of sampling of text", lambda v: text.Sampling(seed="x"), ArgumentError, "seed")
# fmt: on


class Ruleless(optim.Optimizer):
    """An optimizer that says nothing of how parameters follow."""

    def __init__(self, learning_rate):
        object.__setattr__(self, "learning_rate", learning_rate)
        super().__init__()
