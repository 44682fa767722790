"""These tests are of wgpu, also on a machine where ``gpu`` means NVIDIA's own driver."""

import pytest

from darner.backends.base import registry


@pytest.fixture(autouse=True, scope="module")
def _only_wgpu():
    before = dict(registry.PREFERRED)
    registry.PREFERRED.clear()
    yield
    registry.PREFERRED.update(before)
