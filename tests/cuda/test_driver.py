"""The driver's calls, over a driver in Python: what is called with what, what becomes of errors, and that nothing is left."""

import ctypes
import gc
import os
import re
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import darner
from darner import ArgumentError, DeviceLostError, DeviceMemoryError, UnsupportedError, optim
from darner.backends.base.cache import ObjectCache
from darner.backends.base.lowering import lower_for
from darner.backends.cuda import opening
from darner.backends.cuda.driver import library
from darner.backends.cuda.driver.library import Library, NoDriverError
from darner.backends.cuda.interface import DriverError
from darner.backends.cuda.opening import opened
from darner.backends.cuda.program import CudaProgram
from darner.backends.cuda.stage import Stage, TensorMap
from darner.codegen.simt.dispatch import Binding
from darner.graph.errors import InternalError
from tests.cuda import fake_driver, promises
from tests.leaks import models
from tests.session import on_devices


def test_training_has_the_numbers_of_the_cpu(driver):
    on_devices.test_training_has_the_numbers_of_the_cpu("cuda", "adamw")


def test_a_failed_step_changes_nothing(driver):
    on_devices.test_a_failed_step_changes_nothing_and_names_op_label_line_and_place(
        "cuda", "embedding"
    )


def test_inputs_arrive_and_states_stay(driver):
    on_devices.test_inputs_of_all_sizes_arrive_and_change("cuda")
    on_devices.test_steps_that_are_not_waited_for_have_their_own_inputs("cuda")
    on_devices.test_states_that_take_each_others_values_swap_them("cuda")


def test_sessions_share_what_they_have_in_common(driver):
    on_devices.test_training_and_inference_share_their_parameters_on_the_device("cuda")
    on_devices.test_inference_computes_what_depends_on_parameters_once_and_anew_when_they_change(
        "cuda"
    )


def test_a_session_waits_for_the_steps_of_another_on_the_same_parameters_alone(driver):
    _, first = on_devices.trained("cuda", 3, optim.SGD(0.1))
    options = {"device": "cuda", "mode": "infer", "cache": None}
    values = {"x": on_devices.IMAGES, "labels": on_devices.LABELS}
    with darner.build(on_devices.classifier(), share=first, **options) as second:
        second.run(values)
        first.step()
        driver.calls.clear()
        second.run(values)
        assert driver.calls.count("cuStreamWaitEvent") == 1
        driver.calls.clear()
        second.run(values)
        assert "cuStreamWaitEvent" not in driver.calls
    first.close()


def test_a_step_is_one_launch_of_a_graph_and_small_inputs_are_one_copy(driver):
    _, session = on_devices.trained("cuda", 3, optim.SGD(0.1))
    driver.calls.clear()
    session.step()
    assert [name for name in driver.calls if "Ctx" not in name] == ["cuGraphLaunch"]
    driver.calls.clear()
    session.run({"x": on_devices.IMAGES, "labels": on_devices.LABELS})
    assert driver.calls.count("cuMemcpyHtoDAsync_v2") == 1
    assert driver.calls.count("cuGraphLaunch") == 1
    session.close()


def test_the_second_build_neither_writes_nor_compiles_a_kernel(driver, tmp_path, monkeypatch):
    compiled = []
    monkeypatch.setattr(
        "darner.backends.cuda.driver.context.link",
        lambda library, ptx, name: compiled.append(name) or b"cubin " + ptx.encode(),
    )
    _, session = on_devices.trained("cuda", 2, optim.SGD(0.1), cache=tmp_path)
    session.close()
    assert compiled
    compiled.clear()
    opening._open.clear()  # as a new process has none of it
    promises.test_the_second_build_writes_no_kernel("cuda", tmp_path, monkeypatch)
    assert compiled == []


def test_nothing_is_left_of_sessions_that_are_gone(driver):
    promises.test_sessions_that_come_and_go_leave_nothing_on_the_device("cuda", 3)
    gc.collect()
    device = opened()
    assert driver.held == device.bytes_held == 0
    kinds = ("pinned", "graph", "exec", "link")
    assert {kind: driver.alive[kind] for kind in kinds} == dict.fromkeys(kinds, 0)
    assert driver.alive["stream"] == 1  # the device's own
    assert driver._contexts == []


