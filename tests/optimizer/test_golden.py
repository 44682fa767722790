"""The optimized graphs of five models, as text: a change of behaviour is seen.

``python -m tests.optimizer.test_golden`` writes them anew, to be read before they are kept.
"""

from pathlib import Path

import pytest

import darner
from tests.zoo import gpt2, llama, mlp_step, resnet, unet

HERE = Path(__file__).parent / "golden"

MODELS = {
    "llama, training": lambda: darner.optimize_training(llama(2))[0],
    "gpt2 in primitives, inference": lambda: darner.optimize_inference(gpt2(spelling="primitive"))[
        0
    ],
    "unet, inference": lambda: darner.optimize_inference(unet())[0],
    "resnet, inference, cuda": lambda: darner.optimize_inference(resnet(), target="cuda")[0],
    "mlp, a step of adam": lambda: darner.optimize(mlp_step(optimizer="adam")),
}


def path(name):
    return HERE / f"{name.replace(', ', '-').replace(' ', '_')}.txt"


@pytest.mark.parametrize("name", MODELS)
def test_the_optimized_graph_is_the_one_on_record(name):
    assert MODELS[name]().to_text() + "\n" == path(name).read_text()


if __name__ == "__main__":
    for name, make in MODELS.items():
        path(name).write_text(make().to_text() + "\n")
