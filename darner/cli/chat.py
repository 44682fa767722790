"""``darner chat``: a conversation with a language model."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from .options import add_machine, add_model, machine, new_parser, words
from .streams import ask, read_line, say
from .write import Clock, add_sampling, sampling

if TYPE_CHECKING:
    from ..text import Generator, Tokenizer

EXAMPLE = """  darner chat HuggingFaceTB/SmolLM2-135M-Instruct --system "Be brief." """
HELP = """/reset begins anew, /save FILE keeps the conversation as JSON (/save! FILE: also where there is one),
/quit or Ctrl-D ends it.
Ctrl-C stops an answer; what there is of it stays in the conversation."""
PROMPT = "> "


def add_command(commands: Any) -> None:
    """Add ``chat`` to the command line."""
    parser = new_parser(
        commands,
        "chat",
        run,
        help="talk with a model",
        description="Talk with a model, by the chat template of its folder.",
        example=EXAMPLE,
        epilog=f"in the conversation:\n{HELP}\nWhere input is no terminal, each line is a message.",
    )
    add_model(parser)
    parser.add_argument("--system", type=words, metavar="TEXT", help="what the model is told first")
    add_sampling(parser)
    parser.set_defaults(max_new_tokens=512)
    add_machine(parser)


def run(options: argparse.Namespace) -> int:
    """Carry out ``darner chat``."""
    from ..graph.errors import ArgumentError
    from ..load import folder

    options.folder = folder(options.folder)  # the hub is asked once
    chosen = sampling(options)
    from ..text import Tokenizer, closing, load

    with closing(load(options.folder, **machine(options))) as generator:
        tokenizer = generator.vocabulary
        if not isinstance(tokenizer, Tokenizer) or tokenizer.template is None:
            raise ArgumentError(
                f"'{options.folder}' has no chat template",
                hint="such a model continues texts: darner generate does that",
            )
        writing = {"max_new_tokens": options.max_new_tokens, "sampling": chosen}
        Conversation(generator, tokenizer, options.system, options.stop, writing).go_on()
    return 0


class Conversation:
    """What was said, and what is said next."""

    def __init__(
        self,
        generator: Generator,
        tokenizer: Tokenizer,
        system: str | None,
        stop: list[str],
        writing: dict[str, Any],
    ) -> None:
        self._generator, self._tokenizer = generator, tokenizer
        self._stop, self._writing = stop, writing
        self._first = [] if system is None else [{"role": "system", "content": system}]
        self.messages: list[dict[str, str]] = list(self._first)
        self._terminal = sys.stdin.isatty()

    def go_on(self) -> None:
        """Read messages and answer them, until there are no more."""
        if self._terminal:
            say(HELP)
        while (line := self._read()) is not None:
            command, _, rest = line.partition(" ")
            if command == "/quit":
                return
            if command == "/reset":
                self.messages = list(self._first)
            elif command in ("/save", "/save!"):
                self._save(rest.strip(), replace=command == "/save!")
            elif line.startswith("/"):
                say(f"there is no {command}; there are /reset, /save, /quit")
            elif line:
                self.answer(line)

    def answer(self, message: str) -> None:
        """Show the answer to a message, and keep both; a message that does not fit is told, and not kept."""
        from ..graph.errors import ArgumentError

        asked = [*self.messages, {"role": "user", "content": message}]
        text = self._tokenizer.chat(asked)
        tokens = self._tokenizer.encode(text, special=False)
        pieces: list[str] = []
        clock = Clock(len(tokens))
        try:
            self._generator.prepare([tokens], max_new_tokens=self._writing["max_new_tokens"])
            clock = Clock(len(tokens))
            for piece in self._generator.stream(
                tokens, **self._writing, stop=self._stop, on_step=clock
            ):
                pieces.append(piece)
                print(piece, end="", flush=True)
        except KeyboardInterrupt:
            say(" [stopped]", end="")
        except ArgumentError as error:
            say(f"{error.rule}; /reset begins anew")
            return
        print(flush=True)
        if self._terminal:
            say(clock)
        self.messages = [*asked, {"role": "assistant", "content": "".join(pieces)}]

    def _read(self) -> str | None:
        """The next message; None where there is none."""
        try:
            if self._terminal:
                return ask(PROMPT).strip()
            line = read_line()
        except EOFError:
            say("")
            return None
        except KeyboardInterrupt:
            # As in a shell: what was typed is dropped, and the conversation goes on.
            say("")
            return ""
        return line.strip() if line else None

    def _may_replace(self, path: str) -> bool:
        """Whether a file that is there may go: a terminal is asked."""
        if not self._terminal:
            say(f"'{path}' is there already; to replace it: /save! {path}")
            return False
        try:
            answer = ask(f"'{path}' is there already; replace it? [y/N] ").strip().lower()
        except (EOFError, KeyboardInterrupt):
            say("")
            answer = ""
        if answer not in ("y", "yes"):
            say("nothing is saved")
            return False
        return True

    def _save(self, path: str, replace: bool) -> None:
        from ..graph.errors import DarnerError
        from ..io.atomic import write_atomically

        if not path or "\0" in path:
            say("/save takes a file")
            return
        if not replace and os.path.lexists(path) and not self._may_replace(path):
            return
        text = json.dumps(self.messages, indent=2, ensure_ascii=False) + "\n"
        try:
            write_atomically(path, [text.encode()])
        except DarnerError as error:  # the conversation is worth more than one file
            say(error)
            return
        say(f"saved {len(self.messages)} messages to {path}")