def test_object_code_is_compiled_once_and_kept_by_its_source(driver, tmp_path):
    cache = ObjectCache(tmp_path)
    stages = [Stage(f"; source {i}", "kernel", 32, (1, 1, 1), ()) for i in range(5)]
    first = opened().kernels(stages, cache)
    assert driver.calls.count("cuLinkComplete") == 5
    assert first[stages[2].digest][1] == b"cubin ; source 2"
    opening._open.clear()
    again = opened().kernels(stages, cache)
    assert driver.calls.count("cuLinkComplete") == 5
    assert {key: code for key, (_, code) in again.items()} == {
        key: code for key, (_, code) in first.items()
    }
    opened().kernels(stages, cache)
    assert driver.calls.count("cuModuleLoadData") == 10


def test_kernels_that_are_not_kept_are_taken_off_the_device(driver, monkeypatch):
    monkeypatch.setattr("darner.backends.cuda.device.KEPT_KERNELS", 2)
    opened().kernels([Stage(f"; source {i}", "kernel", 32, (1, 1, 1), ()) for i in range(5)])
    gc.collect()
    assert driver.alive["module"] == 2


# ----------------------------------------------------------------------------- launches


def launched(driver, stage, nbytes=256):
    """What the driver was told of a launch."""
    device = opened()
    region = device.region(nbytes)
    kernel = device.kernels([stage])[stage.digest][0]
    with device.guard:
        maps = [device.context.tensor_map(one, region.buffer.address) for one in stage.maps]
        driver.launches.clear()
        launch = kernel.launch(stage, [(region.buffer.address, nbytes)], maps)
        launch.start(device.transfers.stream)
    return driver.launches


def test_a_launch_says_its_grid_its_shared_memory_and_its_attributes(driver):
    stage = Stage(
        *("; some", "kernel", 384, (6, 2, 1), (Binding("operand"),)),
        shared=200 << 10,
        cluster=(2, 1, 1),
        early=True,
        cooperative=True,
    )
    asked, told = launched(driver, stage)
    assert asked == (8, 200 << 10)
    assert told == (
        (6, 2, 1),
        (384, 1, 1),
        200 << 10,
        {4: (2, 1, 1), 2: (1, 0, 0)},
    )


def test_a_launch_that_starts_early_says_so_where_it_does_not_have_the_card_to_itself(driver):
    stage = Stage("; early", "kernel", 64, (3, 1, 1), (Binding("operand"),), early=True)
    assert launched(driver, stage) == [((3, 1, 1), (64, 1, 1), 0, {6: (1, 0, 0)})]


def test_a_plain_launch_has_no_attributes(driver):
    told = launched(driver, Stage("; plain", "kernel", 64, (3, 1, 1), (Binding("operand"),)))
    assert told == [((3, 1, 1), (64, 1, 1), 0, {})]


@pytest.mark.parametrize(
    ("groups", "shared", "cluster", "most"),
    [(265, 0, (1, 1, 1), 264), (133, 200 << 10, (1, 1, 1), 132), (132, 0, (4, 1, 1), 120)],
)
def test_blocks_that_wait_for_each_other_and_are_too_many_are_refused(
    driver, groups, shared, cluster, most
):
    stage = Stage(
        *("; some", "kernel", 256, (groups, 1, 1), (Binding("operand"),)),
        shared=shared,
        cluster=cluster,
        cooperative=True,
    )
    with pytest.raises(InternalError, match=rf"has {groups} blocks .* holds {most} at a time"):
        launched(driver, stage)
    launched(driver, replace(stage, groups=(most, 1, 1)))


def test_a_tensor_map_is_encoded_as_it_is_described(driver):
    about = TensorMap(Binding("operand"), 512, "bf16", (64, 100), (1536,), (64, 128), swizzle=128)
    device = opened()
    found = device.context.tensor_map(about, 1 << 20)
    assert found == b"\7" * 128
    (told,) = driver.launches
    assert told == (
        *("map", (9, 2, (1 << 20) + 512), (64, 100), (1536,), (64, 128), (1, 1)),
        *(0, 3, 3, 0),
    )
    with pytest.raises(InternalError, match="no elements of i4"):
        device.context.tensor_map(TensorMap(Binding("operand"), 0, "i4", (8,), (), (8,)), 0)


