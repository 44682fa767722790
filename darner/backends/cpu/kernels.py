"""Kernels as code: one function for each spec of a plan, by the first template that has code for it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ...graph.errors import DarnerError
from ...lower.plan import Plan, Spec
from .attention import ATTENTION
from .complexes import COMPLEX
from .contract import CONTRACT
from .conv import CONV
from .jit import Machine, host
from .maps import ELEMENTS
from .places import as_value
from .rows import ROWS
from .scans import SCANS
from .scatters import SCATTERS
from .solving import SOLVING
from .sorting import SORTING
from .steps import FIXED
from .template import Code, Scratch, Template
from .updates import UPDATES

TEMPLATES: tuple[Template, ...] = (
    COMPLEX,
    ATTENTION,
    CONTRACT,
    CONV,
    SORTING,
    SCATTERS,
    SCANS,
    UPDATES,
    SOLVING,
    ROWS,
    ELEMENTS,
)
"""The families of kernels, those with the best code first."""


class UnsupportedError(DarnerError):
    """A plan asks for something that this backend has no code for."""


class Functions(NamedTuple):
    """What the code of a plan consists of: one function for each spec, by digest.

    Attributes:
        names: what it is called.
        templates: who writes it.
        scratch: the memory it needs.
    """

    names: Mapping[str, str]
    templates: Mapping[str, Template]
    scratch: Mapping[str, Scratch]

    @property
    def key(self) -> str:
        """A text that says all that their code depends on, besides the machine and the compiler."""
        return "\n".join([_source_digest(), *self.names])


def template_of(spec: Spec) -> Template | None:
    """The template that makes a spec's code."""
    return next((template for template in TEMPLATES if template.fits(spec)), None)


def functions_of(plan: Plan, machine: Machine | None = None) -> Functions:
    """The functions of a plan.

    Raises:
        UnsupportedError: a kernel has no template; the error names the op and the user's line.
    """
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
    names = {digest: f"kernel{number}" for number, digest in enumerate(chosen)}
    scratch = {
        digest: template.scratch(plan.specs[digest], machine) for digest, template in chosen.items()
    }
    return Functions(names, chosen, scratch)


def emit_module(plan: Plan, functions: Functions, machine: Machine | None = None) -> Any:
    """LLVM IR of a plan's functions, each ``(thread, threads, arguments)``."""
    from llvmlite import ir  # type: ignore[import-untyped]

    module = ir.Module("plan")
    for digest, template in functions.templates.items():
        _emit(module, functions.names[digest], plan.specs[digest], template, machine or host())
    return module


@cache
def _source_digest() -> str:
    """A hash of this backend's own code: what it compiled before a change is not what it compiles after."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


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
        fault=argument(4),
    )
    template.emit(code)
    code.builder.ret_void()
