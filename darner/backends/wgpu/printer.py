"""The SIMT builder's WGSL: what templates write, as the text of a shader.

Expressions become names where a template says ``let``, where something is read from memory, and where a scalar instruction makes them; all others stand where they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...codegen.simt.builder import Memory, Value, value_type
from ...codegen.simt.dispatch import Binding
from ...graph import dtypes
from ...graph.dtypes import DType
from ...graph.errors import InternalError, UnsupportedError
from .access import Access
from .lanes import ShaderLane, philox
from .stage import Listing, Stage
from .text import Cell, Text, dtype_of, element, integer, reads_of, spelled, vector, width
from .writer import HIDDEN, ZERO, Writer

if TYPE_CHECKING:
    from .machine import Machine

WORDS = frozenset(
    [
        "abs",
        "acos",
        "alias",
        "all",
        "any",
        "asin",
        "atan",
        "atan2",
        "bitcast",
        "bool",
        "break",
        "case",
        "ceil",
        "clamp",
        "const",
        "continue",
        "continuing",
        "cos",
        "cosh",
        "cross",
        "default",
        "degrees",
        "determinant",
        "diagnostic",
        "discard",
        "distance",
        "dot",
        "else",
        "enable",
        "enum",
        "exp",
        "exp2",
        "f16",
        "f32",
        "f64",
        "false",
        "floor",
        "fma",
        "fn",
        "for",
        "fract",
        "frexp",
        "group",
        "i32",
        "i64",
        "if",
        "import",
        "inverseSqrt",
        "ldexp",
        "length",
        "let",
        "local",
        "log",
        "log2",
        "loop",
        "main",
        "max",
        "min",
        "mix",
        "mod",
        "modf",
        "module",
        "normalize",
        "of",
        "override",
        "part",
        "pow",
        "private",
        "ptr",
        "radians",
        "ref",
        "reflect",
        "requires",
        "return",
        "round",
        "select",
        "set",
        "sign",
        "sin",
        "sinh",
        "smoothstep",
        "sqrt",
        "static",
        "step",
        "storage",
        "struct",
        "switch",
        "tan",
        "tanh",
        "target",
        "texture",
        "thread",
        "transpose",
        "true",
        "trunc",
        "u32",
        "u64",
        "uniform",
        "var",
        "vec2",
        "vec3",
        "vec4",
        "while",
        "workgroup",
        "unpack2x16float",
        "pack2x16float",
        "typedef",
        "type",
        "using",
        "use",
        "virtual",
        "void",
        "self",
        "super",
        "shared",
        "this",
        "precise",
        "premerge",
        "regardless",
        "resource",
        "namespace",
        "new",
        "macro",
        "match",
        "final",
        "filter",
        "from",
        "get",
        "goto",
    ]
)
"""What a name must not be: words of WGSL, its functions, and what every shader has."""


def item_of(memory: Memory) -> str:
    """The type of a memory's items in WGSL."""
    if memory.packed:
        word = "atomic<u32>" if memory.atomic else "u32"
        return word if memory.words == 1 else f"vec{memory.words}<u32>"
    if memory.dtype is dtypes.bool_:
        # Bools may share words, which threads would overwrite for each other.
        return "u32"
    return spelled(memory.type, memory.signed)


@dataclass
class Function:
    """A function of a shader while it is not known yet how buffers are bound."""

    head: str
    lines: list[Any]