# ----------------------------------------------------------------------------- errors


def test_an_error_names_the_call_its_arguments_and_cudas_words(driver):
    driver.failing["cuStreamCreate"] = 1
    with pytest.raises(InternalError) as caught:
        opened()
    text = str(caught.value)
    assert "'Fake H200'" in text
    assert "cuStreamCreate(..., 1) failed: CUDA_ERROR_INVALID_VALUE (1): invalid argument" in text


@pytest.mark.parametrize(("code", "kind"), [(2, DeviceMemoryError), (46, darner.RunError)])
def test_a_device_that_cannot_be_opened_says_why_and_can_be_tried_again(driver, code, kind):
    driver.failing["cuDevicePrimaryCtxRetain"] = code
    told = (
        rf"the GPU 'Fake H200' cannot be opened: cuDevicePrimaryCtxRetain\(.*\({code}\).*nvidia-smi"
    )
    with pytest.raises(kind, match=told):
        models.training(device="cuda", cache=None)
    driver.failing.clear()
    models.learned(models.training(device="cuda", cache=None), 1)


def test_an_error_of_a_launch_names_the_op_the_line_the_grid_and_every_address(driver):
    session = models.training(device="cuda", cache=None)
    driver.failing["cuLaunchKernelEx"] = 1
    with pytest.raises(InternalError) as caught:
        models.learned(session, 1)
    text = str(caught.value)
    assert re.search(
        r"cuLaunchKernelEx\(oracle: grid \(1, 1, 1\), 32 threads; operand 0 at 0x", text
    )
    assert "(models.py:" in text
    del driver.failing["cuLaunchKernelEx"]
    models.learned(session, 2)
    session.close()


def test_code_that_does_not_assemble_is_shown_with_the_assemblers_words(driver):
    with pytest.raises(InternalError) as caught:
        opened().kernels([Stage("; broken", "my_kernel", 32, (1, 1, 1), ())])
    text = str(caught.value)
    assert "cuLinkAddData(" in text
    assert "of 'my_kernel' failed: CUDA_ERROR_INVALID_PTX (218)" in text
    assert "ptxas: line 7: what is this?" in text
    assert driver.alive["link"] == 0


def test_a_graph_that_cannot_be_recorded_leaves_the_stream_usable(driver):
    _, session = on_devices.trained("cuda", 1, optim.SGD(0.1))
    driver.failing["cuGraphInstantiateWithFlags"] = 999
    with pytest.raises(DeviceLostError, match=r"cuGraphInstantiateWithFlags\("):
        session.step()
    assert driver.alive["graph"] == 0


def test_too_little_memory_says_how_much_for_what_and_what_is_in_use(driver):
    device = opened()
    held = device.region(100 << 20, "a test")
    with pytest.raises(DeviceMemoryError) as caught:
        device.region(200 << 20, "values of a step")
    text = str(caught.value)
    assert "the GPU 'Fake H200' has no memory left for 200.0 MiB, values of a step" in text
    assert "100.0 MiB are in use here, 100.0 MiB of 256.0 MiB in all" in text
    assert "a smaller batch" in text
    assert isinstance(caught.value, darner.OutOfMemoryError)
    device.give_back(held)
    device.region(200 << 20)


def test_a_build_that_finds_no_memory_leaves_none_behind_and_can_be_tried_again(driver):
    driver.room = 60_000
    for _ in range(2):
        with pytest.raises(
            DeviceMemoryError, match=r"no memory left for 36\.0 KiB, state 'w/mean'"
        ):
            models.learned(models.training(device="cuda", cache=None), 1)
        gc.collect()
        assert driver.held == 0
    driver.room = 1 << 28
    session = models.training(device="cuda", cache=None)
    models.learned(session, 2)
    session.close()


