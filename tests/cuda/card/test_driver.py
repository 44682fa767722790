"""What a card's driver does with the calls that only it can carry out: copies, launches with attributes, tensor maps, object code on disk."""

import numpy as np
import pytest

import darner
from darner import DeviceMemoryError
from darner.backends.base.cache import ObjectCache
from darner.backends.cuda.opening import machines, opened
from tests.cuda.card import needs_card

pytestmark = needs_card


def test_every_check_of_the_driver_passes():
    from bench.cuda_check import checks_of_driver

    for name, check in checks_of_driver("cuda"):
        try:
            check()
        except Exception as error:
            raise AssertionError(f"{name}: {error}") from error


def test_the_machine_is_described():
    machine = machines()[0]
    assert machine.capability >= (7, 0)
    assert machine.arch.startswith(f"sm_{machine.capability[0]}")
    assert machine.processors > 0
    assert machine.driver >= 12030
    assert machine.most_shared >= 48 << 10
    assert opened().machine == machine


def test_more_memory_than_there_is_says_how_much_is_in_use_and_leaves_all_well():
    device = opened()
    with pytest.raises(
        DeviceMemoryError, match=r"no memory left for .*, a test: .* are in use here"
    ):
        device.region(2 * device.machine.memory, "a test")
    region = device.region(1024)
    device.write(region, np.arange(256, dtype=np.int32))
    assert device.read(region).view(np.int32).tolist() == list(range(256))
    device.give_back(region)


def test_object_code_is_kept_on_disk_and_runs_again(tmp_path):
    from bench.cuda_check import adding

    cache, device = ObjectCache(tmp_path), opened()
    stage = adding("cuda", 5.0)
    (_, code), *_ = device.kernels([stage], cache).values()
    device._kernels.clear()
    assert cache.size() > len(code) > 0
    (_, again), *_ = device.kernels([stage], cache).values()
    assert again == code


def test_the_doctor_finds_it_and_it_works(capsys):
    from darner.cli import main

    main(["doctor"])
    told = capsys.readouterr().out
    assert "device cuda" in told
    assert machines()[0].name in told
    assert "cuda" in [device.name for device in darner.devices()]
