"""``darner train``: a language model of a text."""

from __future__ import annotations

import argparse
import shlex
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from . import EXIT_INTERRUPTED
from .options import add_precision, count, new_parser, path, positive, seed, threads, whole
from .streams import say

if TYPE_CHECKING:
    from pathlib import Path

    from .training_run import Run

EXAMPLE = """  darner train --text shakespeare.txt --preset tiny --out bard
  darner train --resume bard
  darner train --text letters.txt --finetune HuggingFaceTB/SmolLM2-135M --lora 8 --out letters"""
CHANGED = ("resume", "steps", "threads", "quiet", "traceback", "sample")
"""What may be given with ``--resume``; all else is as it was."""
SAMPLE = 200


def add_command(commands: Any) -> None:
    """Add ``train`` to the command line."""
    parser = new_parser(
        commands,
        "train",
        run,
        help="train a language model on a text",
        description="Train a language model on a text file, from nothing or from a pretrained one.",
        example=EXAMPLE,
        epilog="Ctrl-C saves training and ends it; --resume goes on, with the same weights in the end, bit for bit.\n"
        "The folder has the model (darner generate reads it), and in checkpoints/ the newest and the best\n"
        "checkpoint, log.jsonl and curve.svg.",
    )
    add = parser.add_argument
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--text", type=path, metavar="FILE", help="what to learn: UTF-8, gzipped or not"
    )
    source.add_argument(
        "--resume", type=path, metavar="FOLDER", help="go on with a training that was stopped"
    )
    model = parser.add_mutually_exclusive_group()
    model.add_argument(
        "--preset", choices=("tiny", "small", "nano"), help="a model's sizes (default: tiny)"
    )
    model.add_argument("--model", type=path, metavar="CONFIG", help="or its config.json")
    model.add_argument(
        "--finetune", type=path, metavar="FOLDER", help="or a pretrained one, to go on from"
    )
    add("--lora", type=whole, metavar="RANK", help="learn low-rank changes of --finetune alone")
    add(
        "--tokenizer",
        type=path,
        metavar="FILE",
        help="a tokenizer.json (default: one token a character)",
    )
    add("--out", type=path, metavar="FOLDER", help="where the model goes (default: trained)")
    add("--steps", type=whole, metavar="N", help="updates of the parameters")
    add("--batch", type=whole, metavar="N", help="texts an update")
    add("--length", type=whole, metavar="N", help="tokens of each")
    add("--rate", type=positive, metavar="R", help="learning rate, at its highest")
    add("--validate-every", type=whole, metavar="N", help="and save (default: ten times in all)")
    add("--held-out", type=float, metavar="SHARE", help="of the text, to validate (default: 0.1)")
    add("--seed", type=seed, metavar="N", help="of parameters and of the data's order")
    add("--threads", type=threads, metavar="N", help="threads (default: one a core)")
    add_precision(parser)
    add("--sample", type=count, default=SAMPLE, metavar="N", help="tokens of text to show at last")
    add("--quiet", action="store_true", help="do not show how it goes")


def run(options: argparse.Namespace) -> int:
    """Carry out ``darner train``."""
    from ..graph.errors import ArgumentError
    from ..train import TrainingInterrupted

    with ExitStack() as closing:
        made = (_resumed if options.resume else _begun)(options, closing)
        settings = made.settings
        hint = f"darner train --resume {shlex.quote(str(made.folder))}"
        trainer = made.trainer(
            closing, resume=options.resume is not None, quiet=options.quiet, hint=hint
        )
        if options.resume and trainer.step > settings.steps:
            raise ArgumentError(
                f"'{made.folder}' has made {trainer.step:,} steps already, more than --steps {settings.steps:,}",
                hint=f"to go on: {hint} --steps {2 * trainer.step}",
            )
        if not options.quiet:
            size = sum(int(leaf.size) for leaf in trainer.session.graph.parameters.values())
            text = (
                f"{size:,} parameters, {len(made.tokens[0]):,} tokens, {settings.steps:,} steps of "
            )
            say(f"{text}{settings.batch} x {settings.length} tokens")
        try:
            trainer.train()
        except TrainingInterrupted as stopped:
            if options.quiet:
                say(stopped)
            return 128 + stopped.signal  # as shells have it
        except KeyboardInterrupt:  # the second one, or one before the first step
            say(f"darner train: interrupted; to go on from what was saved last: {hint}")
            return EXIT_INTERRUPTED
        made.save(trainer.session)
        if options.sample:
            print(made.sample(trainer.session, options.sample))
    if not options.quiet:
        say(_next(made))
    return 0


