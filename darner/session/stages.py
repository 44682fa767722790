"""The last stage of a graph: planned for a device, to be looked at, saved, and built into sessions.

>>> import darner
>>> g = darner.Graph("ffn")
>>> g.set_outputs([(g.input("x", (2, 4)) @ g.parameter("w", (4, 4))).relu()])
>>> module = g.module().lower()
>>> module
<LirModule 'ffn' for cpu: infer, 1 kernel, arena 64 B>
>>> with darner.build_inference_session(module) as session:
...     session.set_parameter("w", [1.0] * 16)
...     print(session.run({"x": [1.0, 2.0, 3.0, 4.0] * 2})["output0"])
[[10. 10. 10. 10.]
 [10. 10. 10. 10.]]
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, NoReturn

from .. import optim
from ..backends.base.registry import backend_of
from ..graph.binding import DimBinding
from ..graph.dims import Dim
from ..graph.errors import ArgumentError, Calling, FormatError, LowerError
from ..graph.garbage import without_collection
from ..graph.graph import Graph, check_graph
from ..graph.node import Node
from ..graph.stages.module import GraphModule, check_module, graph_of
from ..graph.types import TensorType
from ..io.memory import format_size
from ..lower.plan import Plan
from ..optim.base import Optimizer, matrices_only
from .config import SessionConfig
from .pipeline import Pipeline, Plans, check_leaves, session_graph
from .progress import Phases
from .values import kept_type, leaf_type

if TYPE_CHECKING:
    from ..optimizer import OptimizeReport

PLANNED = ("device", "mode", "level", "precision", "keep_gradients", "side_by_side", "optimizer")
"""The fields of a config that a plan is made by: a session of the plan has them as they are."""

PLAIN = (bool, int, float, str, dict, type(None))
"""What an optimizer's fields are in JSON."""


