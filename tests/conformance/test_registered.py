"""A device that darner does not know: the reference under another name, registered from outside, on the first tier of what every device is tried with."""

import sys
from importlib import metadata
from types import ModuleType

import numpy as np
import pytest

import darner
from darner.backends.base import known_devices, register, registry, unregister
from darner.backends.reference.backend import ReferenceBackend
from darner.cli import doctor
from darner.graph.errors import ArgumentError, NameTakenError
from tests.conformance.devices import FIRST_TIER, check_on, programs


class Toy(ReferenceBackend):
    """The oracle, by another name."""

    name = "toy"
    target = "toy"


class Installed(ModuleType):
    """The module of a package that brings backends."""

    BACKEND = Toy()
    CLASS = Toy
    WORD = "toy"


def bring(monkeypatch, *points):
    """Let packages be installed that have these entry points: names and what they stand for."""
    made = [metadata.EntryPoint(name, value, registry.GROUP) for name, value in points]
    found = metadata.entry_points

    def entry_points(**asked):
        return made if asked == {"group": registry.GROUP} else found(**asked)

    monkeypatch.setattr(metadata, "entry_points", entry_points)
    monkeypatch.setitem(sys.modules, "toy_package", Installed("toy_package"))


@pytest.fixture(params=["function", "entry point"])
def toy(request, monkeypatch):
    if request.param == "function":
        register(Toy())
    else:
        bring(monkeypatch, ("toy", "toy_package:BACKEND"))
    yield "toy"
    if "toy" in registry._loaded:  # an entry point that nobody asked for was not loaded
        unregister("toy")


@pytest.mark.parametrize(("op", "dtype"), programs(FIRST_TIER, ["f32"]))
def test_a_registered_device_passes_the_first_tier(toy, op, dtype):
    check_on(toy, op, dtype, tangents_of=1)


def model():
    g = darner.Graph("model")
    x, w = g.input("x", (3, 5)), g.parameter("w", (5, 7), init="kaiming")
    g.set_outputs([((x @ w).relu() ** 2).mean()])
    return g


def trained(device, **options):
    x = np.linspace(-1, 1, 15, dtype=np.float32).reshape(3, 5)
    with darner.build(
        model(), device=device, optimizer=darner.optim.Adam(0.1), **options
    ) as session:
        for _ in range(3):
            session.set_input("x", x)
            session.step()
        return np.array(session.get_parameter("w"))


def test_a_session_trains_on_it_as_on_the_device_it_stands_for(toy, tmp_path):
    wanted = trained("reference")
    np.testing.assert_array_equal(trained(toy), wanted)
    np.testing.assert_array_equal(trained(toy, cache=tmp_path), wanted)
    assert not any(tmp_path.iterdir())  # what has no compiled code keeps none


def test_it_is_among_the_devices_and_profiles_name_its_kernels(toy):
    assert known_devices() == ("cpu", "reference", "gpu", "cuda", "toy")
    assert "toy" in [device.name for device in darner.devices()]
    with pytest.raises(ArgumentError, match="the devices are cpu, reference, gpu, cuda, toy"):
        darner.SessionConfig(device="tpu")
    with pytest.raises(ArgumentError, match="there is no device 'toy:1'"):
        darner.SessionConfig(device="toy:1")
    with darner.build(model(), device=toy, mode="infer") as session:
        session.set_profiling(True)
        session.run({"x": np.ones((3, 5), np.float32)})
        found = session.profile()
    assert not found.measured
    assert found.machine.name == "cpu"


def test_names_are_taken_once_and_darners_own_stay_its_own(monkeypatch):
    class Other(Toy):
        name = "cpu"

    with pytest.raises(NameTakenError, match="there is a device 'cpu' already"):
        register(Other())
    bring(monkeypatch, ("cpu", "toy_package:BACKEND"))
    assert known_devices() == ("cpu", "reference", "gpu", "cuda")
    assert registry.backend_of("cpu").target == "cpu"
    register(Toy())
    try:
        with pytest.raises(NameTakenError, match="there is a device 'toy' already"):
            register(Toy())
    finally:
        unregister("toy")
    with pytest.raises(ArgumentError, match="no backend 'toy' is registered"):
        unregister("toy")
    with pytest.raises(ArgumentError, match="the device 'cpu' is darner's own"):
        unregister("cpu")


def test_what_is_no_backend_is_not_registered():
    class Colon(Toy):
        name = "toy:1"

    for wrong, told in (
        (Toy, "derived from Backend"),
        ("toy", "the object is 'toy'"),
        (Colon(), "a name has no colon"),
    ):
        with pytest.raises(ArgumentError, match=told):
            register(wrong)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (
            "no_such_package.backend:BACKEND",
            "ModuleNotFoundError: No module named 'no_such_package'",
        ),
        ("toy_package:NOTHING", "AttributeError"),
        ("toy_package:CLASS", "derived from Backend"),
        ("toy_package:WORD", "is 'toy'"),
        ("toy_package:BACKEND", "calls itself 'toy'"),
    ],
)
def test_a_broken_package_is_named_when_its_device_is_asked_for_and_not_before(
    monkeypatch, value, told
):
    bring(monkeypatch, ("broken", value))
    assert known_devices() == ("cpu", "reference", "gpu", "cuda", "broken")
    assert "broken" not in [device.name for device in darner.devices()]
    trained("reference")
    with pytest.raises(ArgumentError) as caught:
        darner.build(model(), device="broken")
    assert told in str(caught.value)
    assert f"the backend of the device 'broken' ({value})" in str(caught.value)


def test_the_doctor_tries_what_packages_bring_and_shows_what_is_broken(monkeypatch):
    class Optional(Toy):
        required = False

    monkeypatch.setattr(Installed, "BACKEND", Optional())
    bring(monkeypatch, ("toy", "toy_package:BACKEND"), ("broken", "toy_package:NOTHING"))
    try:
        found = doctor.examination()
    finally:
        unregister("toy")
    outcomes = {about["name"]: about["outcome"] for about in found["gpus"]}
    assert outcomes["toy"] == "works"
    assert "the backend of the device 'broken' (toy_package:NOTHING)" in outcomes["broken"]
    assert found["problems"] == []
    assert any(line.startswith("device toy") for line in doctor.lines(found))


def test_a_device_that_two_packages_bring_is_neither_of_them(monkeypatch):
    bring(monkeypatch, ("toy", "toy_package:BACKEND"), ("toy", "other_package:BACKEND"))
    with pytest.raises(ArgumentError, match="toy_package:BACKEND, other_package:BACKEND"):
        darner.SessionConfig(device="toy")
