"""What can only be tested on a card: skipped, with the reason, where there is none."""

import pytest

from darner.backends.cuda.opening import machines, reason

needs_card = pytest.mark.skipif(not machines(), reason=f"no NVIDIA GPU: {reason()}")
