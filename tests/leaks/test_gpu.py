"""Sessions on a GPU come and go, and its memory is what it was before.

A thousand of them, by hand: ``python -m tests.leaks.test_gpu 1000``.
"""

import gc
import json
import sys
import weakref

import pytest

from tests.gpu import needs_gpu
from tests.leaks import models, process

pytestmark = needs_gpu


def held() -> dict[str, int]:
    """What the process has of the device: bytes and live objects, as wgpu and its C library count them."""
    import wgpu

    from darner.backends.wgpu.device import opened

    gc.collect()
    opened().wait()
    kinds = ("Buffer", "BindGroup", "CommandBuffer", "CommandEncoder", "QuerySet", "ShaderModule")
    python = wgpu.diagnostics.object_counts.get_dict()
    native = wgpu.diagnostics.wgpu_native_counts.get_dict()
    found = {f"python {kind}": python[kind]["count"] for kind in kinds}
    found |= {f"native {kind}": native[kind]["count"] for kind in kinds if kind in native}
    return {**found, "bytes": opened().bytes_held, "memory": python["total"]["resource_mem"]}


def turn(number: int) -> None:
    """Build, use and drop two sessions; some are closed, some shared, some in cycles, some never run."""
    trained = models.training(device="gpu", cache=None)
    models.learned(trained, 2)
    predicts = models.inference(
        device="gpu", cache=None, **({"share": trained} if number % 2 else {})
    )
    if number % 5:
        predicts.run(models.values())
    if number % 3 == 0:
        trained.close()
        predicts.close()
    elif number % 3 == 1:
        trained.itself, predicts.itself = trained, predicts


def many(count: int, held=held) -> tuple[dict[str, int], dict[str, int]]:
    """What is held after the first turns, one of each kind, and after so many sessions more."""
    for number in range(6):
        turn(number)
    before = held()
    for number in range(-(-count // 2)):
        turn(number)
    return before, held()


def test_sessions_that_come_and_go_leave_nothing_on_the_device():
    before, after = many(24)
    assert after == before


def test_a_session_gives_its_memory_back_with_its_last_reference():
    turn(0)
    before = held()
    session = models.training(device="gpu", cache=None)
    models.learned(session, 1)
    assert held()["bytes"] > before["bytes"]
    program = weakref.ref(session._runner.last.program)
    gc.disable()  # no cycle leads back to it: nothing waits for a collection
    try:
        del session
        assert program() is None
        assert held_bytes() == before["bytes"]
    finally:
        gc.enable()


def held_bytes() -> int:
    """The bytes alone, without a collection."""
    from darner.backends.wgpu.device import opened

    return opened().bytes_held


def test_closing_gives_everything_back_but_parameters():
    turn(0)
    before = held()["bytes"]
    session = models.training(device="gpu", cache=None)
    models.learned(session, 1)
    sizes = [array.nbytes for array in session._values.arrays.values()]
    session.close()
    assert held_bytes() - before <= sum(-(-size // 4) * 4 for size in sizes)
    del session
    assert held_bytes() == before


def test_a_value_that_outlives_its_session_can_still_be_read():
    session = models.inference(device="gpu", cache=None)
    view = session.run(models.values(), copy=False)["prediction"]
    wanted = view.copy()
    session.close()
    del session
    gc.collect()
    with models.inference(device="gpu", cache=None) as other:
        other.run(models.values(1))
    assert (view == wanted).all()


@pytest.mark.parametrize("count", [40])
def test_steps_make_nothing_that_stays(count):
    with models.training(device="gpu", cache=None) as session:
        models.learned(session, 3)
        before = held()
        models.learned(session, count)
        assert held() == before


def main() -> None:
    """Print what is held before and after, the process's own memory too."""
    samples = many(int(sys.argv[1]), lambda: {**held(), "resident": process.resident()})
    sys.stdout.write("\n".join(map(json.dumps, samples)) + "\n")


if __name__ == "__main__":
    main()
