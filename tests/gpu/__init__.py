"""The GPU backend, on whatever adapter there is: a software one will do (Mesa's lavapipe).

Where there is none, its tests are skipped, and the run says so at its end (``tests/conftest.py``); on CI that is a failure.
"""

import os

import pytest

INSTALL = "install a driver: of the GPU, or apt-get install mesa-vulkan-drivers libvulkan1, which runs on the CPU"


def _reason():
    try:
        from darner.backends.wgpu.device import machines

        return "" if machines() else f"Vulkan, Metal and DX12 know no GPU; {INSTALL}"
    except ImportError as error:
        return str(error)


REASON = _reason()
if REASON and os.environ.get("CI"):
    raise RuntimeError(f"the GPU backend cannot be tested: {REASON}")

needs_gpu = pytest.mark.skipif(bool(REASON), reason=REASON or "there is one")