@pytest.mark.parametrize("code", [700, 999])
def test_after_a_fault_of_a_kernel_every_use_says_that_the_device_is_lost(driver, code, tmp_path):
    session = models.training(device="cuda", cache=None)
    models.learned(session, 2)
    session.save_checkpoint(tmp_path / "checkpoint")
    saved = (tmp_path / "checkpoint").read_bytes()
    session.step()
    driver.sticky = code
    uses = (
        session.read_loss,
        session.step,
        lambda: session.get_parameter("w"),
        lambda: session.save_checkpoint(tmp_path / "checkpoint"),
        lambda: models.learned(models.training(device="cuda", cache=None), 1),
    )
    for use in uses:
        with pytest.raises(DeviceLostError) as caught:
            use()
        assert "the GPU 'Fake H200' was lost" in str(caught.value)
        assert f"({code}): " in str(caught.value)
        assert "in a new process only" in str(caught.value)
    assert (tmp_path / "checkpoint").read_bytes() == saved
    session.close()
    session.close()


def test_a_forked_process_is_told_and_touches_nothing_of_its_parents(driver, monkeypatch):
    session = models.training(device="cuda", cache=None)
    models.learned(session, 2)
    monkeypatch.setattr(library.ORIGIN, "_generation", -1)  # as a child finds it
    driver.calls.clear()
    with pytest.raises(
        darner.ForkError, match=r"NVIDIA's driver works with threads of the process"
    ):
        session.step()
    session.close()
    del session
    gc.collect()
    assert driver.calls == []


def test_a_function_that_the_driver_has_not_asks_for_a_newer_one(driver):
    device = opened()
    whole = device.context._library._functions
    del whole.cuMemsetD8Async
    device.context._library._found.pop("cuMemsetD8Async", None)
    with pytest.raises(UnsupportedError, match=r"cuMemsetD8Async.*too old.*install a newer driver"):
        device.region(16)


# ----------------------------------------------------------------------------- which devices there are


def test_devices_are_listed_and_told_by_number_or_name(driver):
    driver.devices = 2
    listed = [one for one in darner.devices() if one.name.startswith("cuda")]
    assert [(one.name, one.title, one.driver) for one in listed] == [
        ("cuda", "Fake H200", "CUDA 13.0"),
        ("cuda:1", "Fake H201", "CUDA 13.0"),
    ]
    assert listed[0].limits == {"memory": 1 << 28, "processors": 132, "shared-memory": 227 << 10}
    assert opened("cuda:1") is opened("cuda:h201") is not opened()
    machine = opened("cuda:1").machine
    assert (machine.name, machine.arch, machine.capability) == ("Fake H201", "sm_90a", (9, 0))
    assert (machine.l2, machine.driver, machine.emulated) == (50 << 20, 13000, False)
    with pytest.raises(
        ArgumentError, match="no NVIDIA GPU 7: this machine has 2 NVIDIA GPUs; cuda"
    ):
        opened("cuda:7")
    with pytest.raises(ArgumentError, match="no NVIDIA GPU is called 'a100'"):
        opened("cuda:a100")


@pytest.mark.parametrize(
    ("major", "version", "says"),
    [
        (6, 13000, r"compute capability 6\.0, and code is made for 7\.0 and newer; device='gpu'"),
        (9, 11080, r"is for CUDA 11\.8, which is too old; install 545"),
    ],
)
def test_what_is_too_old_is_listed_and_refused(driver, monkeypatch, major, version, says):
    monkeypatch.setitem(fake_driver.ATTRIBUTES, 75, major)
    driver.version = version
    assert "cuda" in [one.name for one in darner.devices()]
    with pytest.raises(UnsupportedError, match=says):
        opened()


def test_gpu_means_this_driver_where_it_works_and_the_session_says_so(driver):
    with models.training(device="gpu", cache=None) as session:
        assert session.device == "cuda"
        assert "on cuda" in repr(session)
        models.learned(session, 1)
        assert session.plan().target == "cuda"
    assert not any(one.name == "gpu" for one in darner.devices())
    assert darner.SessionConfig(device="gpu:0").device == "gpu:0"
    assert darner.SessionConfig(device="gpu", tune=True).device == "cuda"


def test_gpu_means_any_gpu_where_this_driver_is_missing_or_too_old(driver, no_driver):
    assert darner.SessionConfig(device="gpu").device == "gpu"


def test_gpu_does_not_mean_a_card_that_is_too_old(driver):
    driver.version = 11080
    assert darner.SessionConfig(device="gpu").device == "gpu"


