"""Kernels as code: one function for each spec of a plan, by the first template that has code for it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ...codegen.ir.index import i64
from ...codegen.ir.lanes import note_target
from ...codegen.ir.types import Module, Type, Value
from ...graph.errors import InternalError, UnsupportedError
from ...lower.plan import Kernel, Plan, Spec
from ..base.cache import ObjectCache
from ..base.keys import source_digest
from ..base.sections import join, split
from .attention.template import ATTENTION
from .complex.maps import COMPLEX_MAPS
from .complex.template import COMPLEX
from .contract.template import CONTRACT
from .conv.template import CONV
from .emit.panels import Panels
from .emit.template import Code, Packing, Scratch, Template
from .fft.template import FFT
from .host.template import HOST
from .index.scatter import SCATTERS
from .index.scatter_epilogue import SCATTER_ENDS
from .index.update import UPDATES
from .linalg.template import SOLVING
from .loops.elements import ELEMENT_LOOPS
from .loops.template import LOOPS, inner_functions
from .maps.template import ELEMENTS
from .maps.transpose import TRANSPOSED
from .model import CpuModel
from .pooling.template import POOLING
from .rows.template import ROWS
from .runtime.jit import CompileError, Machine, compile_modules
from .runtime.modules import PART, Parts
from .runtime.object_key import object_key
from .runtime.steps import FIXED
from .runtime.stored import leaves_in_panels
from .scan.template import SCANS
from .sort.template import SORTING
from .splats.template import SPLATS
from .state_space.template import STATE_SPACE

TEMPLATES: tuple[Template, ...] = (
    HOST,
    FFT,
    COMPLEX_MAPS,
    ELEMENT_LOOPS,
    LOOPS,
    COMPLEX,
    ATTENTION,
    CONTRACT,
    CONV,
    POOLING,
    SORTING,
    SCATTERS,
    SCATTER_ENDS,
    SCANS,
    UPDATES,
    SOLVING,
    SPLATS,
    STATE_SPACE,
    ROWS,
    TRANSPOSED,
    ELEMENTS,
)
"""The families of kernels, those with the best code first."""


TILED = (CONTRACT, CONV)
"""Those whose code LLVM's optimiser makes no faster; see docs/rejected.md."""


@dataclass(frozen=True)
class Function:
    """The code of a spec.

    Attributes:
        digest: of the spec.
        template: who writes it.
        scratch: the memory it needs.
        packing: the operand that it takes packed, where it does.
        panels: the operands, and after them the results, that lie in panels, by position.
    """

    digest: str
    template: Template
    scratch: Scratch
    packing: Packing | None = None
    panels: Mapping[int, Panels] = field(default_factory=dict)


class Functions(NamedTuple):
    """What the code of a plan consists of.

    Attributes:
        all: the functions by name; one for each spec, or two where some of its kernels take an operand packed.
        kernels: the name of each kernel's function.
        packing: the functions that pack, by the key of the packing: a name, and the packing.
        panels: the buffers that lie in panels.
    """

    all: Mapping[str, Function]
    kernels: tuple[str, ...]
    packing: Mapping[str, tuple[str, Packing]]
    panels: Mapping[int, Panels]

    @property
    def key(self) -> str:
        """A text that says all that their code depends on, besides the machine and the compiler."""
        names = [
            f"{function.digest} {function.packing is not None} {sorted(function.panels.items())}"
            for function in self.all.values()
        ]
        return "\n".join([source_digest(), *names])


def template_of(spec: Spec) -> Template | None:
    """The template that makes a spec's code."""
    return next((template for template in TEMPLATES if template.fits(spec)), None)


def written_by(spec: Spec) -> Template:
    """The template of a spec that is known to have one."""
    template = template_of(spec)
    if template is None:
        raise InternalError(f"the CPU backend has no kernel of kind '{spec.kind}'")
    return template


def _packing_of(template: Template, spec: Spec, machine: Machine) -> Packing | None:
    """What a kernel takes packed that is run once in a step."""
    found = template.packing(spec, machine)
    return None if found is not None and found.repeated else found