class LirModule(GraphModule, stage="lir"):
    """A graph and its plan for a device: ``graph.module().lower(device="cpu")`` makes one.

    A session built of it (``build_inference_session(module)``, ``build_session(module)``) runs the plan as it is. In a file it
    is code: read only what you wrote yourself.

    Attributes:
        graph: what was planned, frozen.
        plans: what steps run, and what runs before them when parameters have changed.
        config: what was asked for.
        machine: what the plan is for, as the keys of caches name it.
    """

    def __init__(
        self, graph: Graph, plans: Plans, config: SessionConfig, machine: str | None = None
    ) -> None:
        super().__init__(graph)
        with Calling("LirModule"):
            _check_fit(session_graph(graph, config), plans, config)
        self.graph = graph.copy().freeze()
        self.plans = plans
        self.config = config
        self.machine = _machine(config) if machine is None else machine

    @property
    def plan(self) -> Plan:
        """The plan of a step: kernels over one arena."""
        return self.plans.step

    @property
    def setup(self) -> Plan | None:
        """The plan of what depends on parameters alone, where there is such a thing."""
        return self.plans.setup

    @property
    def report(self) -> OptimizeReport:
        """What the optimizer did; empty in a module that was read from JSON."""
        return self.plans.report

    @classmethod
    def lowered(cls, module: GraphModule, options: Mapping[str, object]) -> LirModule:
        """The plan of a graph as fields of ``SessionConfig`` say, or ``config=``; for inference on the CPU without any."""
        changes = dict(options)
        config = changes.pop("config", None) or SessionConfig(mode="infer")
        if not isinstance(config, SessionConfig):
            raise ArgumentError(f"config is a SessionConfig, got {config!r}")
        config = config.with_changes(**changes)
        graph = module.graph.verify()
        check_leaves(graph)
        if symbols := graph.dynamic_symbols():
            raise LowerError(
                f"graph '{graph.name}' has sizes that are not known: {', '.join(symbols)}",
                hint=f"bind them first: module.bind({symbols[0]}=...)",
            )
        phases = Phases(graph.name, config.progress)
        with phases.shown(), without_collection():
            backend_of(config.device).warm_up()
            pipeline = Pipeline(session_graph(graph, config), config)
            plans = pipeline.plans(config.optimizer, phases.timed)
        return cls(graph, plans, config)

    def bind(self, bindings: Mapping[str, Dim] | None = None, **sizes: Dim) -> NoReturn:
        """Refused: a plan knows all sizes."""
        raise LowerError(
            f"module '{self.name}' is at stage lir: its sizes are known", hint="bind before lower"
        )

    # ------------------------------------------------------------- printing, comparing, saving

    def __repr__(self) -> str:
        count = len(self.plan.kernels)
        kernels = f"{count} kernel{'' if count == 1 else 's'}"
        about = f"{self.config.mode}, {kernels}, arena {format_size(self.plan.arena_bytes)}"
        return f"<LirModule '{self.name}' for {self.config.device}: {about}>"

    def __str__(self) -> str:
        parts = [f"stage {self.stage()}", str(self.plan)]
        if self.setup is not None:
            parts.append(f"setup, when parameters have changed\n{self.setup}")
        return "\n".join(parts)

    def inspect(self) -> str:
        """Kernels, arena and leaves of the plan, then the graph that it is of."""
        return f"{self}\n{self.graph.inspect()}"

    def same_plan(self, other: GraphModule) -> bool:
        """Whether another module has the same plan, made by the same options."""
        return (
            isinstance(other, LirModule)
            and _digests(self.plans) == _digests(other.plans)
            and all(getattr(self.config, n) == getattr(other.config, n) for n in PLANNED)
        )

    def written(self) -> dict[str, object]:
        """The plans and the options that they were made by, as JSON has them."""
        plans, config = self.plans, self.config
        setup = None if plans.setup is None else json.loads(plans.setup.to_json())
        return {
            "step": json.loads(plans.step.to_json()),
            "setup": setup,
            "setup_names": list(plans.setup_names),
            "copies": list(plans.copies),
            "outputs": plans.outputs,
            "gradients": list(plans.gradients),
            "options": {name: getattr(config, name) for name in PLANNED[:-1]},
            "optimizer": _written_optimizer(config.optimizer),
            "machine": self.machine,
        }

    @classmethod
    def read(cls, graph: Graph, document: Mapping[str, object]) -> LirModule:
        """The module that ``written`` is of; the plan is verified, and must fit the graph."""
        try:
            config = _read_options(document["options"], _read_optimizer(document["optimizer"]))
            setup = document["setup"]
            plans = Plans(
                step=Plan.from_json(json.dumps(document["step"])),
                setup=None if setup is None else Plan.from_json(json.dumps(setup)),
                setup_names=_names(document["setup_names"]),
                copies=_names(document["copies"]),
                outputs=_count(document["outputs"]),
                gradients=_names(document["gradients"]),
            )
            return cls(graph, plans, config, _text(document["machine"]))
        except (KeyError, TypeError, AttributeError) as error:
            raise FormatError(f"the module cannot be read: {error!r}") from error


class CompilePipeline:
    """Takes graphs and modules of any stage down to lir, always by the same options.

    Args:
        config: what is asked for; inference on the CPU when left out.
        sizes: what symbols are to be.
        overrides: fields of the config that are to be different.

    >>> import darner
    >>> pipeline = CompilePipeline(sizes=darner.DimBinding(batch=2), level=1)
    >>> module = darner.Graph.define("double", lambda g: g.input("x", ("batch", 3)) * 2.0)
    >>> pipeline.compile_module(module)
    <LirModule 'double' for cpu: infer, 1 kernel, arena 64 B>
    >>> [step.stage() for step in pipeline.stages(module)]
    ['hir', 'mir', 'lir']
    """

    def __init__(
        self,
        config: SessionConfig | None = None,
        *,
        sizes: Mapping[str, Dim] | None = None,
        **overrides: object,
    ) -> None:
        with Calling("CompilePipeline"):
            if config is not None and not isinstance(config, SessionConfig):
                raise ArgumentError(f"config is a SessionConfig, got {config!r}")
            self.config = (config or SessionConfig(mode="infer")).with_changes(**overrides)
            self.sizes = DimBinding(sizes)

    @classmethod
    def new(cls, device: str | None = None) -> CompilePipeline:
        """A pipeline for a device."""
        return cls() if device is None else cls(device=device)

    def stages(self, model: Graph | GraphModule) -> list[GraphModule]:
        """The module, or the graph as one, at every stage from its own to lir."""
        with Calling("CompilePipeline"):
            module = model.module() if isinstance(model, Graph) else check_module(model)
        found = [module]
        while module.stage() != "lir":
            if module.stage() == "mir":
                bound = module.bind(self.sizes) if module.graph.has_dynamic_dims() else module
                module = bound.lower(config=self.config)
            else:
                module = module.lower()
            found.append(module)
        return found

    def compile(self, model: Graph | GraphModule) -> LirModule:
        """The module at lir. One that is there already must have been made by the same options."""
        found = self.stages(model)[-1]
        if not isinstance(found, LirModule):
            raise LowerError(f"stage lir is made by '{type(found).__name__}'")
        with Calling("compile"):
            config_of(found, self.config, {})
        return found

    compile_module = compile

    def __repr__(self) -> str:
        config = self.config
        return f"<CompilePipeline for {config.device}: {config.mode}, level {config.level}>"


