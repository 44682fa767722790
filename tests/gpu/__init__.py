"""The GPU backend. Tests say so, and go on, where there is no adapter; on CI that is a failure."""

import os

import pytest


def _reason():
    try:
        from darner.backends.wgpu.device import machines

        return "" if machines() else "there is no GPU, nor a driver that poses as one"
    except ImportError as error:
        return str(error)


REASON = _reason()
if REASON and os.environ.get("CI"):
    raise RuntimeError(f"the GPU backend cannot be tested: {REASON}")

needs_gpu = pytest.mark.skipif(bool(REASON), reason=REASON or "there is one")