def functions_of(plan: Plan, machine: Machine, fixed: Collection[int] = ()) -> Functions:
    """The functions of a plan; ``fixed`` are buffers that change seldom, which are packed where that helps.

    Raises:
        UnsupportedError: a kernel has no template; the error names the op and the user's line.
    """
    templates = _templates_of(plan)
    packings = {
        digest: _packing_of(template, plan.specs[digest], machine) if fixed else None
        for digest, template in templates.items()
    }
    offered = {
        digest: template.panels(plan.specs[digest], machine)
        for digest, template in templates.items()
    }
    stored = leaves_in_panels(plan, offered, CpuModel.of(machine))
    found: dict[tuple[str, bool, tuple[int, ...]], tuple[str, Function]] = {}
    packs: dict[str, tuple[str, Packing]] = {}
    kernels = []
    for kernel, packing in zip(plan.kernels, _packed_by(plan, packings, fixed), strict=True):
        spec, template = plan.spec(kernel), templates[kernel.spec]
        buffers = enumerate((*kernel.operands, *kernel.results))
        panels = {i: stored[buffer] for i, buffer in buffers if buffer in stored}
        variant = (kernel.spec, packing is not None, tuple(panels))
        if variant not in found:
            scratch = template.scratch(spec, machine)
            function = Function(kernel.spec, template, scratch, packing, panels)
            found[variant] = f"kernel{len(found)}", function
        if packing is not None:
            packs.setdefault(packing.key, (f"pack{len(packs)}", packing))
        kernels.append(found[variant][0])
    return Functions(dict(found.values()), tuple(kernels), packs, stored)


def _packed_by(
    plan: Plan, packings: Mapping[str, Packing | None], fixed: Collection[int]
) -> list[Packing | None]:
    """What each kernel takes packed, of what its spec would have packed."""
    found: list[Packing | None] = []
    for kernel in plan.kernels:
        packing = packings[kernel.spec]
        can = packing is not None and kernel.operands[packing.operand] in fixed
        found.append(packing if can else None)
    plain = {
        buffer
        for kernel, packing in zip(plan.kernels, found, strict=True)
        for place, buffer in enumerate(kernel.operands)
        if packing is None or place != packing.operand
    }

    def pays(kernel: Kernel, packing: Packing) -> bool:
        return not packing.alone or kernel.operands[packing.operand] not in plain

    return [
        packing if packing is not None and pays(kernel, packing) else None
        for kernel, packing in zip(plan.kernels, found, strict=True)
    ]


def _templates_of(plan: Plan) -> dict[str, Template]:
    """Who writes each spec, by its digest."""
    templates: dict[str, Template] = {}
    for kernel in plan.kernels:
        if kernel.spec in templates:
            continue
        spec = plan.spec(kernel)
        template = template_of(spec)
        if template is None:
            ops = ", ".join(dict.fromkeys(spec.ops))
            raise UnsupportedError(
                f"the CPU backend has no kernel of kind '{spec.kind}' for {ops}"
            ).located(spec.ops[-1], kernel.label, "", kernel.source)
        templates[kernel.spec] = template
    return templates


def emit_module(plan: Plan, functions: Functions, machine: Machine) -> Module:
    """LLVM IR of a plan's functions, each ``(thread, threads, arguments)``."""
    module = _empty_module(machine)
    for _ in _emitted(module, plan, functions, machine):
        pass
    return module


def _empty_module(machine: Machine) -> Module:
    from llvmlite import ir

    module = ir.Module("plan")
    note_target(module, machine.vector_bytes, machine.converts_halves)
    return module


def _emitted(module: Module, plan: Plan, functions: Functions, machine: Machine) -> Iterator[str]:
    """Write functions into a module one by one, and tell the name of each; those first that LLVM's optimiser has no part in."""
    for name, function in sorted(functions.all.items(), key=lambda one: _is_optimised(one[1])):
        spec = plan.specs[function.digest]
        counts = len(spec.inputs), len(spec.body.outputs)
        code = new_code(module, name, spec, counts, machine, function.packing is not None)
        function.template.emit(replace(code, panels=function.panels))
        code.builder.ret_void()
        yield name
    for name, packing in functions.packing.values():
        user = next(f for f in functions.all.values() if f.packing and f.packing.key == packing.key)
        code = new_code(module, name, plan.specs[user.digest], (1, 1), machine, False)
        packing.emit(code)
        code.builder.ret_void()
        yield name


