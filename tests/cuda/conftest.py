"""Devices in software for tests: with the code of kernels, or with the reference in its place."""

import pytest

from darner.backends.cuda import kernels, opening
from darner.backends.cuda.device import Device
from darner.backends.cuda.emulator.context import EmulatedContext
from darner.backends.cuda.machine import Machine
from tests.cuda import oracle


@pytest.fixture
def device(monkeypatch):
    """``cuda:emulated`` with the reference's kernels, as if no session had ever used it."""
    monkeypatch.setattr(kernels, "written", oracle.written)
    machine = Machine.without_card("sm_90a", emulated=True)
    made = Device(EmulatedContext(machine, oracle.compiled))
    monkeypatch.setitem(opening._open, "emulated", made)
    return made
