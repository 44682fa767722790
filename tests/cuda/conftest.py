"""Devices for tests: in software, with the code of kernels or with the reference in its place; and the driver's calls over a driver in Python."""

import pytest

from darner.backends.cuda import code, kernels, opening
from darner.backends.cuda.device import Device
from darner.backends.cuda.driver import library
from darner.backends.cuda.driver.library import Library
from darner.backends.cuda.emulator.context import EmulatedContext
from darner.backends.cuda.machine import Machine
from tests.cuda import oracle
from tests.cuda.fake_driver import FakeDriver


@pytest.fixture
def device(monkeypatch):
    """``cuda:emulated`` with the reference's kernels, as if no session had ever used it."""
    monkeypatch.setattr(kernels, "written", oracle.written)
    machine = Machine.without_card("sm_90a", emulated=True)
    made = Device(EmulatedContext(machine, oracle.compiled))
    monkeypatch.setitem(opening._open, "emulated", made)
    return made


@pytest.fixture
def no_devices(monkeypatch):
    """Nothing of the machine's own devices is known, or kept of what a test finds."""
    monkeypatch.setattr(opening, "_machines", None)
    monkeypatch.setattr(opening, "_reason", "")
    monkeypatch.setattr(opening, "_open", {})


@pytest.fixture
def driver(monkeypatch, no_devices):
    """A driver in Python, and the reference's kernels: ``cuda`` is a device."""
    fake = FakeDriver()
    loaded = Library(fake.functions())
    monkeypatch.setattr(library, "library", lambda: loaded)
    monkeypatch.setattr(opening, "library", lambda: loaded)
    monkeypatch.setattr(kernels, "written", oracle.written)
    monkeypatch.setattr(code, "to_ptx", lambda text, arch: text)
    return fake