def _is_optimised(function: Function) -> bool:
    return function.template not in TILED


def _optimised(plan: Plan, functions: Functions, machine: Machine) -> Iterator[str]:
    """The functions that LLVM's optimiser has a part in, those of the steps of loops among them."""
    for name, function in functions.all.items():
        found = [(name, function.template)]
        if function.template is LOOPS:
            found += inner_functions(name, plan.specs[function.digest], machine)
        yield from (own for own, template in found if template not in TILED)


def compiled(
    plan: Plan, functions: Functions, cache: ObjectCache | None, machine: Machine
) -> tuple[bytes, ...]:
    """The object code of a plan's functions: from the cache, where nothing has to be emitted, or made and kept."""
    if machine.vector_bytes == 64 and "-avx512f" in machine.features.split(","):
        # LLVM would end the process where it meets an instruction that the processor does not have.
        raise CompileError(f"{machine.cpu} without AVX-512 has no vectors of 64 bytes")
    target = {"cpu": machine.cpu, "features": machine.features}
    kept = cache if cache is not None and _is_own(plan) else ObjectCache(None)
    key = object_key(functions.key, machine, passes=True)
    found = kept.get(key)
    if found is not None:
        return tuple(split(found))
    objects = compile_modules(_modules(plan, functions, machine), **target)
    kept.put(key, join(objects))
    return objects


def _is_own(plan: Plan) -> bool:
    """Whether all code follows from specs and darner's source; that of a user's op may be another in the next process."""
    coded = (spec for spec in plan.specs.values() if not spec.is_host)
    return all(node.op.builtin for spec in coded for node in spec.body.nodes)


def _modules(plan: Plan, functions: Functions, machine: Machine) -> Iterator[tuple[str, bool]]:
    """Modules that are the plan's code together, as they are written, and whether LLVM's optimiser is to run on each."""
    module = _empty_module(machine)
    parts = Parts(set(_optimised(plan, functions, machine)))
    written = 0
    for _ in _emitted(module, plan, functions, machine):
        new = [*module.globals.values()][written:]
        written += len(new)
        parts.add("\n".join(map(str, [*new, *module.metadata])))
        for one in new:
            _release(one)
        if parts.waiting >= PART:
            yield from parts.taken()
    yield from parts.taken()
    module.globals.clear()


def _release(value: Any) -> None:
    """Let go of a function's instructions, which refer to each other in circles, when its text was taken."""
    blocks = getattr(value, "blocks", ())
    for block in blocks:
        for instruction in block.instructions:
            if instruction.opname == "phi":
                instruction.incomings.clear()
        block.instructions.clear()
    # A function without blocks would be one that is only declared.
    if blocks:
        del blocks[1:]


def new_code(
    module: Module, name: str, spec: Spec, counts: tuple[int, int], machine: Machine, packed: bool
) -> Code:
    """A new function of so many operands and results, to be written."""
    from llvmlite import ir

    pointer, wide = ir.PointerType(), ir.IntType(64)
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [wide, wide, pointer]), name)
    function.attributes.add("nounwind")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    thread, threads, arguments = function.args

    def argument(number: int, kind: Type = pointer) -> Value:
        address = builder.gep(arguments, [i64(number)], source_etype=pointer)
        return builder.load(address, typ=kind)

    operands, results = counts
    addresses = [argument(FIXED + i) for i in range(operands + results)]
    own = builder.gep(
        argument(1), [builder.mul(thread, argument(2, wide))], source_etype=ir.IntType(8)
    )
    return Code(
        builder=builder,
        spec=spec,
        machine=machine,
        thread=thread,
        threads=threads,
        operands=addresses[:operands],
        results=addresses[operands:],
        own=own,
        shared=argument(3),
        team=argument(0),
        words=argument(4),
        packed=packed,
    )