def _begun(options: argparse.Namespace, closing: ExitStack) -> Run:
    from pathlib import Path

    from ..data import read_text
    from ..io.reading import read_json
    from .training_run import ORDINARY, PRESETS, TUNING, Run, Settings, digest

    error = options.parser.error
    if options.lora and not options.finetune:
        error("--lora changes a pretrained model: it needs --finetune")
    if options.tokenizer and options.finetune:
        error("--finetune has the tokenizer of its folder")
    held_out = 0.1 if options.held_out is None else options.held_out
    if not 0 <= held_out < 1:
        error(f"--held-out is a share from 0 to below 1, got {held_out}")
    config: dict[str, Any]
    sizes: dict[str, Any]
    if options.finetune:
        config, sizes = {}, TUNING
    elif options.model:
        config, sizes = read_json(Path(options.model)), ORDINARY
    else:
        config, sizes = PRESETS[options.preset or "tiny"]
    sizes = sizes | {name: value for name in sizes if (value := getattr(options, name)) is not None}
    settings = Settings(
        text=str(Path(options.text).expanduser().absolute()),
        digest=digest(read_text(options.text)),
        model=config,
        tokenizer=options.tokenizer or "",
        finetune=_lasting(options.finetune or ""),
        lora=options.lora or 0,
        **sizes,
        validate_every=options.validate_every or max(1, sizes["steps"] // 10),
        held_out=held_out,
        seed=options.seed or 0,
        threads=options.threads,
        precision=options.precision or "f32",
    )
    made = Run(Path(options.out or "trained"), settings)
    _have(made.folder, closing)
    made.begin()
    return made


def _have(folder: Path, closing: ExitStack) -> None:
    """Keep others out of the folder until the end."""
    from ..graph.errors import ArgumentError
    from ..train.folder_lock import FolderLock

    if folder.exists() and not folder.is_dir():
        raise ArgumentError(
            f"'{folder}' is a file, and the model goes to a folder", hint="name another one: --out"
        )
    lock = FolderLock(folder, "--out")
    lock.hold()
    closing.callback(lock.release)


def _lasting(name: str) -> str:
    """A folder wherever training goes on from, or a name of the hub."""
    from pathlib import Path

    path = Path(name).expanduser()
    return str(path.absolute()) if name and path.is_dir() else name


def _resumed(options: argparse.Namespace, closing: ExitStack) -> Run:
    from dataclasses import replace
    from pathlib import Path

    from .training_run import Run, Settings

    given = [
        f"--{name.replace('_', '-')}"
        for name, value in vars(options).items()
        if name not in (*CHANGED, "run", "parser") and value is not None
    ]
    if given:
        options.parser.error(
            f"{', '.join(given)}: a training goes on as it began; --resume takes --steps and --threads"
        )
    folder = Path(options.resume)
    if folder.is_dir():
        _have(folder, closing)
    settings = Settings.read(folder)
    changes = {"steps": options.steps, "threads": options.threads}
    settings = replace(settings, **{k: v for k, v in changes.items() if v is not None})
    return Run(folder, settings)


def _next(made: Run) -> str:
    """What can be done now."""
    from .training_run import CHECKPOINTS

    folder = shlex.quote(str(made.folder))
    beginning = made.text.split(maxsplit=2)[:2]
    prompt = shlex.quote(" ".join(beginning))
    return (
        f"\nsaved to {folder}; the curve of the loss is {folder}/{CHECKPOINTS}/curve.svg\n"
        f"  darner generate {folder} {prompt} --temperature 0.8\n"
        f"  darner inspect {folder}\n"
        f"  darner train --resume {folder} --steps {2 * made.settings.steps}"
    )
