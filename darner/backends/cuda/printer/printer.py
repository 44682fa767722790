"""The SIMT builder's kernel: its threads, what they share, and the launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from ....codegen.ir.types import Function
from ....codegen.ir.types import Value as Raw
from ....codegen.simt.builder import Memory, Operand, Type, Value
from ....codegen.simt.dispatch import Binding
from ....graph import dtypes
from ....graph.errors import InternalError, UnsupportedError
from ..instructions.threads import launch_dependents, wait_for_launch
from ..machine import STARTS_EARLY
from ..stage import Grid, Stage, TensorMap
from .instructions import Held
from .memory import Memories
from .types import SHARED, CodeFunction, bytes_of, constant, dtype_of, integer, pointer

if TYPE_CHECKING:
    from ..machine import Machine

KERNEL = "kernel"
"""What every kernel is called in its module."""
MOST_GROUPS = (1 << 31) - 1
WARP = 32
EVERYONE = 0xFFFFFFFF


class Printer(Memories):
    """The code of one launch as LLVM IR; see ``codegen.simt.dispatch.DispatchBuilder``.

    Args:
        machine: for which GPU.
        threads: of a block.
        function: a function of the kernel to write; the kernel itself where there is none.

    Attributes:
        cluster: blocks of a cluster along each axis.
        maps: the tensor maps that the kernel is given.
    """

    narrow = True
    group: Value
    local: Value
    thread: Value

    def __init__(
        self, machine: Machine, threads: int, function: CodeFunction | None = None
    ) -> None:
        self.machine = machine
        self.threads = threads
        self.cluster: Grid = (1, 1, 1)
        self.maps: list[TensorMap] = []
        self._map_arguments: list[Raw] = []
        self._dynamic = 0
        self._asked = ""
        super().__init__(function or self.new_kernel())
        if function is None:
            self.begin()

    @property
    def starts_early(self) -> bool:
        """Whether launches on the GPU can start before those ahead of them have ended."""
        return self.machine.capability >= STARTS_EARLY and not self.machine.emulated

    def new_kernel(self) -> CodeFunction:
        """A module and its kernel, without code."""
        from llvmlite import ir

        module = ir.Module(KERNEL, ir.Context())
        module.triple = "nvptx64-nvidia-cuda"
        kernel = ir.Function(module, ir.FunctionType(ir.VoidType(), []), KERNEL)
        kernel.calling_convention = "ptx_kernel"
        # llvmlite takes the attributes that it knows alone.
        set.add(kernel.attributes, f'"nvvm.maxntid"="{self.threads}"')
        return kernel

    def begin(self) -> None:
        """Wait for the launch ahead, let the one behind come, and know the numbers of the thread; see ``Stage.early``."""
        if self.starts_early:
            wait_for_launch(self.ir)
            launch_dependents(self.ir)
        self.group, self.local = (self.held(self._special(name)) for name in ("ctaid.x", "tid.x"))
        self.thread = self.let(self.group * self.threads + self.local, "thread")

    def child(self, function: CodeFunction) -> Self:
        """See ``Blocks``."""
        return type(self)(self.machine, self.threads, function)

    def _declared(self, name: str, result: Type, arguments: Sequence[Type]) -> Function:
        from ....codegen.ir.lanes import function_of

        return function_of(self.module, name, result, arguments)

    def _special(self, name: str) -> Raw:
        """A register that the hardware sets."""
        found = self._declared(f"llvm.nvvm.read.ptx.sreg.{name}", integer(32), [])
        return self.ir.call(found, [])

    # ------------------------------------------------------------- threads among each other

    def barrier(self, *, buffers: bool = False) -> None:
        """See ``Simt``. It orders what threads wrote to any memory."""
        from llvmlite import ir

        name = "llvm.nvvm.barrier.cta.sync.aligned.all"
        self.ir.call(self._declared(name, ir.VoidType(), [integer(32)]), [constant(integer(32), 0)])

    def uniform(self, memory: Memory) -> Held:
        """See ``Simt``."""
        self.barrier()
        found = self.load(memory, 0 if memory.shape else ())
        self.barrier()
        return found

    # LLVM reads and writes a word of 64 bits as 32 bits of a register of 64, of which drivers of CUDA 13.0 have lost the low word. A move
    # takes registers apart, and nothing moves through it.

    def word_of(self, bits: Held, which: int) -> Held:
        """See ``Values``."""
        parts = "{$0, other}" if which == 0 else "{other, $0}"
        text = f"{{ .reg .b32 other; mov.b64 {parts}, $1; }}"
        return self._moved(text, "=r,l", integer(32), [self.raw(bits)])

    def joined(self, low: Operand, high: Operand) -> Held:
        """See ``Values``."""
        words = [self.fitted(word, integer(32)) for word in (low, high)]
        return self._moved("mov.b64 $0, {$1, $2};", "=l,r,r", integer(64), words)

    def _moved(self, text: str, constraint: str, type_: Type, operands: list[Raw]) -> Held:
        from llvmlite import ir

        kind = ir.FunctionType(type_, [value.type for value in operands])
        return self.held(self.ir.call(ir.InlineAsm(kind, text, constraint), operands))

    def shuffle_xor(self, value: Operand, mask: int) -> Held:
        """See ``Simt``."""
        given = self.held(self.raw(value), bool(getattr(value, "signed", False)))
        words = [self.held(self.shuffled_word(self.raw(word), mask)) for word in self.words(given)]
        found = self.of_words(words, dtype_of(given.type))
        return self.held(found.value, given.signed)

    def shuffled_word(self, word: Raw, mask: int) -> Raw:
        """What the other thread has, 32 bits of it."""
        kinds = [integer(32)] * 4
        function = self._declared("llvm.nvvm.shfl.sync.bfly.i32", integer(32), kinds)
        members = EVERYONE if self.threads >= WARP else (1 << self.threads) - 1
        rest = [constant(integer(32), number) for number in (mask, WARP - 1)]
        return self.ir.call(function, [constant(integer(32), members), word, *rest])

    # ------------------------------------------------------------- what only some kernels have

    def dynamic_shared(self, nbytes: int) -> Memory:
        """Shared memory in items of 16 bytes that a launch asks for: up to ``machine.most_shared``, and at a multiple of 1024."""
        from llvmlite import ir

        self._dynamic = nbytes
        found = ir.GlobalVariable(
            self.module, ir.ArrayType(integer(8), 0), "dynamic", addrspace=SHARED
        )
        found.align = 1024
        self.bases["dynamic"] = found
        shape = (nbytes // 16,)
        return Memory("dynamic", dtypes.u32, False, 4, shape, "shared", builder=self)

    def tensor_map(self, described: TensorMap) -> Raw:
        """The address of a tensor map, which becomes a parameter of the kernel."""
        from llvmlite import ir

        name = f"map{len(self.maps)}"
        found = ir.Argument(self.function_ir, pointer(0), name)
        for text in ("byval([128 x i8])", "align 64", '"nvvm.grid_constant"'):
            # llvmlite takes the attributes that it knows alone.
            set.add(found.attributes, text)
        self.maps.append(described)
        self._map_arguments.append(found)
        return found

    def blocks_together(self, count: int) -> None:
        """Let registers be given out so that so many blocks fit on a multiprocessor."""
        set.add(self.function_ir.attributes, f'"nvvm.minctasm"="{count}"')

    # ------------------------------------------------------------- the launch

    def finish(
        self,
        groups: int,
        buffers: Sequence[tuple[Memory, Binding]],
        copies: tuple[int, int] | None = None,
    ) -> Stage:
        """The launch of what is written, with so many blocks; of ``buffers`` those are bound that it reads or writes.

        Raises:
            UnsupportedError: there are too many blocks, or they share too much memory.
        """
        if groups > MOST_GROUPS:
            raise UnsupportedError(
                f"a kernel of {groups:,} blocks is more than a GPU runs ({MOST_GROUPS:,})",
                hint="a smaller batch, or the tensor in several pieces",
            )
        if self.shared_bytes > self.machine.shared + self._dynamic:
            self._ask_for_largest()
        bound = [
            (memory, binding)
            for memory, binding in buffers
            if binding.what == "scratch" or memory.name in self.buffers
        ]
        ir = self.written([memory.name for memory, _ in bound])
        bindings = tuple(binding for _, binding in bound)
        return Stage(
            ir,
            KERNEL,
            self.threads,
            (groups, 1, 1),
            bindings,
            copies,
            shared=self._dynamic,
            cluster=self.cluster,
            maps=tuple(self.maps),
            early=self.starts_early,
        )

    def _ask_for_largest(self) -> None:
        """Let the launch ask for the largest shared memory: code can declare less than there is."""
        sizes = {name: bytes_of(item) * count for name, (item, count) in self.sizes.items()}
        largest = max(sizes, key=sizes.__getitem__)
        rest = self.shared_bytes - sizes[largest]
        if self._dynamic or rest > self.machine.shared or self.shared_bytes > self.machine.ample:
            raise UnsupportedError(
                f"a kernel's blocks share {self.shared_bytes:,} bytes of memory, of {self.machine.ample:,} that there are"
            )
        self._asked = largest
        self._dynamic = sizes[largest]

    def written(self, names: Sequence[str]) -> str:
        """The module, of whose kernel these are the buffers."""
        from llvmlite import ir

        self.end()
        self.close()
        if self._dynamic and not self._asked and any(count for _, count in self.sizes.values()):
            raise InternalError(
                "shared memory that a kernel declares would lie before what its launch asks for, which begins at a multiple of 1024"
            )
        for name, (item, count) in self.sizes.items():
            if name == self._asked:
                self.module.globals[name].value_type = ir.ArrayType(item, 0)
                self.module.globals[name].linkage = "external"
            elif count:
                self.module.globals[name].value_type = ir.ArrayType(item, count)
            else:
                del self.module.globals[name]
        self.function_ir.args = tuple(self.buffer(name) for name in names)
        self.function_ir.args = (*self.function_ir.args, *self._map_arguments)
        return str(self.module)
