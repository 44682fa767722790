"""One launch of a kernel, as a template hands it over: its code, its grid, and what it is given."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from ...codegen.simt.dispatch import Binding
from ...graph.cached import cached_property

Grid = tuple[int, int, int]


@dataclass(frozen=True)
class TensorMap:
    """A tensor map: how the tensor memory accelerator finds tiles in memory. The fields are ``cuTensorMapEncodeTiled``'s.

    Attributes:
        binding: what it describes.
        offset: the first byte of the tensor in it; addresses are multiples of 16.
        dtype: the elements, by darner's name of the type, or ``tf32`` for f32 that is rounded as it is read.
        sizes: elements along each axis, the fastest first.
        strides: bytes from one element to the next along each axis but the fastest; multiples of 16.
        box: elements of a tile along each axis.
        swizzle: bytes of the pattern that tiles are swizzled by: 0, 32, 64 or 128.
        promotion: bytes that are fetched into the L2 cache at least: 0, 64, 128 or 256.
        not_a_number: elements outside the tensor read as NaN, and not as 0.
        lower: of a map of patches (``cuTensorMapEncodeIm2col``), whose ``box`` is channels and pixels: along each axis but the channels and the images, the fastest first, where the first pixel is.
        upper: how far behind the tensor's last element the last pixel is.
        steps: from pixel to pixel.
    """

    binding: Binding
    offset: int
    dtype: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0
    promotion: int = 256
    not_a_number: bool = False
    lower: tuple[int, ...] = ()
    upper: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()


@dataclass(frozen=True)
class Stage:
    """A launch of a kernel.

    A launch that starts early may have blocks on the card while launches ahead of it still run. What makes that right is one rule: *every thread of such a kernel
    waits (``griddepcontrol.wait``) before it reads or writes any memory of the device*. The wait ends when the launch ahead has ended and all that it wrote can
    be read; since that one waited too, or began after all before it had ended, so have all launches before. So no thread reads what is not written yet, and none
    writes where an earlier launch still reads: the arena's memory can be given to another value as if launches followed each other. ``launch_dependents``, which lets the
    launch behind start, promises nothing of memory, and may stand anywhere. Before the wait a kernel may have its weights brought to the L2 cache (``Printer.before_waiting``): a copy there
    is the memory's, whoever writes it later.

    Attributes:
        ir: LLVM IR: a module with one kernel.
        kernel: the kernel's name in it.
        threads: threads of a block.
        groups: blocks of the grid along each axis.
        bindings: the kernel's pointers, in the order of its parameters; pointers of the global address space at multiples of 16.
        copies: an operand and a result, where all it does is to copy the one to the other: it is left out where both are the same memory.
        shared: bytes of dynamic shared memory, beside what the code declares.
        cluster: blocks of a cluster along each axis.
        maps: tensor maps, which the kernel has as parameters by value after its pointers.
        early: it may start before the kernel ahead of it has ended, and waits by itself.
        cooperative: all blocks run at once, or the launch fails.
        kept: the digest, where object code was kept and ``ir`` was not.
    """

    ir: str
    kernel: str
    threads: int
    groups: Grid
    bindings: tuple[Binding, ...]
    copies: tuple[int, int] | None = None
    shared: int = 0
    cluster: Grid = (1, 1, 1)
    maps: tuple[TensorMap, ...] = ()
    early: bool = False
    cooperative: bool = False
    kept: str = ""

    @cached_property
    def digest(self) -> str:
        """Equal for equal code: what compiled code is kept under.

        >>> Stage("; one", "k", 32, (1, 1, 1), ()).digest == Stage("; one", "k", 64, (2, 1, 1), ()).digest
        True
        """
        return self.kept or hashlib.sha256(f"{self.kernel}\n{self.ir}".encode()).hexdigest()
