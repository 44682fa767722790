"""The op record, and the registry of all ops.

An op is declared once. The function under ``@primitive`` or ``@composite`` gives its name, its
parameters (by their annotations), its documentation (by its docstring) and its shape rule (by its
body); everything else that is known of it stands beside it:

    @primitive(family="reduction", samples=[sample(spec(3, 4), axis=-1)])
    def cumsum(x: Number, axis: Axis = -1) -> TensorType:
        '''Running sum along ``axis``.'''
        return x

    @cumsum.reference
    def _(x, axis):
        return np.cumsum(x, axis)

The op can then be called (``cumsum(x)``), is a method of every graph and node
(``g.cumsum(x)``, ``x.cumsum()``), prints, saves, and appears in ``darner ops``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from .attributes import Attribute, Operand, Parsed, parse_annotation
from .cached import cached_property
from .check import check_call
from .dims import Dim
from .errors import ArgumentError, InternalError, NameTakenError, caller, did_you_mean
from .facts import PLAIN, Facts
from .registry import Table, import_home
from .scalar import Emit, Of
from .types import TensorType, TupleType, Type

Rule = Callable[..., Any]
REQUIRED: Any = inspect.Parameter.empty


@cache
def calls() -> Any:
    """The module that makes nodes of calls; it needs this one, so it is met late, and once."""
    from . import build

    return build


@dataclass(frozen=True, slots=True)
class Cost:
    """What a node costs at least: bytes read and written once, and arithmetic operations."""

    bytes: Dim
    flops: Dim


@dataclass(frozen=True, slots=True)
class Resolved:
    """A shape rule's answer when it also settles attributes (``-1`` in a reshape, a pair for one number)."""

    type: TensorType | tuple[TensorType, ...]
    attrs: dict[str, Any]


def resolved(type: TensorType | tuple[TensorType, ...], **attrs: Any) -> Resolved:
    """Return this from a shape rule to replace attributes by their settled form."""
    return Resolved(type, attrs)


@dataclass(frozen=True, slots=True)
class Param:
    """One declared parameter."""

    name: str
    kind: Operand | Attribute
    default: Any
    keyword_only: bool
    optional: bool
    variadic: bool

    @property
    def is_operand(self) -> bool:
        """True when the argument is a node rather than an attribute."""
        return isinstance(self.kind, Operand)

    @property
    def may_be_none(self) -> bool:
        """True when None is a legal value."""
        return self.optional or self.default is None

    def __str__(self) -> str:
        if self.default is REQUIRED:
            return self.name
        return f"{self.name}={self.default!r}"


@dataclass
class Rules:
    """What is known of an op beyond its shape. Absent rules are None."""

    reference: Rule | None = None
    expand: Rule | None = None
    cost: Rule | None = None
    spelling: Rule | None = None
    spelled_operands: Callable[[Sequence[Any]], Iterable[int]] | None = None
    vjp: Rule | None = None
    jvp: Rule | None = None
    vmap: Rule | None = None
    emit: Emit | None = None
    pairs: Rule | None = None


