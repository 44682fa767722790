"""A GPU that is lost, because its driver was reset or it was taken out: all say so, what was saved is intact, and a new session goes on from it."""

import logging

import numpy as np
import pytest

from darner import ArgumentError, DeviceLostError, DeviceMemoryError
from darner.backends.base.lowering import lower_for
from darner.backends.wgpu.device import Device, adapters, opened
from darner.backends.wgpu.program import WgpuProgram
from tests.gpu import needs_gpu
from tests.leaks import models

pytestmark = needs_gpu


def training(**options):
    return models.training(device="gpu", cache=None, **options)


@pytest.fixture
def lost():
    """A session that has learned on a device, and what loses it."""
    with training() as session:
        models.learned(session, 2)
        yield session, opened()


WAYS = {
    "told": lambda device: device.lose("it was taken out"),
    "noticed": lambda device: device.raw.destroy(),
}
"""By the process itself, or by the driver, which tells nobody."""

USES = {
    "step": lambda session, path: session.step(),
    "run": lambda session, path: session.run(models.values()),
    "read a result": lambda session, path: session.read_loss(),
    "read a parameter": lambda session, path: session.get_parameter("w"),
    "write an input": lambda session, path: (
        session.set_input("x", models.values()["x"]),
        session.step(),
    ),
    "save": lambda session, path: session.save_checkpoint(path),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("use", USES)
def test_every_use_of_a_lost_device_says_so(lost, way, use, tmp_path):
    session, device = lost
    session.step()
    WAYS[way](device)
    for _ in range(2):
        with pytest.raises(DeviceLostError) as caught:
            USES[use](session, tmp_path / "checkpoint")
        text = str(caught.value)
        assert f"the GPU '{device.machine.name}' was lost" in text
        assert "build the session anew and load the last checkpoint" in text
    assert list(tmp_path.iterdir()) == []


def test_why_it_was_lost_is_told(lost):
    session, device = lost
    device.lose("its driver was updated")
    with pytest.raises(DeviceLostError, match="was lost: its driver was updated"):
        session.step()


@pytest.mark.parametrize("way", WAYS)
def test_a_new_session_goes_on_from_a_checkpoint(way, tmp_path):
    with training() as session:
        models.learned(session, 3)
        session.save_checkpoint(tmp_path / "checkpoint")
        wanted = models.learned(session, 2, seed=1)
    with training() as session:
        models.learned(session, 3)
        saved = (tmp_path / "checkpoint").read_bytes()
        device = opened()
        WAYS[way](device)
        with pytest.raises(DeviceLostError):
            session.step()
        with pytest.raises(DeviceLostError):
            session.save_checkpoint(tmp_path / "checkpoint")
        # The file that was to be replaced is as it was, and nothing is left beside it.
        assert (tmp_path / "checkpoint").read_bytes() == saved
        assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]
    assert opened() is not device
    with training() as again:
        again.load_checkpoint(tmp_path / "checkpoint")
        found = models.learned(again, 2, seed=1)
    assert models.same(found, wanted)


def test_a_loss_in_the_middle_of_saving_leaves_the_old_file(lost, tmp_path, monkeypatch):
    session, device = lost
    session.save_checkpoint(tmp_path / "checkpoint")
    saved = (tmp_path / "checkpoint").read_bytes()
    session.step()
    read, reads = device.read, []

    def lose_in_the_third(region):
        reads.append(region)
        if len(reads) == 3:
            device.raw.destroy()
        return read(region)

    monkeypatch.setattr(device, "read", lose_in_the_third)
    with pytest.raises(DeviceLostError):
        session.save_checkpoint(tmp_path / "checkpoint")
    assert len(reads) == 3
    assert (tmp_path / "checkpoint").read_bytes() == saved
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_the_devices_own_message_is_no_noise_in_the_log(lost, caplog):
    session, device = lost
    with caplog.at_level(logging.WARNING):
        device.raw.destroy()
        with pytest.raises(DeviceLostError):
            session.step()
        with pytest.raises(DeviceLostError):
            device.wait()
    assert caplog.records == []


def test_another_device_is_none_the_worse(lost):
    _, device = lost
    device.lose("for a test")
    other = opened()
    region = other.region(16)
    other.write(region, np.arange(4, dtype=np.int32))
    other.check()
    assert other.read(region).view(np.int32).tolist() == [0, 1, 2, 3]
    other.free(region.buffer)


def test_a_new_session_cannot_share_what_was_lost(lost):
    session, device = lost
    device.lose("for a test")
    with pytest.raises(DeviceLostError):
        models.inference(device="gpu", cache=None, share=session).run(models.values())


def test_two_devices_cannot_have_the_same_parameters():
    plan = lower_for("gpu", models.graph())
    one, other = opened(), Device(adapters()[0])
    first = WgpuProgram(plan, one)
    with pytest.raises(ArgumentError, match="the parameter 'w' is kept by the GPU"):
        WgpuProgram(plan, other, storage=first.storage)
    first.close()


def test_closing_after_a_loss_raises_nothing(lost):
    session, device = lost
    device.lose("for a test")
    session.close()
    session.close()


def test_too_little_memory_is_told_with_what_is_in_use(monkeypatch):
    import wgpu

    device = opened()

    def full(**options):
        raise wgpu.GPUOutOfMemoryError("Out of Memory")

    monkeypatch.setattr(device._device, "create_buffer", full)
    with pytest.raises(DeviceMemoryError, match=r"has no memory left: [0-9,]+ bytes are in use"):
        device.region(64)


def test_other_errors_of_the_driver_are_not_taken_for_a_loss():
    import wgpu

    device = opened()
    with pytest.raises(wgpu.GPUError), device.guard:
        device._device.create_buffer(
            size=6, usage=wgpu.BufferUsage.MAP_READ, mapped_at_creation=True
        )
    device.check()
