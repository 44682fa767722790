"""Sessions on the emulated device: kernels are those of a card, compiled for the host's processor; everything around them is what a card runs."""

import pytest

from tests.cuda.promises import *  # noqa: F403
from tests.session.on_devices import *  # noqa: F403


@pytest.fixture
def device_name():
    return "cuda:emulated"
