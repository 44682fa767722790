"""``darner generate``: what a language model writes after a prompt."""

from __future__ import annotations

import argparse
from time import perf_counter
from typing import TYPE_CHECKING, Any

from .options import (
    add_machine,
    add_model,
    count,
    machine,
    new_parser,
    print_json,
    rate,
    seed,
    texts,
    whole,
    words,
)
from .streams import say

if TYPE_CHECKING:
    from ..text import Generator, Sampling

EXAMPLE = """  darner generate HuggingFaceTB/SmolLM2-135M "Once upon a time" --temperature 0.7 --max-new-tokens 60
  echo "Dear Sir," | darner generate trained -"""
DRAWN = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")


def add_command(commands: Any) -> None:
    """Add ``generate`` to the command line."""
    parser = new_parser(
        commands,
        "generate",
        run,
        help="write text after a prompt",
        description="Write what a language model adds to a prompt, or to several at once.",
        example=EXAMPLE,
    )
    add_model(parser)
    parser.add_argument(
        "prompts",
        type=words,
        metavar="PROMPT",
        nargs="+",
        help="a text; - reads it from standard input",
    )
    add_sampling(parser)
    parser.add_argument(
        "--stream",
        action=argparse.BooleanOptionalAction,
        help="show text as it is written, one prompt after another (default: for a single prompt)",
    )
    parser.add_argument("--json", action="store_true", help="write JSON, for other programs")
    add_machine(parser)


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """The options that say how tokens are drawn, and when a text ends."""
    group = parser.add_argument_group(
        "writing", "What is not given is as generation_config.json in the folder says."
    )
    add = group.add_argument
    add("--max-new-tokens", type=whole, default=128, metavar="N", help="at most (default: 128)")
    add("--temperature", type=float, metavar="T", help="0 takes the most likely token, always")
    add("--top-k", type=count, metavar="K", help="draw from the K most likely; 0: from all")
    add("--top-p", type=float, metavar="P", help="draw from the fewest that have the share P")
    add("--min-p", type=float, metavar="P", help="and at least the fraction P of the likeliest")
    add("--repetition-penalty", type=float, metavar="R", help="above 1: fewer repetitions")
    add("--seed", type=seed, metavar="N", help="another seed draws another text (default: 0)")
    add(
        "--stop",
        type=words,
        action="append",
        default=[],
        metavar="TEXT",
        help="end before TEXT; repeatable",
    )


def sampling(options: argparse.Namespace) -> Sampling:
    """How tokens are drawn, by the folder and the command line; a wrong value is wrong usage."""
    from ..graph.errors import ArgumentError
    from ..text import sampling_of

    given = {name: getattr(options, name) for name in DRAWN if getattr(options, name) is not None}
    try:
        return sampling_of(options.folder, **given)
    except ArgumentError as error:
        options.parser.error(error.rule)
        raise  # never: the line above ends the program


class Clock:
    """When the tokens of a text came."""

    def __init__(self, prompt: int, texts: int = 1) -> None:
        self.prompt, self.new, self._texts = prompt, 0, texts
        self._began = self._first = self._last = perf_counter()

    def __call__(self, step: int) -> None:
        """Another token of each text is there."""
        self._last = perf_counter()
        self._first = self._last if step == 1 else self._first
        self.new = step

    @property
    def seconds(self) -> tuple[float, float]:
        """Seconds of reading the prompt, which gives the first token, and of adding the others."""
        return self._first - self._began, self._last - self._first

    def __str__(self) -> str:
        reading, writing = self.seconds
        text = f"prompt: {self.prompt} tokens, {rate(self.prompt, reading)} tokens/s"
        if self.new > 1:
            speed = rate((self.new - 1) * self._texts, writing)
            text += f"; answer: {self.new * self._texts} tokens, {speed} tokens/s"
        return text

    def record(self) -> dict[str, Any]:
        """The same for programs."""
        reading, writing = self.seconds
        new = self.new * self._texts
        return {"prompt_tokens": self.prompt, "prompt_seconds": reading, "new_tokens": new} | {
            "new_seconds": writing
        }


def run(options: argparse.Namespace) -> int:
    """Carry out ``darner generate``."""
    from ..load import folder

    options.folder = folder(options.folder)  # the hub is asked once
    chosen = sampling(options)
    prompts = texts(options.prompts)
    if "" in prompts:
        options.parser.error("a prompt is empty")
    from ..graph.errors import ArgumentError
    from ..text import closing, load

    streams = len(prompts) == 1 if options.stream is None else options.stream
    with closing(load(options.folder, **machine(options))) as generator:
        if generator.vocabulary is None:
            raise ArgumentError(
                f"'{options.folder}' has no vocabulary: neither tokenizer.json nor vocabulary.json",
                hint="save the tokenizer there: AutoTokenizer.from_pretrained(...).save_pretrained(...)",
            )
        writing = {"max_new_tokens": options.max_new_tokens, "sampling": chosen}
        if streams and not options.json:
            for prompt in prompts:
                _stream(generator, prompt, options, writing)
        else:
            _at_once(generator, prompts, options, writing)
    return 0


def _stream(
    generator: Generator, prompt: str, options: argparse.Namespace, writing: dict[str, Any]
) -> None:
    tokens = _tokens(generator, prompt)
    generator.prepare([tokens], max_new_tokens=options.max_new_tokens)
    clock = Clock(len(tokens))
    print(prompt, end="", flush=True)
    for piece in generator.stream(tokens, **writing, stop=options.stop, on_step=clock):
        print(piece, end="", flush=True)
    print(flush=True)
    say(clock)


def _at_once(
    generator: Generator, prompts: list[str], options: argparse.Namespace, writing: dict[str, Any]
) -> None:
    tokens = [_tokens(generator, prompt) for prompt in prompts]
    generator.prepare(tokens, max_new_tokens=options.max_new_tokens)
    clock = Clock(sum(map(len, tokens)), len(tokens))
    found = generator.generate(tokens, **writing, stop=options.stop, on_step=clock)
    if options.json:
        rows = [
            {"prompt": prompt, "text": one.text, "tokens": one.tokens, "reason": one.reason}
            for prompt, one in zip(prompts, found, strict=True)
        ]
        print_json({"completions": rows, **clock.record()})
        return
    print("\n\n".join(prompt + one.text for prompt, one in zip(prompts, found, strict=True)))
    say(clock)


def _tokens(generator: Generator, prompt: str) -> list[int]:
    vocabulary: Any = generator.vocabulary
    return [int(token) for token in vocabulary.encode(prompt)]
