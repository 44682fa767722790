"""Sessions on a card keep the promises that the emulated device keeps."""

import pytest

from tests.cuda.card import needs_card
from tests.cuda.promises import *  # noqa: F403
from tests.session.on_devices import *  # noqa: F403

pytestmark = needs_card


@pytest.fixture
def device_name():
    return "cuda"