def unpacked(model: Graph | GraphModule) -> tuple[Graph, LirModule | None]:
    """What a session is built of: a graph, and the module that has its plan, where one was given."""
    if isinstance(model, LirModule):
        return model.graph, model
    graph = graph_of(model) if isinstance(model, GraphModule) else model
    return check_graph(graph), None


def config_of(
    module: LirModule, config: SessionConfig | None, overrides: Mapping[str, object]
) -> SessionConfig:
    """What a session of a module is asked to be: as the module was planned, the rest as it is said here."""
    chosen = (config or module.config).with_changes(**overrides)
    for name in PLANNED:
        asked, made = getattr(chosen, name), getattr(module.config, name)
        if asked != made:
            raise LowerError(
                f"module '{module.name}' was lowered with {name}={made!r}, not {asked!r}",
                hint=f"lower its graph anew: module.into_graph().module().lower({name}=...)",
            )
    if module.machine != (here := _machine(chosen)):
        raise LowerError(
            f"module '{module.name}' was lowered for another machine: {module.machine}, not {here}",
            hint="lower its graph here: module.into_graph().module().lower(...)",
        )
    return chosen


def _machine(config: SessionConfig) -> str:
    """What code for the device of a config is made for."""
    return backend_of(config.device).machine(config.device).key()


def _digests(plans: Plans) -> list[str]:
    return [plan.digest() for plan in (plans.step, plans.setup) if plan is not None]


# --------------------------------------------------------------------------- a plan and its graph


def _check_fit(graph: Graph, plans: Plans, config: SessionConfig) -> None:
    """Refuse plans that are not of this graph: their programs would read and write memory of other sizes."""
    step = plans.step
    if step.target != (target := backend_of(config.device).target):
        raise FormatError(f"the plan is for {step.target}, but '{config.device}' is {target}")
    for place, leaves in _leaves(graph).items():
        found = step.stored(place)
        for name, leaf in leaves.items():
            buffer = found.pop(name, None)
            if buffer is None or buffer.type != kept_type(leaf):
                shown = "is not in it" if buffer is None else f"is {buffer.type} in it"
                raise FormatError(
                    f"the plan is of another graph: {place} '{name}' is {kept_type(leaf)}, and {shown}"
                )
        made = {"input": plans.setup_names, "state": plans.copies}
        allowed = set(made.get(place, ()))
        extra = found.keys() - allowed
        if extra and not (place == "state" and config.optimizer is not None):
            raise FormatError(f"the plan is of another graph: it has the {place} '{min(extra)}'")
    _check_ends(step, [node.type for node in graph.outputs], plans.outputs, "output")
    gradients = [leaf_type(graph.parameters[n]) for n in plans.gradients if n in graph.parameters]
    given = [None] * plans.outputs + list(gradients)
    if len(step.outputs) != len(given) or len(gradients) != len(plans.gradients):
        raise FormatError(f"the plan has {len(step.outputs)} outputs, not {len(given)}")
    for i, type_ in zip(step.outputs, given, strict=True):
        if type_ is not None and step.buffers[i].type != type_:
            raise FormatError(f"a gradient is {step.buffers[i].type} in the plan, not {type_}")
    _check_setup(graph, plans)


def _leaves(graph: Graph) -> dict[str, dict[str, Node]]:
    return {"input": graph.inputs, "parameter": graph.parameters, "state": graph.states}