def test_two_devices_cannot_have_the_same_parameters(driver):
    driver.devices = 2
    plan = lower_for("cuda", models.graph())
    first = CudaProgram(plan, opened("cuda"))
    with pytest.raises(ArgumentError, match="the parameter 'w' is kept by the GPU 'Fake H200'"):
        CudaProgram(plan, opened("cuda:1"), storage=first.storage)
    first.close()


@pytest.fixture
def no_driver(monkeypatch, no_devices):
    def missing():
        raise NoDriverError("there is no NVIDIA driver (libcuda.so.1: not found)")

    monkeypatch.setattr(opening, "library", missing)


def test_without_a_driver_there_is_no_device_and_the_error_says_what_would_help(no_driver):
    assert not any(one.name.startswith("cuda") for one in darner.devices())
    with pytest.raises(ArgumentError) as caught:
        models.training(device="cuda", cache=None).step()
    text = str(caught.value)
    assert "there is no NVIDIA GPU: there is no NVIDIA driver (libcuda.so.1: not found)" in text
    assert "install NVIDIA's driver, 545 or newer; device='gpu' takes any GPU" in text


def test_a_driver_that_finds_no_card_says_so(monkeypatch, no_devices):
    from tests.cuda.fake_driver import FakeDriver

    fake = FakeDriver(devices=0)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: fake.functions())
    library.library.cache_clear()
    try:
        with pytest.raises(
            NoDriverError, match=r"cuInit\(0\) failed: CUDA_ERROR_NO_DEVICE \(100\)"
        ):
            library.library()
    finally:
        library.library.cache_clear()


def test_the_doctor_names_what_is_missing(no_driver, capsys):
    from darner.cli import main

    main(["doctor"])
    told = capsys.readouterr().out
    assert re.search(r"device cuda +none \(there is no NVIDIA driver", told)


def test_importing_darner_loads_no_driver():
    code = (
        "import sys, darner; print([n for n in sys.modules if 'backends.cuda' in n or 'wgpu' in n])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ}
    )
    assert run.stdout.strip() == "[]"


def test_an_unknown_error_has_its_number():
    functions = SimpleNamespace(
        cuStreamDestroy_v2=lambda stream: 12345,
        cuGetErrorName=lambda code, out: 1,
        cuGetErrorString=lambda code, out: 1,
    )
    with pytest.raises(DriverError, match=r"cuStreamDestroy\(0x10\) failed: .*\(12345\)"):
        Library(functions).call("cuStreamDestroy_v2", ctypes.c_void_p(16))


def test_a_context_that_is_current_is_given_back_after_an_error(driver):
    device = opened()
    with pytest.raises(ValueError, match="of the user"), device.guard:
        raise ValueError("of the user")
    driver.failing["cuMemAlloc_v2"] = 1
    with pytest.raises(InternalError):
        device.region(16)
    assert driver._contexts == []


def test_memory_comes_back_as_it_was_sent(driver):
    device = opened()
    region = device.region(100)
    assert not device.read(region).any()
    device.write(region, np.arange(25, dtype=np.int32))
    assert device.read(region).view(np.int32).tolist() == list(range(25))
    assert device.machine.memory == driver.room


def test_rates_are_measured_by_work_that_is_counted(driver):
    from darner.backends.cuda.rates import rates_of

    device = opened()
    found = rates_of(device)
    # The driver's clock goes on by one microsecond with each call that is timed.
    assert found.bandwidth == pytest.approx(2 * (driver.room // 64) / 1e-6, rel=1e-3)
    assert found.flops == pytest.approx(2 * 16 * 1024 * 256 * 8 * 132 / 1e-6, rel=1e-3)
    assert device.bytes_held == 0


def test_what_measures_products_computes_them():
    from darner.backends.cuda.rates import products

    device = opened("cuda:emulated")
    stage = products(device.machine, 2)
    region = device.region(4 * 512, "a test")
    given = np.linspace(0.0, 0.5, 512, dtype=np.float32)
    device.write(region, given)
    kernel, _ = device.kernels([stage])[stage.digest]
    with device.guard:
        launch = kernel.launch(stage, [(region.buffer.address, region.nbytes)], [])
        launch.start(device.transfers.stream)
    limit = 16 * given.astype(np.float64) / (1 - given.astype(np.float64))
    np.testing.assert_allclose(device.read(region).view(np.float32), limit, rtol=1e-4)
    device.give_back(region)
