"""The one place that reaches below wgpu's Python interface, to its C library: for what is called hundreds of times a step, and for what Python cannot ask for.

It is written for wgpu 0.32, which ``pyproject.toml`` pins.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

Call = tuple[Any, Any, int, int]
"""A dispatch: the pipeline's and the bind group's handle, and workgroups across and down."""


def vulkan_only() -> None:
    """Leave OpenGL out, whose loader writes to the terminal where there is no display. Nobody can once an adapter was asked for."""
    from wgpu.backends.wgpu_native import _helpers, extras  # type: ignore[import-untyped]

    if _helpers._the_instance is not None:
        return
    extras.set_instance_extras(backends=("Vulkan", "Metal", "DX12"))


class _Losses(logging.Filter):
    """Notices what wgpu has no other way to tell than its log: that a device was lost. Who uses the device is told by an error instead."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.reason = ""

    def filter(self, record: logging.LogRecord) -> bool:
        text = str(record.msg)
        if text.startswith("The WGPU device was lost"):
            self.reason = text.partition("\n")[2].strip() or self.reason
            return False
        if text == "DEVICE LOST!":
            self.count += 1
            return False
        return True


_losses = _Losses()


def notice_losses() -> None:
    """Count devices that are lost from now on; wgpu wants to be the first to ask for its logger."""
    logging.getLogger("wgpu").addFilter(_losses)


def losses() -> tuple[int, str]:
    """How many devices of the process were lost so far, and what the driver said of the last."""
    return _losses.count, _losses.reason


def unchecked_module(device: Any, text: str) -> Any:
    """A shader module without tests of indices: every index that is written here is inside by construction."""
    from wgpu.backends.wgpu_native import _api
    from wgpu.backends.wgpu_native._ffi import ffi, lib  # type: ignore[import-untyped]

    code = text.encode()
    held = ffi.new("char[]", code)
    source = ffi.new("WGPUShaderSourceWGSL *")
    source.chain.sType = lib.WGPUSType_ShaderSourceWGSL
    source.code.data, source.code.length = held, len(code)
    descriptor = ffi.new("WGPUShaderModuleDescriptor *")
    descriptor.nextInChain = ffi.cast("WGPUChainedStruct *", source)
    found = _api.libf.wgpuDeviceCreateShaderModuleTrusted(
        device._internal, descriptor, lib.WGPUShaderRuntimeChecks_None
    )
    if found == ffi.NULL:
        raise RuntimeError("the shader module could not be made")
    return _api.GPUShaderModule("", found, device)


def handle(found: Any) -> Any:
    """What the C library calls an object of wgpu."""
    return found._internal


def wait(device: Any) -> None:
    """Wait until everything that was submitted is done."""
    device._poll_wait()


def timestamp(compute_pass: Any, query: Any, number: int) -> None:
    """Have the time written down at this point of a pass."""
    compute_pass._write_timestamp(query, number)


def timestamp_period(device: Any) -> float:
    """Nanoseconds of a tick."""
    from wgpu.backends.wgpu_native._ffi import lib

    return float(lib.wgpuQueueGetTimestampPeriod(device.queue._internal))


def dispatch_all(compute_pass: Any, calls: Iterable[Call]) -> None:
    """Record dispatches; wgpu waits between those that touch the same buffer."""
    from wgpu.backends.wgpu_native._ffi import ffi, lib

    inner, null = compute_pass._internal, ffi.NULL
    pipeline_of, group_of = (
        lib.wgpuComputePassEncoderSetPipeline,
        lib.wgpuComputePassEncoderSetBindGroup,
    )
    dispatch = lib.wgpuComputePassEncoderDispatchWorkgroups
    last = None
    for pipeline, group, across, down in calls:
        if pipeline is not last:
            pipeline_of(inner, pipeline)
            last = pipeline
        group_of(inner, 0, group, 0, null)
        dispatch(inner, across, down, 1)
