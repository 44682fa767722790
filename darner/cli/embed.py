"""``darner embed``: sentence embeddings, and how alike texts are."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from typing import Any

from .options import add_machine, add_model, lines_of, machine, new_parser, path, print_json, words

EXAMPLE = """  darner embed sentence-transformers/all-MiniLM-L6-v2 "a cat" "a kitten" "a tax return" --compare
  cat sentences.txt | darner embed all-MiniLM-L6-v2 - --npy embeddings.npy"""
SHOWN = 40


def add_command(commands: Any) -> None:
    """Add ``embed`` to the command line."""
    parser = new_parser(
        commands,
        "embed",
        run,
        help="sentence embeddings by a BERT",
        description="Embed texts by a BERT: the mean of its tokens, of length 1.",
        example=EXAMPLE,
    )
    add_model(parser)
    parser.add_argument(
        "texts",
        type=words,
        metavar="TEXT",
        nargs="+",
        help="a text; - reads one from each line of input",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="write JSON, for other programs")
    form.add_argument(
        "--npy", type=path, metavar="FILE", help="write the embeddings to a file of NumPy's"
    )
    parser.add_argument(
        "--compare", action="store_true", help="the cosine of each text with each, in their place"
    )
    parser.add_argument("--truncate", action="store_true", help="cut texts that are too long")
    add_machine(parser)


def run(options: argparse.Namespace) -> int:
    """Carry out ``darner embed``."""
    given = lines_of(options.texts)
    from ..text import Embedder

    with closing(Embedder.load(options.folder, **machine(options))) as embedder:
        found = embedder.embed(given, truncate=options.truncate)
    result = found @ found.T if options.compare else found
    if options.npy is not None:
        _write(options.npy, result)
        print(f"wrote {result.shape[0]} x {result.shape[1]} numbers to {options.npy}")
    elif options.json:
        name = "cosines" if options.compare else "embeddings"
        print_json({"texts": given, name: result.tolist()})
    elif options.compare:
        width = min(max(map(len, given)), SHOWN)
        for text, row in zip(given, result, strict=True):
            shown = text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."
            print(f"{shown:<{width}}  " + " ".join(f"{value:6.3f}" for value in row))
    else:
        for row in result:
            print(" ".join(f"{value:.6g}" for value in row))
    sys.stdout.flush()
    return 0


def _write(path: str, values: Any) -> None:
    import io

    import numpy as np

    from ..io.atomic import write_atomically

    buffer = io.BytesIO()
    np.save(buffer, values)
    write_atomically(path, [buffer.getvalue()])
