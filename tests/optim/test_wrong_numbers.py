"""Numbers that mean nothing are refused where an optimizer, a schedule or a layer is made, by name."""

import dataclasses
import math

import pytest

from darner import ArgumentError, nn, optim

OPTIMIZERS = (optim.SGD, optim.Adam, optim.AdamW, optim.Lion, optim.Adafactor)
WRONG = (math.nan, math.inf, -math.inf, -1.0, "0.1", True)


def numbers_of(kind):
    made = kind(0.1)
    for item in dataclasses.fields(kind):
        value = getattr(made, item.name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number or item.name in ("clip_norm", "clip_value", "epsilon1"):
            yield item.name


CASES = [
    pytest.param(kind, name, value, id=f"{kind.__name__}.{name}={value}")
    for kind in OPTIMIZERS
    for name in numbers_of(kind)
    for value in WRONG
    if not (name == "beta2_decay" and value == -1.0)  # an exponent
]


@pytest.mark.parametrize(("kind", "name", "value"), CASES)
def test_no_optimizer_takes_a_number_that_means_nothing(kind, name, value):
    with pytest.raises(ArgumentError, match=rf"^{kind.__name__}: {name}\b.*test_wrong_numbers"):
        kind(**{"learning_rate": 0.1, name: value})


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (optim.SGD, "momentum", 2),
        (optim.SGD, "momentum", 1.0),
        (optim.SGD, "dampening", 1.5),
        (optim.Adam, "beta1", 1.0),
        (optim.Adam, "beta2", 1.5),
        (optim.Lion, "beta1", 1.0),
        (optim.Adafactor, "beta2_decay", 0.5),
        (optim.Adafactor, "clip_threshold", 0.5),
        (optim.AdamW, "accumulate", 0),
        (optim.AdamW, "clip_norm", 0.0),
    ],
)
def test_shares_that_do_not_shrink_are_refused(kind, name, value):
    with pytest.raises(ArgumentError, match=f"{kind.__name__}: {name}"):
        kind(**{"learning_rate": 0.1, name: value})


NAN = math.nan
SCHEDULES = {
    "constant": [(-1.0,), (NAN,), (1.0, 0)],
    "linear_warmup": [(0,), (2.5,), (NAN,), (10, -1.0), (10, NAN)],
    "cosine": [(0,), (2.5,), (10, -1.0), (10, NAN)],
    "polynomial": [(0,), (10, 0.0), (10, NAN), (10, 1.0, NAN), (10, 1.0, -1.0)],
    "exponential": [(0.0,), (-1.0,), (NAN,), (0.5, 0)],
    "step_decay": [(0,), (10, 0.0), (10, NAN), (10, math.inf)],
    "piecewise": [({},), ({-1: 1.0},), ({1: NAN},), ({1: -1.0},), (3,)],
    "one_cycle": [(1,), (10, 2.0), (10, NAN), (10, 0.3, NAN), (10, 0.3, 0.1, -1.0)],
    "from_function": [
        (3,),
        (lambda step: NAN,),
        (lambda step: -1.0,),
        (lambda step: 1 / step,),
        (lambda step: "fast",),
    ],
    "join": [([],), ([3],)],
}


@pytest.mark.parametrize(
    ("name", "given"), [(name, given) for name, rows in SCHEDULES.items() for given in rows]
)
def test_no_schedule_takes_a_number_that_means_nothing(name, given):
    with pytest.raises(ArgumentError, match=f"^{name}: .*test_wrong_numbers"):
        getattr(optim, name)(*given)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: nn.LayerNorm("n", 4, eps=-1.0),
            "LayerNorm 'n': eps is a number from 0 to 1, got -1",
        ),
        (lambda: nn.RMSNorm("n", 4, eps=NAN), "RMSNorm 'n': eps .* got nan"),
        (lambda: nn.GroupNorm("n", 2, 4, eps=math.inf), "GroupNorm 'n': eps .* got inf"),
        (lambda: nn.BatchNorm("n", 4, momentum=2.0), "BatchNorm 'n': momentum .* got 2.0"),
        (lambda: nn.Dropout(NAN), "Dropout: rate .* got nan"),
        (lambda: nn.Attention("a", 8, 2, dropout=2.0), "Attention 'a': dropout .* got 2.0"),
        (lambda: nn.MLP("m", 8, 16, dropout=-1.0), "MLP 'm': dropout .* got -1.0"),
        (lambda: nn.LSTM("l", 3, 4, dropout=NAN), "LSTM 'l': dropout .* got nan"),
        (lambda: nn.LoRA(rank=0), "LoRA: rank is a positive whole number, got 0"),
        (lambda: nn.LoRA(dropout=2.0), "LoRA: dropout .* got 2.0"),
    ],
)
def test_no_layer_takes_a_number_that_means_nothing(make, text):
    with pytest.raises(ArgumentError, match=f"^{text}.*test_wrong_numbers"):
        make()