class Printer(Writer):
    """The code of one dispatch as WGSL; see ``codegen.simt.builder.Simt``.

    Args:
        machine: for which GPU.
        threads: of a workgroup.
        zero: see ``Writer``.
    """

    def __init__(self, machine: Machine, threads: int, zero: str = ZERO) -> None:
        super().__init__(zero)
        self.machine = machine
        self.threads = threads
        self.lane = ShaderLane
        self.loops: list[int] = []
        self.scopes: list[Callable[[], AbstractContextManager[None]]] = []
        self._loop_count = 0
        self._shared: dict[str, str] = {}
        self._builtins = [
            "@builtin(workgroup_id) workgroup: vec3<u32>",
            "@builtin(local_invocation_index) local: u32",
        ]
        self._taken: set[str] = set(WORDS)
        self._else_at = -1
        self.group, self.local, self.thread = (
            Text(integer(32), name, self) for name in ("group", "local", "thread")
        )

    # ------------------------------------------------------------- names

    def name(self, prefix: str = "v") -> str:
        """A name that nothing else has."""
        found = super().name(prefix)
        while found in self._taken:
            found = super().name(prefix)
        self._taken.add(found)
        return found

    def called(self, name: str) -> str:
        """A name like this that nothing else has."""
        if name in ("v", "c", "i"):
            return self.name(name)
        found, count = name, 1
        while found in self._taken:
            count += 1
            found = f"{name}_{count}"
        self._taken.add(found)
        return found

    # ------------------------------------------------------------- values

    def let(self, value: Any, name: str = "v") -> Text:
        """See ``Simt``."""
        if not isinstance(value, Text):
            raise InternalError(f"{value!r} is known, and needs no name")
        found = self.called(name)
        self.line(f"let {found} = {value.whole};")
        return Text(value.type, found, self, signed=value.signed)

    def expression(self, value: Any) -> str:
        """A value where any expression may stand; text, until all templates are without."""
        if isinstance(value, str):
            return value
        return value.whole if isinstance(value, Text) else self.text(value)

    def constant(self, number: float, dtype: DType, width: int = 1) -> Text:
        """See ``Simt``."""
        type_ = value_type(dtype)
        text = self.constant_text(number, type_)
        return self.splat(Text(type_, text, self), width)

    def splat(self, value: Any, width: int) -> Text:
        """See ``Simt``."""
        if width == 1:
            return value
        kind = vector(value.type, width)
        text = f"{spelled(kind, _signed(value))}({self.expression(value)})"
        return Text(kind, text, self, signed=_signed(value), reads=reads_of(value))

    def vector(self, parts: Sequence[Any]) -> Text:
        """See ``Simt``."""
        count = sum(getattr(item.type, "count", 1) for item in parts)
        if count == 1:
            return parts[0]
        kind, signed = vector(element(parts[0].type), count), _signed(parts[0])
        text = ", ".join(map(self.expression, parts))
        return Text(
            kind, f"{spelled(kind, signed)}({text})", self, signed=signed, reads=reads_of(*parts)
        )

    def index(self, number: Any) -> Text:
        """See ``Simt``."""
        return self._number(number)

    def narrowed(self, value: Any) -> Text:
        """See ``Simt``."""
        wide = self.signed(value)
        text = f"bitcast<u32>(i32(clamp({wide}, -2147483648li, 2147483647li)))"
        return Text(integer(32), text, self, reads=reads_of(value))

    def _cast(self, value: Any, type_: Any, how: str, signed: bool = False) -> Text:
        text = f"{how}({self.expression(value)})"
        return Text(type_, text, self, signed=signed, reads=reads_of(value))

    def as_signed(self, value: Any) -> Text:
        """See ``Simt``."""
        if value.signed:
            return value
        return self._cast(value, value.type, spelled(value.type, True), True)

    def as_unsigned(self, value: Any) -> Text:
        """See ``Simt``."""
        if not value.signed:
            return value
        return self._cast(value, value.type, spelled(value.type))

    def bits(self, value: Any) -> Text:
        """See ``Simt``."""
        kind, wide = spelled(value.type, _signed(value)), element(value.type)
        if kind == "bool":
            return self._cast(value, integer(32), "u32")
        if not kind.removeprefix("vec4<").startswith("f"):
            return (
                self.as_unsigned(value)
                if isinstance(value, Text)
                else Text(value.type, self.text(value), self)
            )
        type_ = integer(64 if str(wide) == "double" else 32)
        if value.type is not wide:
            type_ = vector(type_, value.type.count)
        return self._cast(value, type_, f"bitcast<{spelled(type_)}>")

    def of_bits(self, bits: Any, dtype: DType) -> Text:
        """See ``Simt``."""
        type_ = value_type(dtype)
        if width(type_) == 1:
            return self.operate("!=", bits, 0)
        if width(type_):
            return Text(type_, bits.whole, self, bits.level, reads=bits.reads or reads_of(bits))
        if bits.width > 1:
            type_ = vector(type_, bits.width)
        return self._cast(bits, type_, f"bitcast<{spelled(type_)}>")

    def words(self, value: Any) -> list[Text]:
        """See ``Simt``."""
        bits = self.bits(value)
        if width(bits.type) < 64:
            return [Text(integer(32), bits.whole, self, bits.level, reads=bits.reads)]
        whole, word = self.let(bits), integer(32)
        low, high = whole & 0xFFFFFFFF, whole >> 32
        return [self._cast(low, word, "u32"), self._cast(high, word, "u32")]

    def of_words(self, words: Sequence[Any], dtype: DType) -> Text:
        """See ``Simt``."""
        type_ = value_type(dtype)
        if len(words) == 1:
            return self.let(self.of_bits(words[0], dtype))
        low, high = (self._cast(word, integer(64), "u64") for word in words)
        bits = self.operate("|", low, high << 32)
        return self.let(self.of_bits(bits, dtype) if not width(type_) else bits)

    def half_bits(self, value: Any) -> Text:
        """See ``Simt``."""
        text = f"pack2x16float(vec2<f32>({self.expression(value)}, 0.0f))"
        return Text(integer(32), text, self, reads=reads_of(value))

    def halves(self, word: Any) -> Text:
        """See ``Simt``."""
        return self._cast(word, vector(value_type(dtypes.f32), 2), "unpack2x16float")

    def min(self, a: Any, b: Any) -> Any:
        """See ``Simt``."""
        return (
            min(a, b) if isinstance(a, int) and isinstance(b, int) else self._extreme("min", a, b)
        )

    def max(self, a: Any, b: Any) -> Any:
        """See ``Simt``."""
        return (
            max(a, b) if isinstance(a, int) and isinstance(b, int) else self._extreme("max", a, b)
        )

    def _extreme(self, name: str, a: Any, b: Any) -> Text:
        like = a if isinstance(a, Text) else b
        a, b = (self.literal(x, like) for x in (a, b))
        kind = a.type if a.width >= b.width else b.type
        if a.width != b.width:
            a, b = (self._spread(x, kind) for x in (a, b))
        text = f"{name}({a.whole}, {b.whole})"
        return Text(kind, text, self, signed=like.signed, reads=reads_of(a, b))

    def fma(self, a: Any, b: Any, c: Any) -> Text:
        """See ``Simt``."""
        kind = next((x.type for x in (a, b, c) if x.type is not element(x.type)), a.type)
        texts = [
            self.expression(x)
            if x.type is not element(x.type) or kind is element(kind)
            else f"{spelled(kind)}({self.expression(x)})"
            for x in (a, b, c)
        ]
        return Text(kind, f"fma({', '.join(texts)})", self, reads=reads_of(a, b, c))

    def choose(self, condition: Any, chosen: Any, otherwise: Any) -> Text:
        """See ``Simt``."""
        like = next(x for x in (chosen, otherwise) if isinstance(x, Text))
        chosen, otherwise = (self.literal(x, like) for x in (chosen, otherwise))
        kind = chosen.type if chosen.width >= otherwise.width else otherwise.type
        if chosen.width != otherwise.width:
            chosen, otherwise = (self._spread(x, kind) for x in (chosen, otherwise))
        text = f"select({otherwise.whole}, {chosen.whole}, {self.expression(condition)})"
        reads = reads_of(condition, chosen, otherwise)
        return Text(kind, text, self, signed=like.signed, reads=reads)

    def call(self, name: str, *values: Any) -> Text:
        """See ``Simt``."""
        type_ = element(values[0].type) if name == "dot" else values[0].type
        text = f"{name}({', '.join(map(self.expression, values))})"
        return Text(type_, text, self, signed=_signed(values[0]), reads=reads_of(*values))

    def random_bits(self, offset: Any, step: Any, seed: int, stream: int) -> Text:
        """See ``Simt``."""
        return philox(self, offset, step, seed, stream)

    # ------------------------------------------------------------- variables

    def variable(
        self, initial: Any, name: str = "v", dtype: DType | None = None, width: int = 1
    ) -> Cell:
        """See ``Simt``."""
        if dtype is not None and not isinstance(initial, Text) and not hasattr(initial, "constant"):
            initial = self.constant(initial, dtype, width)
        if not hasattr(initial, "type"):
            raise InternalError(f"a variable that begins with {initial!r} needs a type")
        found = self.called(name)
        self.line(f"var {found} = {self.expression(initial)};")
        return Cell(initial.type, found, self, _signed(initial))

    def assign(self, variable: Any, value: Any) -> None:
        """See ``Variable.set``."""
        text = self.literal(value, variable).whole
        if text != variable.raw:
            self.line(f"{variable.raw} = {text};")
            variable.change()

    def assign_part(self, variable: Any, part: int, value: Any) -> None:
        """See ``Variable``."""
        self.line(f"{variable.raw}.{'xyzw'[part]} = {self.literal(value, variable).whole};")
        variable.change()

    # ------------------------------------------------------------- blocks

    @contextmanager
    def _block(self, head: str) -> Iterator[None]:
        with self.block(head), self.scope():
            yield

    @contextmanager
    def scope(self) -> Iterator[None]:
        """See ``Simt``."""
        with ExitStack() as stack:
            for scope in list(self.scopes):
                stack.enter_context(scope())
            yield

    def trial(self, body: Callable[[], None]) -> int:
        """See ``Simt``."""
        before = len(self.lines)
        with self.scope():
            body()
        written = len(self.lines) - before
        del self.lines[before:]
        return written

    @contextmanager
    def if_(self, *conditions: Any) -> Iterator[None]:
        """See ``Simt``."""
        left = [condition for condition in conditions if condition is not None]
        if not left:
            with self.scope():
                yield
            return
        test = left[0]
        for condition in left[1:]:
            test = self.operate("&", test, condition)
        with self._block(f"if ({self.expression(test)})"):
            yield
        self._else_at = len(self.lines)

    @contextmanager
    def else_(self) -> Iterator[None]:
        """See ``Simt``."""
        if self._else_at != len(self.lines):
            raise InternalError("'else_' follows the block of an 'if_'")
        self.lines.pop()
        with self._block("} else"):
            yield

    @contextmanager
    def _loop(self, head: str) -> Iterator[None]:
        self._loop_count += 1
        self.loops.append(self._loop_count)
        with self._block(head):
            yield
        self.loops.pop()

    def _number(self, number: Any) -> Text:
        if isinstance(number, Text):
            return number
        return Text(integer(32), self.text_of(number), self)

    def text_of(self, number: Any) -> str:
        """An index as an expression."""
        if isinstance(number, int):
            return f"{number % (1 << 32)}u"
        return self.expression(number)

    @contextmanager
    def for_(self, first: Any, last: Any, step: Any = 1, name: str = "i") -> Iterator[Text]:
        """See ``Simt``."""
        like = next((x for x in (first, last) if isinstance(x, Text)), None)
        signed = like is not None and like.signed
        i = Text(integer(32), self.called(name), self, signed=signed)
        begin, end, by = (self.literal(x, i).whole for x in (first, last, step))
        end = self.literal(last, i).above(4)
        with self._loop(f"for (var {i.raw} = {begin}; {i.raw} < {end}; {i.raw} += {by})"):
            yield i

    @contextmanager
    def iterate(
        self,
        first: Any,
        condition: Callable[[Value], Value],
        following: Callable[[Value], Value],
        name: str = "i",
    ) -> Iterator[Text]:
        """See ``Simt``."""
        i = Text(integer(32), self.called(name), self)
        begin = self.literal(first, i).whole
        test, after = (self.expression(f(i)) for f in (condition, following))
        with self._loop(f"for (var {i.raw} = {begin}; {test}; {i.raw} = {after})"):
            yield i

    @contextmanager
    def while_(self, condition: Callable[[], Value]) -> Iterator[None]:
        """See ``Simt``."""
        count = len(self.lines)
        test = self.expression(condition())
        if len(self.lines) != count:
            raise InternalError("the condition of a loop is one expression, of variables")
        with self._loop(f"while ({test})"):
            yield

    def loop(
        self,
        first: Any,
        last: Any,
        step: int,
        body: Callable[[Text, list[Any]], Sequence[Any]],
        carried: Sequence[Any],
    ) -> list[Text]:
        """See ``Simt``."""
        held = []
        for value in carried:
            found = self.name("c")
            self.line(f"var {found} = {self.expression(value)};")
            held.append(Text(value.type, found, self))
        with self.for_(first, last, step) as i:
            following = [self.expression(value) for value in body(i, list(held))]
            for value, text in zip(held, following, strict=True):
                if text != value.raw:
                    self.line(f"{value.raw} = {text};")
        # What is carried may change again in an enclosing loop: from here on it is a value.
        return [self.let(value) for value in held]

    def switch(self, value: Any, count: int, body: Callable[[int], None]) -> None:
        """See ``Simt``."""
        with self.block(f"switch {self.text(value)}"):
            for k in range(count):
                with self._block(f"case {k}u:" if k + 1 < count else "default:"):
                    body(k)

    def break_(self) -> None:
        """See ``Simt``."""
        self.line("break;")

    def return_(self) -> None:
        """See ``Simt``."""
        self.line("return;")

    # ------------------------------------------------------------- functions

    def child(self) -> Printer:
        """What writes a function of this shader."""
        found = Printer(self.machine, self.threads, HIDDEN)
        found.globals = self.globals
        return found

    def function(
        self,
        name: str,
        parameters: Sequence[tuple[str, DType, int]],
        body: Callable[..., Any],
    ) -> Callable[..., Value]:
        """See ``Simt``."""
        found = self.called(name)
        child = self.child()
        arguments = [
            Text(value_type(dtype, width), child.called(word), child)
            for word, dtype, width in parameters
        ]
        result = body(child, *arguments)
        listed = ", ".join(f"{x.raw}: {spelled(x.type)}" for x in arguments)
        signed = _signed(result)
        child.line(f"return {child.expression(result)};")
        if child.hides:
            self.globals.setdefault(HIDDEN, f"var<private> {HIDDEN}: u32;")
        head = f"fn {found}({listed}) -> {spelled(result.type, signed)} {{"
        self.globals[found] = Function(head, [*child.lines, "}"])

        def call(*values: Any) -> Value:
            likes = zip(values, arguments, strict=True)
            given = [self.literal(value, like) for value, like in likes]
            text = f"{found}({', '.join(x.whole for x in given)})"
            return Text(result.type, text, self, signed=signed, reads=reads_of(*given))

        return call

    # ------------------------------------------------------------- memory

    def shared(self, dtype: DType, shape: int | Sequence[int], name: str, width: int = 1) -> Memory:
        """See ``Simt``."""
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        memory = Memory(self.called(name), dtype, False, width, sizes, "shared", builder=self)
        self._shared[memory.name] = _array(item_of(memory), sizes)
        return memory

    def resize(self, memory: Memory, count: int) -> None:
        """See ``Simt``."""
        self._shared[memory.name] = _array(item_of(memory), (count,)) if count else ""

    def declare_shared(self, name: str, kind: str) -> None:
        """Memory of a workgroup of a WGSL type."""
        self._shared[name] = kind

    def item(self, memory: Memory) -> str:
        """The type of a memory's items."""
        return item_of(memory)

    def declare_function(self, name: str, head: str, lines: list[Any]) -> None:
        """Add a function to the shader."""
        self.globals.setdefault(name, Function(head, lines))

    def table(self, words: Sequence[int], name: str) -> Memory:
        """See ``Simt``."""
        found, kind = self.called(name), f"array<u32, {len(words)}>"
        listed = ", ".join(f"{word}u" for word in words)
        self.declare(found, f"var<private> {found}: {kind} = {kind}({listed});")
        return Memory(found, dtypes.u32, False, 1, (len(words),), "local", builder=self)

    def array(self, values: Sequence[Any], name: str) -> Memory:
        """See ``Simt``."""
        type_, found = values[0].type, self.called(name)
        kind = f"array<{spelled(type_, _signed(values[0]))}, {len(values)}>"
        self.line(f"var {found} = {kind}({', '.join(map(self.expression, values))});")
        dtype, count = dtype_of(type_), values[0].width
        return Memory(found, dtype, False, count, (len(values),), "local", builder=self)

    def _placed(self, memory: Memory, index: Any) -> tuple[list[Any], Any]:
        """The indices of an item, and the part of it that is meant."""
        given = list(index) if isinstance(index, tuple) else [index]
        axes = len(memory.shape) or 1
        if len(given) not in (axes, axes + 1):
            raise InternalError(f"'{memory.name}' takes {axes} indices, not {len(given)}")
        return given[:axes], given[axes] if len(given) > axes else None

    def load(self, memory: Memory, index: Any) -> Text:
        """See ``Simt``."""
        at, part = self._placed(memory, index)
        kind = memory.type if part is None else element(memory.type)
        named = self.name()
        if memory.space == "buffer":
            op = "atomicLoad" if memory.atomic else ""
            which = "" if part is None else self.text_of(part)
            self._access(Access(memory.name, self._number(at[0]), which, "", named, op))
        else:
            self.line(f"let {named} = {self._place(memory, at, part)};")
        found = Text(kind, named, self, signed=memory.signed)
        if memory.dtype is dtypes.bool_ and memory.space != "buffer":
            return self.let(self.operate("!=", Text(integer(32), named, self), 0))
        return found

    def _place(self, memory: Memory, at: Sequence[Any], part: Any) -> str:
        places = [*at] if part is None else [*at, part]
        return memory.name + "".join(f"[{self.text_of(place)}]" for place in places)

    def _access(self, access: Access) -> None:
        object.__setattr__(access, "indent", "  " * self._depth)
        # What it reads is checked here, not when its text is made.
        _ = access.index.whole
        self.lines.append(access)

    def store(self, value: Any, memory: Memory, index: Any) -> None:
        """See ``Simt``."""
        at, part = self._placed(memory, index)
        if memory.dtype is dtypes.bool_ and memory.space != "buffer":
            value = self.bits(value)
        kind = memory.type if part is None else element(memory.type)
        like = Text(kind, "", self, signed=memory.signed)
        text = self.literal(value, like).whole
        if memory.space == "buffer":
            which = "" if part is None else self.text_of(part)
            self._access(Access(memory.name, self._number(at[0]), which, text))
        else:
            self.line(f"{self._place(memory, at, part)} = {text};")

    def atomic(self, op: str, memory: Memory, index: Any, value: Any) -> None:
        """See ``Simt``."""
        like = Text(integer(32), "", self)
        name = f"atomic{op.capitalize()}"
        self._access(
            Access(memory.name, self._number(index), value=self.literal(value, like).whole, op=name)
        )

    # ------------------------------------------------------------- threads among each other

    def barrier(self, *, buffers: bool = False) -> None:
        """See ``Simt``."""
        if buffers:
            self.line("storageBarrier();")
        self.line("workgroupBarrier();")

    def uniform(self, memory: Memory) -> Text:
        """See ``Simt``."""
        found = self.name()
        at = "[0u]" if memory.shape else ""
        self.line(f"let {found} = workgroupUniformLoad(&{memory.name}{at});")
        return Text(memory.type, found, self, signed=memory.signed)

    def shuffle_xor(self, value: Any, mask: int) -> Text:
        """See ``Simt``."""
        text = f"subgroupShuffleXor({self.expression(value)}, {mask}u)"
        return self.let_text(value.type, text)

    # ------------------------------------------------------------- the shader

    def finish(
        self,
        groups: int,
        buffers: Sequence[tuple[Memory, Binding]],
        copies: tuple[int, int] | None = None,
    ) -> Stage:
        """The shader of what is written, for so many workgroups; of ``buffers`` those are bound that it reads or writes."""
        most = self.machine.most_groups
        high = -(-groups // most)
        if high > most:
            raise UnsupportedError(
                f"a kernel of {groups:,} workgroups is more than '{self.machine.name}' runs ({most:,} times {most:,})",
                hint="a smaller batch, or the tensor in several pieces",
            )
        across = -(-groups // max(high, 1)) if groups else 0
        head = [f"let group = workgroup.x + workgroup.y * {across}u;"]
        if across * high != groups:
            head.append(f"if (group >= {groups}u) {{ return; }}")
        if HIDDEN in self.globals:
            head.append(f"{HIDDEN} = {ZERO};")
        head.append(f"let thread = group * {self.threads}u + local;")
        parts: list[Any] = [
            f"var<workgroup> {name}: {kind};" for name, kind in self._shared.items() if kind
        ]
        for item in self.globals.values():
            parts += [item.head, *item.lines] if isinstance(item, Function) else [item]
        parts.append(
            f"@compute @workgroup_size({self.threads}) fn main({', '.join(self._builtins)}) {{"
        )
        parts += ["  " + line for line in head]
        parts += [*self.lines, "}"]
        listing = Listing(tuple(parts))
        used = listing.names()
        bound = [
            (memory.name, item_of(memory), binding)
            for memory, binding in buffers
            if binding.what == "scratch" or memory.name in used
        ]
        return Stage.of(listing, bound, (across, max(high, 1)), copies)


def _signed(value: Any) -> bool:
    return isinstance(value, Text) and value.signed


def _array(item: str, sizes: Sequence[int]) -> str:
    for size in reversed(sizes):
        item = f"array<{item}, {size}>"
    return item
