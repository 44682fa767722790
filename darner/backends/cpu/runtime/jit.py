"""LLVM IR to object code, and object code to addresses that can be called.

The two halves are separate, so that what is compiled once can be kept on disk and loaded again:

>>> code = compile_module('''
... define i64 @twice(i64 %x) {
...   %y = mul i64 %x, 2
...   ret i64 %y
... }
... ''')
>>> program = load_object(code)
>>> import ctypes
>>> ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(program.address("twice"))(21)
42

IR of tiles is vectors already, so LLVM's optimiser pipeline buys nothing and is left out: what always is to be inlined is, and code
generation alone gives code as fast in half the time. ``passes`` is for IR that it does improve.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ....codegen.ir.types import Module
from ....graph.errors import DarnerError, ForkError
from ....graph.forks import native_call
from ...base.keys import Keyed
from ...base.llvm import binding, emitted, run_passes

# Instruction selection and register allocation at this level; higher costs time and gains nothing.
CODE_GENERATION_LEVEL = 2
_LIBRARY = "program"
SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
"""The processors that are one core, as Linux tells it."""


class CompileError(DarnerError, ValueError):
    """IR that is not valid, a target that is not known, or object code that cannot be loaded."""


ONE_AT_A_TIME = ("znver4", "cannonlake", "icelake-client", "tigerlake", "rocketlake")
"""Processors with vectors of 64 bytes that have one multiplier of that width, or two of half of it."""


@dataclass(frozen=True, slots=True)
class Machine(Keyed):
    """What code is generated for: code and its scratch memory depend on a spec and on this, and on nothing else that is known of a computer.

    ``key()`` is part of the key of everything that is kept on disk.

    Attributes:
        triple: LLVM's name of the architecture, system and object format.
        cpu: LLVM's name of the processor.
        features: every feature of the processor, as LLVM takes them: ``+avx2,-avx512f``.
        vector_bytes: width of the widest vector register that is worth using.
        cores: physical cores this process may use.
        l1: bytes of level 1 data cache of one core, None where it cannot be read.
        l2: bytes of level 2 cache, likewise.
        l3: bytes of level 3 cache, likewise; of the one that the first core reads.
        l3_cores: cores that share it, likewise.
    """

    triple: str
    cpu: str
    features: str
    vector_bytes: int
    cores: int
    l1: int | None = None
    l2: int | None = None
    l3: int | None = None
    l3_cores: int | None = None

    @property
    def multiplies(self) -> int:
        """Vectors of the full width that a core multiplies, and adds to others, in a cycle: one where it has the units for half of that width.

        >>> Machine("x86_64-unknown-linux-gnu", "znver4", "", 64, 4).multiplies
        1
        """
        return 1 if self.vector_bytes == 64 and self.cpu in ONE_AT_A_TIME else 2

    @property
    def converts_halves(self) -> bool:
        """Whether it has instructions between f16 and f32; where features are left to the processor's name, its vectors tell.

        >>> Machine("x86_64-unknown-linux-gnu", "nehalem", "+sse4.2,-f16c", 16, 4).converts_halves
        False
        """
        listed = self.features.split(",")
        unsaid = "-f16c" not in listed and self.vector_bytes > 16
        return self.architecture != "x86_64" or "+f16c" in listed or unsaid

    @property
    def architecture(self) -> str:
        """The first part of the triple, one name for each: ``x86_64``, ``aarch64``.

        >>> Machine("arm64-apple-darwin", "apple-m1", "", 16, 4).architecture
        'aarch64'
        """
        return architecture(self.triple)


def architecture(triple: str) -> str:
    """The architecture of a triple, with the names systems disagree on made one."""
    name = triple.partition("-")[0]
    return {"arm64": "aarch64", "amd64": "x86_64"}.get(name, name)


@cache
def host() -> Machine:
    """The machine this process runs on.

    >>> host().cores >= 1
    True
    """
    llvm = _llvm()
    features = {name: bool(on) for name, on in llvm.get_host_cpu_features().items()}
    triple = llvm.get_process_triple()
    if features.get("avx512f"):
        # LLVM keeps to half of the register on server processors unless it is told not to.
        features["prefer-256-bit"] = False
    return Machine(
        triple=triple,
        cpu=llvm.get_host_cpu_name(),
        features=",".join(f"{'+' if on else '-'}{name}" for name, on in sorted(features.items())),
        vector_bytes=vector_bytes(features),
        cores=_usable_cores(),
        l1=_cache_bytes(1),
        l2=_cache_bytes(2),
        l3=_cache_bytes(3),
        l3_cores=_cache_cores(3),
    )


def vector_bytes(features: Mapping[str, bool]) -> int:
    """The vector width that a set of features allows: AVX-512 64, AVX2 with FMA 32, else 16.

    >>> vector_bytes({"avx2": True, "fma": True, "avx512f": False})
    32
    """
    if all(features.get(name) for name in ("avx512f", "avx512vl", "avx512bw", "avx512dq")):
        return 64
    return 32 if features.get("avx2") and features.get("fma") else 16


def compile_module(
    module: Module | str,
    *,
    cpu: str | None = None,
    features: str | None = None,
    triple: str | None = None,
    passes: bool = False,
) -> bytes:
    """Object code for LLVM IR: the same bytes for the same IR and target.

    Args:
        module: the text of a module, or an ``llvmlite.ir.Module``.
        cpu: LLVM's name of the processor; this machine's when left out.
        features: as in ``Machine.features``; when left out, this machine's, or those that the name
            stands for where ``cpu`` or ``triple`` is given (``-prefer-256-bit`` among them lets
            server processors use whole AVX-512 registers).
        triple: the target, where it is not this machine's.
        passes: run LLVM's optimiser pipeline first; without it only what always is to be inlined is.

    Raises:
        CompileError: the IR or the target is not valid.
    """
    text = str(module)
    with native_call():
        return _compiled(text, _target_machine(cpu, features, triple), passes)


def _compiled(text: str, machine: Any, passes: bool) -> bytes:
    llvm = _llvm()
    try:
        # A context of its own: names of types do not pile up, and all of it is freed at once.
        parsed = llvm.parse_assembly(text, llvm.create_context())
        parsed.verify()
    except RuntimeError as error:
        raise CompileError(
            f"LLVM rejects the module: {str(error).strip()}{_quoted_line(text, str(error))}",
            hint="this is a fault of whatever made the IR",
        ) from None
    parsed.triple = machine.triple
    parsed.data_layout = str(machine.target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    # LLVM 22's does not come to an end on a maximum of all elements.
    options.loop_vectorization = False
    # Loops are over whole vectors already, several of them where that hides latency.
    options.loop_unrolling = False
    options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    if passes:
        manager = builder.getModulePassManager()
    else:
        manager = llvm.create_new_module_pass_manager()
        manager.add_always_inliner_pass()
    run_passes(manager, parsed, builder)
    try:
        return emitted(machine, parsed)
    except RuntimeError as error:
        raise CompileError(f"LLVM makes no code of the module: {error}") from None


_lasting: dict[str, bytes] = {}
"""Code that every process needs once, by a hash of its IR and of the machine."""


def lasting(text: str) -> bytes:
    """Object code of IR that a process loads once, such as what starts threads: compiled, or taken from an earlier process."""
    key = hashlib.sha256(f"{host().key()}\n{text}".encode()).hexdigest()
    if key not in _lasting:
        _lasting[key] = compile_module(text)
    return _lasting[key]


def lasting_objects() -> dict[str, bytes]:
    """All of that code so far, for another process of this machine to ``remember``."""
    return dict(_lasting)


def remember(objects: Mapping[str, bytes]) -> None:
    """Let ``lasting`` use what an earlier process of this machine compiled."""
    for key, code in objects.items():
        _lasting.setdefault(key, code)


def compile_modules(modules: Iterable[tuple[str, bool]], **target: Any) -> tuple[bytes, ...]:
    """Object code of several modules, each with whether ``passes`` are run on it, made on all cores.

    They may be made as they are asked for: the first are compiled while the caller still writes the next.
    """
    workers = host().cores
    if workers < 2:
        return tuple(compile_module(text, passes=passes, **target) for text, passes in modules)
    from concurrent.futures import ThreadPoolExecutor

    waiting: dict[int, tuple[str, bool]] = {}
    made: dict[int, bytes] = {}

    def compile_next() -> None:
        # The heaviest that is there: none is left to the end, when the other cores have nothing to do.
        with lock:
            number = max(waiting, key=lambda i: len(waiting[i][0]) * (1 + 2 * waiting[i][1]))
            text, passes = waiting.pop(number)
        made[number] = compile_module(text, passes=passes, **target)

    lock = threading.Lock()
    with ThreadPoolExecutor(workers) as pool:
        work = []
        for number, module in enumerate(modules):
            with lock:
                waiting[number] = module
            work.append(pool.submit(compile_next))
        for each in work:
            each.result()
    return tuple(made[number] for number in range(len(made)))


class Program:
    """Loaded object code. Addresses stay valid as long as the program is referenced.

    Made by ``load_object``. The memory is freed when the program is closed or collected.
    """

    __slots__ = ("__weakref__", "_addresses", "_close", "_engine", "_parts")

    def __init__(self, engine: Any, library: Any) -> None:
        self._engine = engine
        self._addresses: dict[str, int] = {}
        self._parts = [engine, library]
        # Not at exit: a thread may still be running the code, and the process is going anyway.
        self._close = weakref.finalize(self, _dispose, self._parts)
        self._close.atexit = False

    def address(self, name: str) -> int:
        """Where a function or variable of the object lies.

        Raises:
            CompileError: the object has no such symbol, needs one that nobody gave, or was closed.
        """
        found = self._addresses.get(name)
        if found is not None:
            return found
        if not self._close.alive:
            raise CompileError(f"'{name}' is asked of a program that was closed")
        try:
            with native_call():
                tracker = self._engine.lookup(_LIBRARY, name)
        except RuntimeError as error:
            raise CompileError(
                f"'{name}' cannot be resolved: {error}",
                hint="symbols that the object calls are given to load_object(symbols=...)",
            ) from None
        self._parts.append(tracker)
        self._addresses[name] = address = int(tracker[name])
        return address

    def close(self) -> None:
        """Free the code. No address of this program may be used afterwards."""
        self._addresses.clear()
        self._close()


def load_object(*code: bytes, symbols: Mapping[str, int] | None = None) -> Program:
    """Load object code made by ``compile_module`` for this machine.

    Args:
        code: the objects, which may call each other's functions.
        symbols: addresses of what it calls, by name. What the C library has needs no mention.

    Raises:
        CompileError: the bytes are not an object of this machine.
    """
    with native_call():
        return _loaded(code, symbols or {})


def _loaded(code: tuple[bytes, ...], symbols: Mapping[str, int]) -> Program:
    llvm = _llvm()
    for item in code:
        if (found := _object_architecture(item)) not in (None, host().architecture):
            raise CompileError(
                f"object code for {found} cannot be loaded on {host().architecture}",
                hint="compile the module again",
            )
    # An engine for each program: a shared one keeps a few kilobytes of every library it ever held.
    # This linker puts an object in one block, so that its code always reaches its constants, and
    # has errors where the older one ends the process; it does not know Windows objects well.
    engine = llvm.create_lljit_compiler(
        _target_machine(None, None, None), use_jit_link=os.name == "posix"
    )
    builder = llvm.JITLibraryBuilder().add_current_process()
    for item in code:
        builder.add_object_img(item)
    for name, address in symbols.items():
        builder.import_symbol(name, address)
    try:
        library = builder.link(engine, _LIBRARY)
    except RuntimeError as error:
        engine.close()
        raise CompileError(
            f"{sum(map(len, code))} bytes of object code cannot be loaded: {error}",
            hint="compile the module again",
        ) from None
    return Program(engine, library)


_MACHINES = {
    # ELF, Mach-O and COFF: how the file begins, where it names the machine, and in how many bytes.
    b"\x7fELF": (18, 2, {62: "x86_64", 183: "aarch64"}),
    b"\xcf\xfa\xed\xfe": (4, 4, {0x01000007: "x86_64", 0x0100000C: "aarch64"}),
    b"\x64\x86": (0, 2, {0x8664: "x86_64"}),
    b"\x64\xaa": (0, 2, {0xAA64: "aarch64"}),
}


def _object_architecture(code: bytes) -> str | None:
    """What object code is for, where that can be seen: the linker does not look, and the processor would."""
    for start, (place, count, names) in _MACHINES.items():
        if code.startswith(start):
            number = int.from_bytes(code[place : place + count], "little")
            return names.get(number, f"machine {number}")
    return None


def _dispose(parts: list[Any]) -> None:
    # What was looked up goes before the library, and that before the engine they live in.
    try:
        with native_call():
            while parts:
                parts.pop().close()
    except ForkError:
        return  # LLVM cannot be called in this process any more: the memory stays


@cache
def _llvm() -> Any:
    """The binding of llvmlite, ready to generate code for this machine."""
    llvm = binding()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


def _target_machine(cpu: str | None, features: str | None, triple: str | None) -> Any:
    llvm = _llvm()
    here = host()
    if triple is not None and triple != here.triple:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    elif cpu is None:
        cpu, features = here.cpu, here.features if features is None else features
    try:
        target = llvm.Target.from_triple(triple or here.triple)
    except RuntimeError as error:
        raise CompileError(f"target '{triple}' is not known to LLVM: {error}") from None
    features = features or ""
    if architecture(triple or here.triple) == "x86_64":
        # A processor that LLVM does not know has no features, and one without this ends the process.
        features = f"{features},+64bit" if features else "+64bit"
    return target.create_target_machine(
        cpu=cpu or "",
        features=features,
        opt=CODE_GENERATION_LEVEL,
        # Code is loaded anywhere: near its own constants, far from the functions it calls.
        reloc="pic",
        codemodel="small",
    )


def _quoted_line(text: str, message: str) -> str:
    """The line of IR that LLVM's message points at, when it points at one."""
    place = re.search(r"<string>:(\d+):", message)
    lines = text.splitlines()
    if place is None or not 0 < int(place[1]) <= len(lines) or "\n" in message.strip():
        return ""
    return f" in: {lines[int(place[1]) - 1].strip()}"


