"""Optimizers as graphs: a step of training is a graph like any other, optimised and run like any other.

``training_step`` takes the graph of a loss and adds its gradients, the updates of parameters, and the states they need:

    >>> import darner, numpy as np
    >>> from darner import optim
    >>> g = darner.Graph("line")
    >>> x, y = g.input("x", (4,)), g.input("y", (4,))
    >>> w, b = g.parameter("w", ()), g.parameter("b", ())
    >>> g.set_outputs([(w * x + b - y).square().mean()])
    >>> step = optim.training_step(g, optim.SGD(0.1, momentum=0.5))
    >>> list(step.states)
    ['optimizer/step', 'optimizer/learning_rate', 'optimizer/momentum', 'w/momentum', 'b/momentum']
    >>> data = {"x": np.arange(4.0) - 1.5, "y": 3.0 * np.arange(4.0) + 1.0}
    >>> state = {"w": 0.0, "b": 0.0}
    >>> losses = [float(darner.run(step, data, {"w": 0.0, "b": 0.0}, state=state)[0]) for _ in range(60)]
    >>> losses[-1] < 1e-6 * losses[0]
    True
    >>> round(float(state["w"]), 3), round(float(state["b"]), 3), int(state["optimizer/step"])
    (3.0, 5.5, 60)

Numbers that change while training are states: the same graph goes on with another rate after

    >>> state["optimizer/learning_rate"] = 0.01

and a schedule computes its factor of the rate from ``optimizer/step``, inside the step:

    >>> schedule = optim.warmup(500) >> optim.cosine(10_000)
    >>> optimizer = optim.AdamW(1e-3, schedule=schedule, clip_norm=1.0, decay_filter=optim.matrices_only)

States have predictable names: ``optimizer/step``, ``optimizer/<number>``, ``<parameter>/momentum``,
``<parameter>/mean``, ``<parameter>/variance``, ``<parameter>/gradient_sum`` and ``optimizer/accumulated`` with
``accumulate=``, ``optimizer/gradient_norm`` with ``clip_norm=``, ``<parameter>/master`` with ``master=True``. They are f32 where the parameter has 16 bits.

An optimizer of one's own is a function (see ``custom``) or a subclass of ``Optimizer``:

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class RMSProp(optim.Optimizer):
    ...     learning_rate: float = 1e-2
    ...     decay: float = 0.99
    ...
    ...     def update(self, slot):
    ...         variance = slot.moving_mean("variance", slot.setting("decay"), slot.gradient.square())
    ...         return slot.value - slot.learning_rate * slot.gradient / (variance.sqrt() + 1e-8)
    >>> list(optim.training_step(g, RMSProp(0.05)).states)[-2:]
    ['w/variance', 'b/variance']
"""

from typing import TYPE_CHECKING, NoReturn

from ..graph.habits.hints import missing
from .adafactor import Adafactor
from .adam import Adam, AdamW
from .base import DecayFilter, Optimizer, Slot, matrices_only
from .clipping import clip_by_norm, clip_by_value, global_norm
from .custom import Custom, custom
from .lion import Lion
from .schedules import (
    Schedule,
    constant,
    cosine,
    exponential,
    from_function,
    join,
    linear_warmup,
    one_cycle,
    piecewise,
    polynomial,
    step_decay,
    warmup,
)
from .sgd import SGD
from .step import training_step

if not TYPE_CHECKING:  # a type checker knows the names itself

    def __getattr__(name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise missing("optimizer", "darner.optim has no", name, __all__)


__all__ = [
    "SGD",
    "Adafactor",
    "Adam",
    "AdamW",
    "Custom",
    "DecayFilter",
    "Lion",
    "Optimizer",
    "Schedule",
    "Slot",
    "clip_by_norm",
    "clip_by_value",
    "constant",
    "cosine",
    "custom",
    "exponential",
    "from_function",
    "global_norm",
    "join",
    "linear_warmup",
    "matrices_only",
    "one_cycle",
    "piecewise",
    "polynomial",
    "step_decay",
    "training_step",
    "warmup",
]
