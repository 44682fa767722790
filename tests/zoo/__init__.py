"""Small models of every family, each in composite ops and in primitives alone.

``MODELS`` has what makes them, for any sizes; ``ZOO`` has small graphs of all, for tests that enumerate:

    for name, make in ZOO.items():
        graph = make()
        outputs = run(graph)
"""

from collections.abc import Callable
from functools import partial

import darner
from darner import Graph

from .bert import bert
from .gpt2 import gpt2
from .llama import SMOLLM2, llama
from .mlp import mlp
from .pieces import PIECES
from .resnet import resnet
from .spellings import VARIANTS
from .training import mlp_step, step
from .unet import unet
from .values import Values, run, values
from .vit import vit
from .writer import SPELLINGS

__all__ = [
    "MODELS",
    "MODEL_VARIANTS",
    "PIECES",
    "SMOLLM2",
    "SPELLINGS",
    "VARIANTS",
    "ZOO",
    "Values",
    "bert",
    "gpt2",
    "llama",
    "mlp",
    "mlp_step",
    "resnet",
    "run",
    "step",
    "trained",
    "unet",
    "values",
    "vit",
]

MODELS: dict[str, Callable[..., Graph]] = {
    "llama": llama,
    "llama of a batch": partial(llama, 2, batch=2, tied=False, stored="out_in"),
    "gpt2": gpt2,
    "gpt2 of three projections": partial(gpt2, joint=False),
    "bert": bert,
    "unet": unet,
    "resnet": resnet,
    "mlp": mlp,
    "mlp with dropout": partial(mlp, 3, dropout=0.25),
    "vit": vit,
    "vit by convolution": partial(vit, patches="conv"),
}
"""Name -> a function of ``spelling``, ``variant``, ``loss``, ``dtype`` and the model's own sizes."""

MODEL_VARIANTS = 4
"""How many variants of a model differ; each picks one spelling of every piece."""


def trained(make: Callable[..., Graph], **options) -> Graph:
    """The loss of a model and its gradients."""
    return darner.value_and_grad(make(loss=True, **options))


def _zoo() -> dict[str, Callable[[], Graph]]:
    found: dict[str, Callable[[], Graph]] = {}
    for name, make in MODELS.items():
        spelled = {"composite": {"spelling": "composite"}}
        for variant in range(MODEL_VARIANTS):
            spelled[f"primitive {variant}"] = {"spelling": "primitive", "variant": variant}
        for how, options in spelled.items():
            found[f"{name}, {how}"] = partial(make, loss=False, **options)
            found[f"{name}, {how}, training"] = partial(trained, make, **options)
    for optimizer in ("adam", "sgd"):
        for spelling in SPELLINGS:
            found[f"mlp, {spelling}, {optimizer}"] = partial(
                mlp_step, optimizer=optimizer, spelling=spelling
            )
    return found


ZOO: dict[str, Callable[[], Graph]] = _zoo()
"""Name -> a small graph: every model, in composites and in each variant of primitives, for inference and training."""
