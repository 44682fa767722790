"""Kernels that were written elsewhere, launched on a card by ctypes and libcuda alone: no darner, and no llvmlite.

A kernel is PTX and a description of its launches as JSON (``bench.cuda_gemm --emit`` writes both); what is bound are addresses.
"""

import ctypes
import itertools
from pathlib import Path
from typing import ClassVar

P, U, S = ctypes.c_void_p, ctypes.c_uint, ctypes.c_size_t
CLUSTER = 4
MOST_STATIC = 48 << 10
TYPES = {"u8": 0, "i32": 3, "u32": 2, "f16": 6, "f32": 7, "bf16": 9, "tf32": 11}
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
PROMOTIONS = {0: 0, 64: 1, 128: 2, 256: 3}

_library = None


class CudaError(RuntimeError):
    """A call of the driver failed."""


def call(name, *args):
    """Call the driver."""
    global _library
    if _library is None:
        _library = ctypes.CDLL("libcuda.so.1")
    result = getattr(_library, name)(*args)
    if result:
        text = ctypes.c_char_p()
        _library.cuGetErrorString(result, ctypes.byref(text))
        raise CudaError(f"{name}: {result} {text.value.decode() if text.value else ''}")


class Attribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = [("id", U), ("pad", U), ("value", U * 16)]


class Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", U * 3),
        ("block", U * 3),
        ("shared", U),
        ("stream", P),
        ("attributes", ctypes.POINTER(Attribute)),
        ("count", U),
    ]


def assembled(ptx):
    """The object code of PTX text; several threads can assemble at a time."""
    errors, size = ctypes.create_string_buffer(1 << 14), 1 << 14
    # CU_JIT_ERROR_LOG_BUFFER and its size.
    keys, values = (ctypes.c_int * 2)(5, 6), (P * 2)(ctypes.cast(errors, P), P(size))
    state, code, length = P(), P(), S()
    text = ptx.encode() + b"\0"
    call("cuLinkCreate_v2", 2, keys, values, ctypes.byref(state))
    try:
        call("cuLinkAddData_v2", state, 1, text, S(len(text)), b"kernel", 0, None, None)
        call("cuLinkComplete", state, ctypes.byref(code), ctypes.byref(length))
        return ctypes.string_at(code, length.value)
    except CudaError as error:
        raise CudaError(f"{error}\n{errors.value.decode()[:2000]}") from None
    finally:
        call("cuLinkDestroy", state)


def load(code, name="kernel", shared=0):
    """A kernel of PTX text or of object code."""
    module, function = P(), P()
    call(
        "cuModuleLoadData", ctypes.byref(module), assembled(code) if isinstance(code, str) else code
    )
    call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
    if shared > MOST_STATIC:
        call("cuFuncSetAttribute", function, 8, shared)
    return function


def registers(function):
    """Registers of a thread, and bytes of its own memory (spills)."""
    found = []
    for number in (4, 3):
        value = ctypes.c_int()
        call("cuFuncGetAttribute", ctypes.byref(value), number, function)
        found.append(value.value)
    return tuple(found)


def tensor_map(address, described):
    """The 128 bytes of a tensor map."""
    raw = (ctypes.c_char * 192)()
    start = (ctypes.addressof(raw) + 63) & ~63
    sizes, box = described["sizes"], described["box"]
    count = len(sizes)
    strides = described["strides"] or [16]
    if described.get("lower"):
        corners = ctypes.c_int * (count - 2)
        call(
            "cuTensorMapEncodeIm2col",
            P(start),
            TYPES[described["dtype"]],
            count,
            P(address + described["offset"]),
            (ctypes.c_uint64 * count)(*sizes),
            (ctypes.c_uint64 * len(strides))(*strides),
            corners(*described["lower"]),
            corners(*described["upper"]),
            *box,
            (ctypes.c_uint32 * count)(1, *described["steps"], 1),
            0,
            SWIZZLES[described["swizzle"]],
            PROMOTIONS[described["promotion"]],
            0,
        )
        return ctypes.string_at(start, 128)
    call(
        "cuTensorMapEncodeTiled",
        P(start),
        TYPES[described["dtype"]],
        count,
        P(address + described["offset"]),
        (ctypes.c_uint64 * count)(*sizes),
        (ctypes.c_uint64 * len(strides))(*strides),
        (ctypes.c_uint32 * count)(*box),
        (ctypes.c_uint32 * count)(*([1] * count)),
        0,
        SWIZZLES[described["swizzle"]],
        PROMOTIONS[described["promotion"]],
        0,
    )
    return ctypes.string_at(start, 128)


def code_of(path):
    """What lies at a path: object code where it was assembled beforehand, else PTX."""
    assembled = Path(path).with_suffix(".cubin")
    return assembled.read_bytes() if assembled.exists() else Path(path).read_text(encoding="utf-8")


class Launch:
    """A launch that is prepared: calling it with a stream starts it.

    Args:
        folder: where PTX lies.
        stage: the launch's description.
        address: the address of a binding, by its description.
    """

    loaded: ClassVar[dict] = {}

    def __init__(self, folder, stage, address):
        key = str(Path(folder) / stage["ptx"])
        if key not in self.loaded:
            self.loaded[key] = load(code_of(key), stage["kernel"], stage["shared"])
        self.function = self.loaded[key]
        values = [ctypes.c_void_p(address(binding)) for binding in stage["bindings"]]
        for described in stage["maps"]:
            content = tensor_map(address(described["binding"]), described)
            values.append(ctypes.create_string_buffer(content, 128))
        self._values = values
        self._arguments = (P * max(len(values), 1))(
            *[ctypes.cast(ctypes.pointer(v), P) for v in values]
        )
        self._attribute = (Attribute * 1)()
        clusters = stage["cluster"] != [1, 1, 1]
        if clusters:
            self._attribute[0].id = CLUSTER
            self._attribute[0].value[:3] = stage["cluster"]
        self._config = Config(
            (U * 3)(*stage["groups"]),
            (U * 3)(stage["threads"], 1, 1),
            stage["shared"],
            None,
            self._attribute,
            int(clusters),
        )

    def __call__(self, stream):
        self._config.stream = stream
        call("cuLaunchKernelEx", ctypes.byref(self._config), self.function, self._arguments, None)


class Run:
    """The launches of a way to compute a case, for each of the sets of operands that take turns.

    Args:
        sets: for each of them the launches.
        kept: memory that they use.
    """

    def __init__(self, sets, kept):
        self.sets, self.kept = sets, kept
        self.turns = itertools.cycle(sets)

    @classmethod
    def of(cls, torch, launch, folder, way, sets):
        """The launches of a way over sets of tensors, each operands and results, with scratch memory of their own."""
        scratch = torch.empty(way["scratch"] + 512, dtype=torch.uint8, device="cuda")
        start = -(-scratch.data_ptr() // 256) * 256
        made = []
        for operands, results in sets:

            def address(binding, operands=operands, results=results):
                if binding["what"] == "scratch":
                    return start + binding["number"]
                tensors = operands if binding["what"] == "operand" else results
                return tensors[binding["number"]].data_ptr() + binding["offset"]

            made.append([launch(folder, stage, address) for stage in way["stages"]])
        return cls(made, scratch)

    def first(self, stream):
        """Start the launches over the first set."""
        for each in self.sets[0]:
            each(stream)

    def __call__(self, stream):
        """Start the launches over the next set."""
        for each in next(self.turns):
            each(stream)

    @property
    def stages(self):
        """Each launch by itself, where there are several."""
        count = len(self.sets[0])
        return [self.sets[0][number] for number in range(count)] if count > 1 else []