def _check_ends(plan: Plan, types: Sequence[object], count: int, what: str) -> None:
    found = [plan.buffers[i].type for i in plan.outputs[:count]]
    if count != len(types) or found != list(types):
        stated = ", ".join(map(str, types))
        raise FormatError(f"the {what}s of the plan are {', '.join(map(str, found))}, not {stated}")


def _check_setup(graph: Graph, plans: Plans) -> None:
    """What is computed once must be what the step reads, and read parameters alone."""
    setup, names, copies = plans.setup, plans.setup_names, plans.copies
    if (setup is None) == bool(names or copies):
        count = len(names) + len(copies)
        raise FormatError(f"the step reads {count} values that nothing computes before it")
    if setup is None:
        return
    if setup.target != plans.step.target:
        raise FormatError(f"the setup is for {setup.target}, the step for {plans.step.target}")
    inputs = plans.step.leaves("input")
    if unknown := [name for name in names if name not in inputs]:
        raise FormatError(f"the step has no input '{unknown[0]}'")
    types = [plans.step.buffers[inputs[name]].type for name in names]
    _check_ends(setup, types, len(setup.outputs), "value")
    updated = {str(setup.buffers[old].name) for old, _ in setup.updates}
    if updated != set(copies):
        raise FormatError(f"the setup makes {len(updated)} copies, not {len(copies)}")
    given: dict[str, dict[str, TensorType]] = {
        "parameter": {name: kept_type(leaf) for name, leaf in graph.parameters.items()},
        "state": {name: one.type for name, one in plans.step.stored("state").items()},
        "input": {},
    }
    for place, wanted in given.items():
        for name, buffer in setup.stored(place).items():
            if wanted.get(name) != buffer.type or (place == "state" and name not in copies):
                raise FormatError(f"the setup is of another graph: it has the {place} '{name}'")


# --------------------------------------------------------------------------- options in JSON


def _written_optimizer(optimizer: Optimizer | None) -> dict[str, object] | None:
    """An optimizer by the name of its class and its numbers."""
    if optimizer is None:
        return None
    kind = type(optimizer)
    values = {item.name: getattr(optimizer, item.name) for item in fields(optimizer)}
    if values["decay_filter"] is matrices_only:
        values["decay_filter"] = matrices_only.__name__
    functions = [name for name, value in values.items() if not isinstance(value, PLAIN)]
    if _optimizer_class(kind.__name__) is not kind or functions:
        what = f"its {', '.join(functions)}" if functions else "a class of your own"
        raise FormatError(
            f"{kind.__name__} cannot be written: {what} is code",
            hint="lower without an optimizer, and give the session one by set_optimizer",
        )
    return {"class": kind.__name__, "values": values}


def _read_options(document: object, optimizer: Optimizer | None) -> SessionConfig:
    if not isinstance(document, dict):
        raise FormatError(f"the options of a plan are given by name, not {document!r}")
    if unknown := sorted(document.keys() - set(PLANNED[:-1])):
        raise FormatError(f"a plan is not made by {', '.join(unknown)}")
    return SessionConfig().with_changes(**document, optimizer=optimizer)


def _read_optimizer(document: object) -> Optimizer | None:
    if document is None:
        return None
    if not isinstance(document, dict) or not isinstance(document.get("values"), dict):
        raise FormatError(f"an optimizer is a class and its values, not {document!r}")
    kind, values = _optimizer_class(document.get("class")), dict(document["values"])
    if kind is None:
        raise FormatError(f"there is no optimizer {document.get('class')!r}")
    known = {item.name for item in fields(kind)}
    if unknown := sorted(values.keys() - known):
        raise FormatError(f"{kind.__name__} has no '{unknown[0]}'")
    if values.get("decay_filter") == matrices_only.__name__:
        values["decay_filter"] = matrices_only
    return kind(**values)


def _optimizer_class(name: object) -> type[Optimizer] | None:
    """One of darner's own optimizers by the name of its class."""
    found = getattr(optim, name) if isinstance(name, str) and name in optim.__all__ else None
    return found if isinstance(found, type) and issubclass(found, Optimizer) else None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise FormatError(f"the machine of a module is text, not {value!r}")
    return value


def _names(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise FormatError(f"expected names, got {value!r}")
    return tuple(value)


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise FormatError(f"expected a number of outputs, got {value!r}")
    return value