@dataclass(eq=False)
class Op:
    """Everything darner knows of one operation. See the module's text for how to declare one.

    Attributes:
        traits: facts that passes ask about: ``elementwise``, ``view``, ``leaf``, ``commutative``, ``random``,
            ``moves`` (a composite without arithmetic).
        facts: what lowering, the optimizer and backends ask for.
        samples: typical calls, from which the tests of every transform and backend are made.
    """

    name: str
    family: str
    doc: str
    infer: Rule
    params: tuple[Param, ...]
    traits: frozenset[str] = frozenset()
    facts: Facts = PLAIN
    samples: tuple[Any, ...] = ()
    builtin: bool = False
    _rules: Rules = field(default_factory=Rules)
    _memo: dict[Any, tuple[Type, dict[str, Any]]] = field(default_factory=dict, repr=False)

    @property
    def rules(self) -> Rules:
        """All rules: modules that add some to this op are imported first."""
        if self.builtin:
            import_home(self.name)
        return self._rules

    @cached_property
    def by_name(self) -> dict[str, Param]:
        """Parameters by their name."""
        return {param.name: param for param in self.params}

    @cached_property
    def operands(self) -> tuple[Param, ...]:
        """The parameters that are nodes."""
        return tuple(param for param in self.params if param.is_operand)

    @cached_property
    def positional(self) -> tuple[Param, ...]:
        """The parameters that may be given by position."""
        return tuple(param for param in self.params if not param.keyword_only)

    @cached_property
    def attributes(self) -> tuple[Param, ...]:
        """The parameters that are stored values."""
        return tuple(param for param in self.params if not param.is_operand)

    @cached_property
    def attribute_names(self) -> tuple[str, ...]:
        """The names of the attributes, in the order that every node keeps them in."""
        return tuple(param.name for param in self.attributes)

    @cached_property
    def axis_params(self) -> tuple[Param, ...]:
        """The attributes that name axes of the first operand."""
        return tuple(p for p in self.attributes if isinstance(p.kind, Attribute) and p.kind.axes)

    @cached_property
    def plain(self) -> bool:
        """True when every operand is there once, so that their number alone says which is which."""
        return not any(param.optional or param.variadic for param in self.operands)

    @property
    def is_composite(self) -> bool:
        """True when the op is a function of other ops."""
        return self.rules.expand is not None

    @property
    def signature(self) -> str:
        """The call as documentation shows it."""
        shown, starred = [], False
        for param in self.params:
            if param.keyword_only and not starred:
                shown.append("*")
                starred = True
            shown.append(str(param))
        return f"{self.name}({', '.join(shown)})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Add this op to the graph of its operands."""
        return calls().call(self, None, args, kwargs)

    # ------------------------------------------------------------- rules, used as decorators

    def reference(self, rule: Rule) -> Rule:
        """NumPy arrays in, NumPy arrays out: what the op means."""
        return self._attach("reference", rule)

    def expand(self, rule: Rule) -> Rule:
        """Nodes in, nodes out: the op in terms of others."""
        return self._attach("expand", rule)

    def cost(self, rule: Rule) -> Rule:
        """Types and attributes in, flops out (or a ``Cost``)."""
        return self._attach("cost", rule)

    def spelling(self, rule: Rule) -> Rule:
        """Other ways to call the op.

        The rule gets the graph and the call's arguments, and returns ``(args, kwargs)`` in the declared
        form, or the node itself.
        """
        return self._attach("spelling", rule)

    def spelled_operands(self, rule: Rule) -> Rule:
        """Where another spelling has operands besides the declared ones: the call's arguments in, positions out."""
        return self._attach("spelled_operands", rule)

    def vjp(self, rule: Rule) -> Rule:
        """The reverse-mode derivative."""
        return self._attach("vjp", rule)

    def jvp(self, rule: Rule) -> Rule:
        """The forward-mode derivative."""
        return self._attach("jvp", rule)

    def vmap(self, rule: Rule) -> Rule:
        """The op over a batch of operands."""
        return self._attach("vmap", rule)

    def emit(self, rule: Rule | None = None, *, of: Of = "floats") -> Rule:
        """Scalar code of an element-wise op, from which every compiled device makes its kernels.

        The rule gets a ``Scalar`` (``graph.scalar``) an operand: ``@op.emit`` those of floats, ``@op.emit(of="integers")`` those of integers, and
        ``of="bools"`` masks.
        """
        if rule is None:
            return lambda rule: self.emit(rule, of=of)
        if "elementwise" not in self.traits:
            raise ArgumentError(
                f"{self.name} is not element-wise: it has no code for single elements",
                hint="declare it with traits=['elementwise']",
            )
        if self.builtin and not rule.__module__.startswith("darner."):
            raise ArgumentError(
                f"{self.name} is darner's own: compiled code of it is kept, so it has no other"
            )
        self._rules.emit = (self._rules.emit or Emit()).with_rule(of, rule)
        return rule

    def pairs(self, rule: Rule) -> Rule:
        """The op of complex numbers by real ones, for compiled devices.

        The rule gets a pair ``(re, im)`` of nodes in place of each complex operand, and returns one.
        """
        return self._attach("pairs", rule)

    def _attach(self, name: str, rule: Rule) -> Rule:
        setattr(self._rules, name, rule)
        return rule

    # ------------------------------------------------------------- use of the rules

    def arguments(self, values: Sequence[Any], slots: Sequence[str]) -> dict[str, Any]:
        """Operand values by parameter name: None where absent, lists where variadic."""
        named: dict[str, Any] = {p.name: [] if p.variadic else None for p in self.operands}
        for value, slot in zip(values, slots, strict=True):
            if isinstance(named[slot], list):
                named[slot].append(value)
            else:
                named[slot] = value
        return named

    def infer_type(
        self, types: tuple[Type, ...], slots: tuple[str, ...], attrs: dict[str, Any]
    ) -> tuple[Type, dict[str, Any]]:
        """The result's type and the settled attributes; remembered for equal questions."""
        if tuple(attrs) != self.attribute_names:
            attrs = self._in_order(attrs)
        if "leaf" in self.traits:  # asked once, and a constant should not be kept alive
            type_, changed = self._infer(types, slots, attrs)
        else:
            type_, changed = self._remembered(types, slots, attrs)
        return type_, {**attrs, **changed} if changed else attrs

    def _remembered(
        self, types: tuple[Type, ...], slots: tuple[str, ...], attrs: dict[str, Any]
    ) -> tuple[Type, dict[str, Any]]:
        key = (types, slots, tuple(attrs.values()))
        found = self._memo.get(key)
        if found is None:
            if len(self._memo) > 50_000:
                self._memo.clear()
            found = self._memo[key] = self._infer(types, slots, attrs)
        return found

    def _infer(
        self, types: tuple[Type, ...], slots: tuple[str, ...], attrs: dict[str, Any]
    ) -> tuple[Type, dict[str, Any]]:
        """The result's type, and the attributes that the rule replaces."""
        check_call(self, types, slots, attrs)
        answer = self.infer(**self.arguments(types, slots), **attrs)
        changed: dict[str, Any] = {}
        if isinstance(answer, Resolved):
            changed = {name: new for name, new in answer.attrs.items() if new != attrs[name]}
            answer = answer.type
        if isinstance(answer, tuple):
            answer = TupleType(answer)
        if not isinstance(answer, TensorType | TupleType):
            raise InternalError(f"the shape rule of '{self.name}' returned {answer!r}, not a type")
        return answer, changed

    def _in_order(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if attrs.keys() != set(self.attribute_names):
            raise ArgumentError(
                f"{self.name} has the attributes {list(self.attribute_names)}, got {list(attrs)}"
            )
        return {name: attrs[name] for name in self.attribute_names}

    def __repr__(self) -> str:
        return f"<op {self.signature}>"


# --------------------------------------------------------------------------- registry


@dataclass(frozen=True, eq=False)
class Builder:
    """A graph method that only adds other ops: a spelling, a shorthand, a block of a model."""

    name: str
    family: str
    doc: str
    function: Rule
    takes_node: bool

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call with nodes; the graph is theirs."""
        return calls().call_builder(self, None, args, kwargs)

    @cached_property
    def builtin(self) -> bool:
        """Whether it is one of darner's own."""
        return _is_builtin(self.function)

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """The names of what it takes, the graph itself left out."""
        return tuple(inspect.signature(self.function).parameters)[1:]

    @cached_property
    def annotations(self) -> dict[str, str]:
        """What is declared of each parameter, those of ``*rest`` left out."""
        params = list(inspect.signature(self.function).parameters.values())[1:]
        single = (p for p in params if p.kind is not inspect.Parameter.VAR_POSITIONAL)
        return {p.name: shown_annotation(p) for p in single}

    @cached_property
    def operands(self) -> frozenset[str]:
        """The names of the parameters that are one node."""
        return frozenset(n for n, text in self.annotations.items() if text.startswith("Node"))

    @property
    def signature(self) -> str:
        """The call as documentation shows it (the graph itself is left out)."""
        params = list(inspect.signature(self.function).parameters.values())[1:]
        shown = [_shown_param(param) for param in params]
        named = [param.kind is inspect.Parameter.KEYWORD_ONLY for param in params]
        starred = any(param.kind is inspect.Parameter.VAR_POSITIONAL for param in params)
        if any(named) and not starred:
            shown.insert(named.index(True), "*")
        return f"{self.name}({', '.join(shown)})"


def shown_annotation(param: inspect.Parameter) -> str:
    """An annotation as it was written, whether or not its module keeps annotations as text."""
    found = param.annotation
    text = found if isinstance(found, str) else inspect.formatannotation(found)
    return text.replace("darner.graph.node.", "")


def _shown_param(param: inspect.Parameter) -> str:
    star = "*" if param.kind is inspect.Parameter.VAR_POSITIONAL else ""
    if param.default is REQUIRED:
        return star + param.name
    return f"{param.name}={param.default!r}"


OPS: Table[Op] = Table()
BUILDERS: Table[Builder] = Table()


def find(name: str) -> Op | Builder | None:
    """The op or builder of that name."""
    import_home(name)
    return _declared(name) or OPS.get(name) or BUILDERS.get(name)


def _declared(name: str) -> Op | Builder | None:
    return OPS.declared.get(name) or BUILDERS.declared.get(name)


OTHER_NAMES: dict[str, str] = {}
"""What other systems call ops where it is not darner's name in other letters, as ``RmsNorm`` is: ``Expand`` is ``broadcast_to``."""


def get_op(name: str) -> Op:
    """The op of that name; an error with the nearest names otherwise."""
    if name not in OPS:
        raise ArgumentError(
            f"no op is called '{name}'",
            hint=suggest(name) or "declare it with darner.primitive",
        )
    return OPS[name]


def op_or_builder(name: str) -> Op | Builder:
    """The op or builder of that name, which may be another system's (``RmsNorm``); an error with the nearest names otherwise."""
    return find(name) or find(OTHER_NAMES.get(name, "")) or _in_other_letters(name) or get_op(name)


def _in_other_letters(name: str) -> Op | Builder | None:
    """What a name in capitals and small letters without underscores means: ``RmsNorm`` is ``rms_norm``."""
    if not name.isalnum() or not name[:1].isupper():
        return None
    letters = name.lower()
    known: list[Op | Builder] = [*OPS.values(), *BUILDERS.values()]
    return next((item for item in known if item.name.replace("_", "") == letters), None)


def suggest(name: str) -> str | None:
    """A hint towards an op or builder with a similar name."""
    return did_you_mean(name, [*OPS, *BUILDERS])


def _register(table: Table[Any], item: Op | Builder) -> None:
    from .graph import Graph
    from .node import Node

    if not item.builtin:
        import_home(item.name)
    if _declared(item.name) is not None:
        raise NameTakenError(f"an op called '{item.name}' is already declared")
    for holder in (Graph, Node):
        if item.name in vars(holder):
            raise NameTakenError(f"'{item.name}' is already an attribute of {holder.__name__}")
    table[item.name] = item


def unregister(name: str) -> None:
    """Remove a declared op or builder (not one of darner's own); graphs that hold it still run."""
    item = find(name)
    rule = item.infer if isinstance(item, Op) else item.function if item is not None else None
    if rule is None or _is_builtin(rule):
        raise ArgumentError(f"'{name}' is not an op declared outside darner")
    OPS.pop(name, None)
    BUILDERS.pop(name, None)


def _is_builtin(function: Rule) -> bool:
    return function.__module__.startswith(("darner.ops", "darner.compat"))


def _declared_parameters(function: Rule) -> Iterator[tuple[str, Any, bool]]:
    """Name, default and whether it is keyword-only; ``inspect`` would take most of darner's import."""
    code = function.__code__
    positional = code.co_varnames[: code.co_argcount]
    keyword = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    defaults = function.__defaults__ or ()
    required = len(positional) - len(defaults)
    for i, name in enumerate(positional):
        yield name, REQUIRED if i < required else defaults[i - required], False
    for name in keyword:
        yield name, (function.__kwdefaults__ or {}).get(name, REQUIRED), True


_PARSED: dict[tuple[str, str], Parsed] = {}


def _parsed(function: Rule, annotation: Any) -> Parsed:
    """An annotation's meaning; as text it is read in the function's module, once."""
    if not isinstance(annotation, str):
        return parse_annotation(annotation)
    key = (function.__module__, annotation)
    if not _is_builtin(function):  # a session's names may change their meaning
        return parse_annotation(eval(annotation, function.__globals__))
    if key not in _PARSED:
        _PARSED[key] = parse_annotation(eval(annotation, function.__globals__))
    return _PARSED[key]


def _make_op(
    function: Rule,
    name: str | None,
    family: str,
    samples: Iterable[Any],
    traits: Iterable[str],
    facts: Facts,
) -> Op:
    params = []
    for item, default, keyword_only in _declared_parameters(function):
        if item not in function.__annotations__:
            raise ArgumentError(f"parameter '{item}' of op '{function.__name__}' has no annotation")
        parsed = _parsed(function, function.__annotations__[item])
        if default is not REQUIRED and default is not None and isinstance(parsed.kind, Attribute):
            default = parsed.kind.coerce(default)
        params.append(
            Param(item, parsed.kind, default, keyword_only, parsed.optional, parsed.variadic)
        )
    op = Op(
        name=name or function.__name__,
        family=family,
        doc=inspect.cleandoc(function.__doc__ or ""),
        infer=function,
        params=tuple(params),
        traits=frozenset(traits),
        facts=facts,
        samples=tuple(samples),
        builtin=_is_builtin(function),
    )
    if not op.doc:
        raise ArgumentError(f"op '{op.name}' has no docstring").located(op.name, None, "", caller())
    _register(OPS, op)
    return op


def primitive(
    *,
    family: str,
    name: str | None = None,
    samples: Iterable[Any] = (),
    traits: Iterable[str] = (),
    facts: Facts = PLAIN,
) -> Callable[[Rule], Op]:
    """Declare an op that is not made of others. It needs a ``reference``."""
    return lambda function: _make_op(function, name, family, samples, traits, facts)


def composite(
    *,
    family: str,
    name: str | None = None,
    samples: Iterable[Any] = (),
    traits: Iterable[str] = (),
    facts: Facts = PLAIN,
) -> Callable[[Rule], Op]:
    """Declare an op that is a function of others. It needs an ``expand``."""
    return lambda function: _make_op(function, name, family, samples, traits, facts)


def builder(*, family: str, name: str | None = None) -> Callable[[Rule], Builder]:
    """Declare a graph method that only calls other ops; it receives the graph first."""

    def declare(function: Rule) -> Builder:
        parameters = list(inspect.signature(function).parameters.values())
        doc = inspect.cleandoc(function.__doc__ or "")
        label = name or function.__name__
        if not doc:
            raise ArgumentError(f"builder '{label}' has no docstring")
        takes_node = len(parameters) > 1 and shown_annotation(parameters[1]).startswith("Node")
        item = Builder(label, family, doc, function, takes_node)
        _register(BUILDERS, item)
        return item

    return declare
