"""Kernels as code: one function for each spec of a plan, by the first template that has code for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ...graph.errors import DarnerError
from ...lower.plan import Plan, Spec
from .jit import Machine, host
from .maps import ELEMENTS
from .places import as_value
from .scatters import SCATTERS
from .steps import FIXED
from .template import Code, Scratch, Template

TEMPLATES: tuple[Template, ...] = (SCATTERS, ELEMENTS)
"""The families of kernels, those with the best code first."""


class UnsupportedError(DarnerError):
    """A plan asks for something that this backend has no code for."""


class Emitted(NamedTuple):
    """The code of a plan's specs.

    Attributes:
        module: LLVM IR with one function for each spec.
        names: the function of each spec, by digest.
        scratch: the memory of each, by digest.
    """

    module: Any
    names: Mapping[str, str]
    scratch: Mapping[str, Scratch]


def template_of(spec: Spec) -> Template | None:
    """The template that makes a spec's code."""
    return next((template for template in TEMPLATES if template.fits(spec)), None)


def emit_plan(plan: Plan, machine: Machine | None = None) -> Emitted:
    """The functions of a plan, each ``(thread, threads, arguments)``.

    Raises:
        UnsupportedError: a kernel has no template; the error names the op and the user's line.
    """
    from llvmlite import ir  # type: ignore[import-untyped]

    machine = machine or host()
    chosen: dict[str, Template] = {}
    for kernel in plan.kernels:
        spec = plan.spec(kernel)
        template = chosen.get(kernel.spec) or template_of(spec)
        if template is None:
            ops = ", ".join(dict.fromkeys(spec.ops))
            raise UnsupportedError(
                f"the CPU backend has no kernel of kind '{spec.kind}' for {ops}"
            ).located(spec.ops[-1], kernel.label, "", kernel.source)
        chosen[kernel.spec] = template
    module = ir.Module("plan")
    names: dict[str, str] = {}
    scratch: dict[str, Scratch] = {}
    for number, (digest, template) in enumerate(chosen.items()):
        spec = plan.specs[digest]
        names[digest] = f"kernel{number}"
        scratch[digest] = template.scratch(spec, machine)
        _emit(module, names[digest], spec, template, machine)
    return Emitted(module, names, scratch)


def _emit(module: Any, name: str, spec: Spec, template: Template, machine: Machine) -> None:
    from llvmlite import ir

    pointer, wide = ir.PointerType(), ir.IntType(64)
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [wide, wide, pointer]), name)
    function.attributes.add("nounwind")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    thread, threads, arguments = function.args

    def argument(number: int, kind: Any = pointer) -> Any:
        place = builder.gep(arguments, [as_value(number)], source_etype=pointer)
        return builder.load(place, typ=kind)

    count = len(spec.inputs)
    places = [argument(FIXED + i) for i in range(count + len(spec.body.outputs))]
    own = builder.gep(
        argument(1), [builder.mul(thread, argument(2, wide))], source_etype=ir.IntType(8)
    )
    code = Code(
        builder=builder,
        spec=spec,
        machine=machine,
        thread=thread,
        threads=threads,
        operands=places[:count],
        results=places[count:],
        own=own,
        shared=argument(3),
        team=argument(0),
    )
    template.emit(code)
    code.builder.ret_void()
