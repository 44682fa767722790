"""Chat templates: messages as the one text that a model was trained on, by the Jinja template of its folder.

A template is untrusted: it reaches nothing of the machine, and ends after a number of steps (see ``budget``). Whatever goes wrong
in it is a ``ChatTemplateError``, which names the template's file and line.

>>> render("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}", {"messages": [{"role": "user", "content": "Hi"}]})
'<user>Hi'
>>> render("{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}", {"messages": []})
Traceback (most recent call last):
darner.text.chat.ChatTemplateError: the chat template, line 1: it takes more than 1,... steps; ...
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from ..graph.errors import FormatError, optional
from .budget import Budget, TooMuchError
from .charges import DEEP, GONE, as_json, charged_call, guarded, now

MOST_TEMPLATE = 100_000
"""Characters of a template; long ones have 20,000."""
MOST_NODES = 12_000
"""Nodes of its tree; those have 4,000."""
_MOST_MESSAGE = 500
_REFUSED = frozenset(
    [
        "translate",
        "maketrans",
        "to_bytes",
        "from_bytes",
        "expandtabs",
        "encode",
        "format_map",
        "fromhex",
    ]
)
"""Methods that no template needs, and that make much of little."""
_COUNTED = "#"
_JOINED = "~"
_LOOKED = "?"
_GLANCED = ":"
"""Filters that no template can name, which the tree of a template is given."""


class ChatTemplateError(FormatError):
    """A chat template that is damaged, that refuses the messages, or that asks for more than a chat takes.

    Attributes:
        line: of the template, where it is known.
    """

    line: int | None = None


def render(template: str, values: Mapping[str, Any], file: str = "") -> str:
    """The text that a template makes of ``messages`` and whatever else it is given.

    Args:
        template: in Jinja, as ``transformers`` understands it.
        values: by the names they have in the template.
        file: where it is from, for errors.

    Raises:
        ChatTemplateError: whatever is wrong with the template, or what it says is wrong with the messages.
    """
    if len(template) > MOST_TEMPLATE:
        raise _fault(
            file, None, f"it has {len(template):,} characters, and may have {MOST_TEMPLATE:,}"
        )
    optional("jinja2", "text", "a chat template")
    environment_class = _environment_class()
    from jinja2.exceptions import TemplateError, TemplateSyntaxError

    try:
        budget = Budget(values)
        environment = environment_class(budget)
        pieces = environment.pieces(template, values)
        return "".join(budget.counted(pieces))
    except TooMuchError as error:
        raise _fault(
            file,
            _line(error),
            f"it takes {error}",
            hint="it is not made for chats, or not for messages like these",
        ) from None
    except TemplateSyntaxError as error:
        raise _fault(file, error.lineno, error.message or "it is no Jinja") from None
    except TemplateError as error:
        raise _fault(file, _line(error), error.message or type(error).__name__) from None
    except RecursionError as error:
        raise _fault(file, _line(error), "its expressions, loops or macros are too deep") from None
    except Exception as error:  # what an expression can raise in Python: 1 / 0, "a" + 1
        message = str(error) or type(error).__name__
        raise _fault(file, _line(error), message) from None


def _fault(file: str, line: int | None, message: str, hint: str | None = None) -> ChatTemplateError:
    where = f"'{file}'" if file else "the chat template"
    where += "" if line is None else f", line {line}"
    text = " ".join(message.split())
    if len(text) > _MOST_MESSAGE:
        text = f"{text[:_MOST_MESSAGE]}..."
    error = ChatTemplateError(f"{where}: {text}", hint=hint)
    error.line = line
    return error


def _line(error: BaseException) -> int | None:
    """The line of the template that an error comes from."""
    found, trace = None, error.__traceback__
    while trace is not None:
        template = trace.tb_frame.f_globals.get("__jinja_template__")
        if template is not None:
            found = template.get_corresponding_lineno(trace.tb_lineno)
        trace = trace.tb_next
    return found


@cache
def _environment_class() -> Any:  # long: classes of jinja2's, which is loaded when a template is
    """Jinja as chat templates expect it, with a budget."""
    from jinja2 import Template, nodes, pass_context
    from jinja2.exceptions import SecurityError, TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.visitor import NodeTransformer

    class Generation(Extension):
        """``{% generation %}`` marks what the model is to learn; as text it is what is in it."""

        tags = {"generation"}  # noqa: RUF012 (Jinja's declaration)

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    def applied(name: str, node: Any, *arguments: Any) -> Any:
        return nodes.Filter(node, name, list(arguments), [], None, None, lineno=node.lineno)

    own = (nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block)

    def weight(parts: Sequence[Any]) -> int:
        """How many nodes there are, without those of loops and macros inside, which are charged themselves."""
        count, waiting = 1, list(parts)
        while waiting:
            node = waiting.pop()
            count += 1
            if isinstance(node, nodes.TemplateData):
                count += len(node.data) >> 5
            if not isinstance(node, own):
                waiting.extend(node.iter_child_nodes())
        return count

    def charge(count: int, line: int) -> Any:
        return applied(_COUNTED, nodes.Const(count, lineno=line))

    class Charging(NodeTransformer):
        """Puts into a tree what charges for it."""

        def charged(self, node: Any) -> Any:
            node = self.generic_visit(node)
            line = node.lineno
            node.body.insert(0, nodes.ExprStmt(charge(weight(node.body), line), lineno=line))
            return node

        visit_Macro = visit_CallBlock = visit_Block = charged  # noqa: N815 (Jinja's names)

        def visit_For(self, node: Any) -> Any:
            node = self.charged(node)
            if node.test is not None:
                cost = charge(weight([node.test]), node.lineno)
                node.test = nodes.And(cost, node.test, lineno=node.lineno)
            return node

        def visit_Concat(self, node: Any) -> Any:
            node = self.generic_visit(node)
            return applied(_JOINED, nodes.List(node.nodes, lineno=node.lineno))

        def visit_Compare(self, node: Any) -> Any:
            node = self.generic_visit(node)
            node.expr = applied(_LOOKED, node.expr)
            return node

        def visit_Operand(self, node: Any) -> Any:
            node = self.generic_visit(node)
            node.expr = applied(_LOOKED, node.expr)
            return node

        def visit_Pair(self, node: Any) -> Any:
            node = self.generic_visit(node)
            if not isinstance(node.key, nodes.Const):
                node.key = applied(_LOOKED, node.key)
            return node

        def visit_Getitem(self, node: Any) -> Any:
            node = self.generic_visit(node)
            if isinstance(node.arg, nodes.Slice):  # which asks the environment for nothing
                node.node = applied(_GLANCED, node.node)
            return node

    class Environment(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset(["+", "*", "**", "%"])

        def __init__(self, budget: Budget) -> None:
            super().__init__(
                trim_blocks=True,
                lstrip_blocks=True,
                extensions=[loopcontrols, Generation],
                optimized=False,  # it would compute what is constant without asking us
                finalize=pass_context(lambda _, value: self._shown(value)),
                cache_size=0,
            )
            self._budget = budget
            self.filters["tojson"] = as_json
            self.filters = {
                name: guarded(budget, name, function, name in DEEP)
                for name, function in self.filters.items()
                if name not in GONE
            }
            self.filters |= {
                _COUNTED: budget.step,
                _LOOKED: budget.look,
                _GLANCED: budget.glance,
                _JOINED: lambda parts: "".join(map(str, budget.joined("", parts))),
            }
            self.tests = {
                name: guarded(budget, name, function, deep=True)
                for name, function in self.tests.items()
            }
            self.globals.pop("lipsum")

            def raise_exception(message: Any) -> None:
                raise TemplateError(str(budget.look(message)))

            self.globals["raise_exception"] = raise_exception
            self.globals["strftime_now"] = now

        def pieces(self, text: str, values: Mapping[str, Any]) -> Iterator[str]:
            """What a template writes, piece by piece."""
            tree = self.parse(text)
            # A function is made of each macro and each call with a body, which takes as long as several nodes.
            count = sum(4 if isinstance(node, own) else 1 for node in tree.find_all(nodes.Node))
            if count > MOST_NODES:
                raise TooMuchError(f"{count:,} nodes, and may have {MOST_NODES:,}")
            tree = Charging().visit(tree)
            template = Template.from_code(self, self.compile(tree), self.make_globals(None))
            context = template.new_context(dict(values))
            self._budget.step(weight(tree.body))
            return template.root_render_func(context)

        def _shown(self, value: Any) -> str:
            if type(value) is not str:
                self._budget.look(value)
                value = str(value)
            self._budget.text(len(value))
            return value

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            budget = self._budget
            charges = {
                "+": budget.add,
                "*": budget.multiply,
                "**": budget.power,
                "%": budget.percent,
            }
            charges[operator](left, right)
            return super().call_binop(context, operator, left, right)

        def getitem(self, obj: Any, argument: Any) -> Any:
            if type(argument) is not str and type(argument) is not int:
                self._budget.look(argument)
            return super().getitem(obj, argument)

        def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
            own = isinstance(obj, str | bytes | int | float | type)
            return super().is_safe_attribute(obj, attr, value) and not (own and attr in _REFUSED)

        def wrap_str_format(self, value: Any) -> Any:
            found = super().wrap_str_format(value)
            if found is None:
                return None
            if value.__name__ in _REFUSED:
                raise SecurityError(f"texts have no {value.__name__} here")

            def formatted(*given: Any, **named: Any) -> Any:
                self._budget.format(value.__self__, [given, named])
                return found(*given, **named)

            return formatted

        def call(self, context: Any, function: Any, /, *given: Any, **named: Any) -> Any:
            given = charged_call(self._budget, function, given)
            for value in named.values():
                self._budget.glance(value)
            return self._budget.result(super().call(context, function, *given, **named))

    return Environment
