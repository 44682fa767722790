"""Whole models on a GPU: outputs, gradients and steps of training are those of the reference in f64."""

import pytest

from tests.gpu import needs_gpu
from tests.whole_models import MODELS, check_model

pytestmark = needs_gpu


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_model_computes_what_the_reference_computes(name):
    check_model(name, "gpu", "wgpu")
