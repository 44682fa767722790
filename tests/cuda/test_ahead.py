"""Weights that are on their way before a product starts."""

import pytest

from darner.backends.cuda import kernels
from darner.backends.cuda.code import to_ptx
from tests.cuda.test_tensor_contract import HOPPER, product, spec_of


@pytest.mark.parametrize("shape", [(128, 576, 1536), (128, 3072, 576)])
def test_weights_of_short_prompts_are_on_their_way_before_the_launch_ahead_has_ended(shape):
    text = to_ptx(kernels.written(spec_of(product(*shape, "NN")), HOPPER).stages[0].ir, "sm_90a")
    assert text.count("bulk.prefetch.L2") == 1
    assert text.index("bulk.prefetch.L2") < text.index("griddepcontrol.wait")
    long = to_ptx(
        kernels.written(spec_of(product(2048, *shape[1:], "NN")), HOPPER).stages[0].ir, "sm_90a"
    )
    assert "bulk.prefetch" not in long
