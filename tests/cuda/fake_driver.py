"""libcuda in Python: the functions that darner calls, on memory of the process, with the kernels of ``oracle``.

So all of ``darner/backends/cuda/driver`` runs on any machine: what it hands to a function is what the function gets. It says of every call in which order it came, and
fails where it is told to.
"""

import ctypes
import itertools
from types import SimpleNamespace

from darner.ops.faults import can_fail
from tests.cuda import oracle

ERRORS = {
    1: ("CUDA_ERROR_INVALID_VALUE", "invalid argument"),
    2: ("CUDA_ERROR_OUT_OF_MEMORY", "out of memory"),
    100: ("CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"),
    218: ("CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"),
    700: ("CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"),
    999: ("CUDA_ERROR_UNKNOWN", "unknown error"),
}
ATTRIBUTES = {1: 1024, 16: 132, 38: 50 << 20, 75: 9, 76: 0, 97: 227 << 10}
MEMORY = 1 << 28


def value(argument):
    """A number, of Python or of C."""
    found = getattr(argument, "value", argument)
    return 0 if found is None else found


class FakeDriver:
    """A driver with one device, or more.

    Attributes:
        calls: the names of all calls, in order.
        failing: codes that functions return, by name; 0 or absent where they work.
        sticky: the code that every call returns from now on, 0 while all is well.
        alive: handles that were made and not freed, by kind.
    """

    def __init__(self, devices=1, memory=MEMORY):
        self.devices, self.room, self.version = devices, memory, 13000
        self.calls, self.failing, self.sticky = [], {}, 0
        self.alive = {}
        self.launches = []
        self._numbers = itertools.count(1)
        self._memory, self._objects, self._recording, self._contexts = {}, {}, {}, []
        self._events_of = {}

    def functions(self):
        """What ctypes would have loaded."""
        names = [name for name in dir(self) if name.startswith("cu")]
        return SimpleNamespace(**{name: self._function(name) for name in names})

    def _function(self, name):
        def call(*arguments):
            if name.startswith("cuGetError"):
                return getattr(self, name)(*arguments)
            self.calls.append(name)
            code = self.sticky or self.failing.get(name, 0)
            return code or getattr(self, name)(*arguments) or 0

        return call

    def _new(self, kind, about=None):
        number = 0x1000 * next(self._numbers)
        self._objects[number] = about
        self.alive[kind] = self.alive.get(kind, 0) + 1
        return number

    def _end(self, kind, handle):
        del self._objects[value(handle)]
        self.alive[kind] -= 1

    def _do(self, stream, work):
        found = self._recording.get(value(stream))
        if found is None:
            work()
        else:
            found.append(work)

    # ------------------------------------------------------------- devices

    def cuInit(self, flags):
        return 0 if self.devices else 100

    def cuDriverGetVersion(self, out):
        out._obj.value = self.version

    def cuGetErrorName(self, code, out):
        if code not in ERRORS:
            return 1
        out._obj.value = ERRORS[code][0].encode()
        return 0

    def cuGetErrorString(self, code, out):
        if code not in ERRORS:
            return 1
        out._obj.value = ERRORS[code][1].encode()
        return 0

    def cuDeviceGetCount(self, out):
        out._obj.value = self.devices

    def cuDeviceGet(self, out, number):
        out._obj.value = number

    def cuDeviceGetName(self, room, size, device):
        room.value = f"Fake H{200 + device}".encode()

    def cuDeviceGetAttribute(self, out, which, device):
        out._obj.value = ATTRIBUTES[which]

    def cuDeviceTotalMem_v2(self, out, device):
        out._obj.value = self.room

    def cuDevicePrimaryCtxRetain(self, out, device):
        out._obj.value = self._new("context")

    def cuCtxPushCurrent_v2(self, context):
        self._contexts.append(value(context))

    def cuCtxPopCurrent_v2(self, out):
        out._obj.value = self._contexts.pop()

    def cuCtxSynchronize(self):
        return 0

    # ------------------------------------------------------------- memory

    @property
    def held(self):
        return sum(len(room) for room in self._memory.values())

    def cuMemGetInfo_v2(self, free, total):
        free._obj.value, total._obj.value = self.room - self.held, self.room

    def cuMemAlloc_v2(self, out, nbytes):
        assert self._contexts, "no context is current"
        if self.held + nbytes > self.room:
            return 2
        room = (ctypes.c_ubyte * (nbytes + 256))()
        address = ctypes.addressof(room)
        address += -address % 256
        ctypes.memset(address, 0xFF, nbytes)
        self._memory[address] = room
        out._obj.value = address
        return 0

    def cuMemFree_v2(self, address):
        assert self._contexts, "no context is current"
        del self._memory[value(address)]

    def cuMemHostAlloc(self, out, nbytes, flags):
        room = (ctypes.c_ubyte * nbytes)()
        address = ctypes.addressof(room)
        self._objects[address] = room
        self.alive["pinned"] = self.alive.get("pinned", 0) + 1
        out._obj.value = address

    def cuMemFreeHost(self, address):
        self._end("pinned", address)

    def _copy(self, target, source, nbytes, stream):
        self._do(stream, lambda: ctypes.memmove(value(target), value(source), nbytes))

    cuMemcpyHtoDAsync_v2 = cuMemcpyDtoHAsync_v2 = cuMemcpyDtoDAsync_v2 = _copy

    def cuMemsetD8Async(self, address, byte, nbytes, stream):
        self._do(stream, lambda: ctypes.memset(value(address), byte, nbytes))

    # ------------------------------------------------------------- streams

    def cuStreamCreate(self, out, flags):
        out._obj.value = self._new("stream")

    def cuStreamDestroy_v2(self, stream):
        self._end("stream", stream)

    def cuStreamSynchronize(self, stream):
        assert value(stream) in self._objects

    def cuStreamWaitEvent(self, stream, event, flags):
        assert value(event) in self._objects
        # Whoever waits for a stream that records becomes part of what is recorded.
        recording = self._events_of.get(value(event))
        if any(recording is other for other in self._recording.values()):
            self._recording[value(stream)] = recording

    def cuStreamBeginCapture_v2(self, stream, mode):
        assert mode == 2
        self._recording[value(stream)] = []

    def cuStreamEndCapture(self, stream, out):
        recorded = self._recording[value(stream)]
        self._recording = {k: v for k, v in self._recording.items() if v is not recorded}
        out._obj.value = self._new("graph", recorded)

    def cuGraphGetNodes(self, graph, nodes, count):
        count._obj.value = len(self._objects[value(graph)])

    def cuGraphInstantiateWithFlags(self, out, graph, flags):
        out._obj.value = self._new("exec", self._objects[value(graph)])

    def cuGraphDestroy(self, graph):
        self._end("graph", graph)

    def cuGraphExecDestroy(self, graph):
        self._end("exec", graph)

    def cuGraphLaunch(self, graph, stream):
        for work in self._objects[value(graph)]:
            work()

    def cuEventCreate(self, out, flags):
        out._obj.value = self._new("event")

    def cuEventDestroy_v2(self, event):
        self._end("event", event)

    def cuEventRecord(self, event, stream):
        assert value(stream) in self._objects
        self._objects[value(event)] = next(self._numbers)
        self._events_of[value(event)] = self._recording.get(value(stream))

    def cuEventSynchronize(self, event):
        assert self._objects[value(event)] is not None

    def cuEventElapsedTime(self, out, first, last):
        out._obj.value = (self._objects[value(last)] - self._objects[value(first)]) * 1e-3

    # ------------------------------------------------------------- code

    def cuLinkCreate_v2(self, count, keys, values, out):
        log = values[list(keys).index(5)]
        out._obj.value = self._new("link", {"log": log})

    def cuLinkAddData_v2(self, state, kind, data, size, name, *options):
        about = self._objects[value(state)]
        if b"broken" in data:
            ctypes.memmove(about["log"], b"ptxas: line 7: what is this?\0", 29)
            return 218
        assert kind == 1
        assert size == len(data)
        about["code"] = b"cubin " + data.rstrip(b"\0")
        return 0

    def cuLinkComplete(self, state, out, size):
        about = self._objects[value(state)]
        about["room"] = ctypes.create_string_buffer(about["code"])
        out._obj.value = ctypes.addressof(about["room"])
        size._obj.value = len(about["code"])

    def cuLinkDestroy(self, state):
        self._end("link", state)

    def cuModuleLoadData(self, out, code):
        out._obj.value = self._new("module", ctypes.string_at(value(code)).decode())

    def cuModuleUnload(self, module):
        self._end("module", module)

    def cuModuleGetFunction(self, out, module, name):
        out._obj.value = value(module) + 1
        self._objects[value(module) + 1] = self._objects[value(module)]

    def cuFuncSetAttribute(self, function, which, number):
        self.launches.append((which, number))

    def cuFuncGetAttribute(self, out, which, function):
        out._obj.value = 0

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, out, function, threads, shared):
        out._obj.value = 2 if shared < 100 << 10 else 1

    def cuOccupancyMaxActiveClusters(self, out, function, config):
        out._obj.value = 30

    def cuLaunchKernelEx(self, config, function, arguments, extra):
        config = config._obj
        source = self._objects[value(function)].removeprefix("cubin ")
        spec = oracle.SPECS.get(source)
        attributes = [config.attributes[i] for i in range(config.count)]
        told = {one.number: tuple(one.values)[:3] for one in attributes}
        self.launches.append((tuple(config.grid), tuple(config.block), config.shared, told))
        if spec is None:
            return
        count = len(spec.inputs) + len(spec.body.outputs)
        count += any(map(can_fail, spec.body.nodes))
        pointers = [(ctypes.c_uint64.from_address(arguments[i]).value, 0) for i in range(count)]
        run = oracle.compiled(SimpleNamespace(ir=source))
        self._do(config.stream, lambda: run((1, 1, 1), pointers))

    def cuTensorMapEncodeTiled(self, room, *about):
        assert room % 64 == 0
        self.launches.append(("map", about[:3], *map(tuple, about[3:7]), *about[7:]))
        ctypes.memset(room, 7, 128)