def _usable_cores() -> int:
    """Physical cores this process may run on, within the quota of its control group."""
    if hasattr(os, "sched_getaffinity"):
        allowed: Iterable[int] = os.sched_getaffinity(0)
    else:
        allowed = range(os.cpu_count() or 1)
    cores = {_text(SIBLINGS.format(cpu)) or str(cpu) for cpu in allowed}
    quota, _, period = _text("/sys/fs/cgroup/cpu.max").partition(" ")
    limit = int(quota) // int(period) if quota.isdigit() and period.isdigit() else len(cores)
    return max(1, min(len(cores), limit))


def _cache_bytes(level: int) -> int | None:
    """Bytes of the data cache of a level, as Linux tells it."""
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    folder = _data_cache(level)
    size = re.fullmatch(r"(\d+)([KMG]?)", _text(folder / "size")) if folder else None
    return int(size[1]) * units.get(size[2], 1) if size else None


def _cache_cores(level: int) -> int | None:
    """Physical cores that share the data cache of a level, as Linux tells it."""
    folder = _data_cache(level)
    cpus = _listed(_text(folder / "shared_cpu_list")) if folder else []
    return len({_text(SIBLINGS.format(cpu)) or str(cpu) for cpu in cpus}) or None


def _data_cache(level: int) -> Path | None:
    """What Linux tells of the data cache of a level, of the first core."""
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        data = _text(folder / "type") in ("Data", "Unified")
        if data and _text(folder / "level") == str(level):
            return folder
    return None


def _listed(text: str) -> list[int]:
    """The numbers of a list as Linux writes it.

    >>> _listed("0-2,8")
    [0, 1, 2, 8]
    """
    found: list[int] = []
    for part in re.findall(r"(\d+)(?:-(\d+))?", text):
        found += range(int(part[0]), int(part[1] or part[0]) + 1)
    return found


def _text(path: str | Path) -> str:
    """A file of the system as text; empty where there is none."""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""
