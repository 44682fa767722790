"""``darner inspect``: what a model is made of, what a graph of it costs, and what becomes of it."""

from __future__ import annotations

import argparse
import inspect as signatures
import os
from collections import Counter
from math import prod
from typing import TYPE_CHECKING, Any

from .options import add_precision, new_parser, path, print_json, threads, whole

if TYPE_CHECKING:
    from ..graph.graph import Graph
    from ..models import Model
    from ..session import Session

EXAMPLE = """  darner inspect HuggingFaceTB/SmolLM2-135M --graph cached --plan
  darner inspect config.json --graph training --batch 8 --length 256 --report
  darner inspect run/checkpoints/best.safetensors"""
GRAPHS = ("training", "inference", "cached")
MOST = 60
"""Rows of parameters that are listed."""


def add_command(commands: Any) -> None:
    """Add ``inspect`` to the command line."""
    parser = new_parser(
        commands,
        "inspect",
        run,
        help="what a model is made of, and what it costs",
        description="Parameters, graph, cost, and on request what the optimizer did and the plan, of a model.",
        example=EXAMPLE,
    )
    add = parser.add_argument
    add(
        "path",
        type=path,
        metavar="MODEL",
        help="a folder, a name of the hub, config.json or .safetensors",
    )
    add("--graph", choices=GRAPHS, default="inference", help="which one (default: inference)")
    add("--batch", type=whole, default=1, metavar="N", help="texts or images (default: 1)")
    add("--length", type=whole, metavar="N", help="tokens of each (default: 128; cached: 1)")
    add("--cache", type=whole, metavar="N", help="rows of the cache (default: 512)")
    add("--report", action="store_true", help="what the optimizer did (compiles the graph)")
    add("--plan", action="store_true", help="kernels and memory (compiles the graph)")
    add("--threads", type=threads, metavar="N", help="threads of the plan (default: one a core)")
    add_precision(parser)
    add("--json", action="store_true", help="write JSON, for other programs")


def run(options: argparse.Namespace) -> int:
    """Carry out ``darner inspect``."""
    if options.path.endswith(".safetensors"):
        found = _of_file(options.path)
        print_json(found) if options.json else print("\n".join(_file_lines(found)))
        return 0
    model = _model(options.path)
    graph = _graph(model, options)
    found = record(graph)
    session = _session(graph, options) if options.report or options.plan else None
    try:
        if session is not None and options.report:
            found["report"] = session.report.to_dict() if options.json else str(session.report)
        if session is not None and options.plan:
            found["plan"] = _plan_record(session) if options.json else str(session.plan())
    finally:
        if session is not None:
            session.close()
    print_json(found) if options.json else print("\n".join(_lines(found)))
    return 0


# --------------------------------------------------------------------------- what is asked for


def _model(path: str) -> Model:
    from pathlib import Path

    from .. import models
    from ..io.reading import naming, read_json
    from ..load import config, folder
    from ..load.texts import CONFIG

    is_file = os.path.isfile(path)
    said = read_json(Path(path)) if is_file else config(folder(path))
    with naming(path if is_file else Path(path) / CONFIG):
        return models.from_config(said, limited=False)  # only the graph is looked at


def _graph(model: Model, options: argparse.Namespace) -> Graph:
    from ..graph.errors import ArgumentError

    make = getattr(model, f"{options.graph}_graph", None)
    if make is None:
        raise ArgumentError(f"a {model.config.model_type} has no {options.graph} graph")
    given = {"batch": options.batch, "length": options.length, "cache": options.cache}
    takes = signatures.signature(make).parameters
    for name in ("length", "cache"):
        if given[name] is not None and name not in takes:
            raise ArgumentError(
                f"the {options.graph} graph of a {model.config.model_type} has no {name}",
                hint=f"it has {', '.join(one for one in takes if one != '_')}",
            )
    graph: Graph = make(**{name: size for name, size in given.items() if size is not None})
    return graph


def _session(graph: Graph, options: argparse.Namespace) -> Session:
    from ..optim import AdamW
    from ..session import build

    trains = options.graph == "training"
    # Nothing runs: parameters may stay as memory comes.
    return build(
        graph,
        mode="train" if trains else "infer",
        optimizer=AdamW(1e-3) if trains else None,
        threads=options.threads,
        precision=options.precision or "f32",
        init={"*": None},
    )


# --------------------------------------------------------------------------- what is found


def record(graph: Graph) -> dict[str, Any]:
    """Parameters, nodes and cost of a graph, as plain values."""
    from .. import graph_cost

    rows = [
        (name, str(leaf.dtype), [int(size) for size in leaf.shape])
        for name, leaf in graph.parameters.items()
    ]
    sizes = {name: int(leaf.type.nbytes) for name, leaf in graph.parameters.items()}
    cost = graph_cost(graph)
    states = {name: int(leaf.type.nbytes) for name, leaf in graph.states.items()}
    return {
        "graph": graph.name,
        "parameters": {
            "tensors": len(rows),
            "count": sum(prod(shape) for _, _, shape in rows),
            "bytes": sum(sizes.values()),
            "list": [{"name": name, "dtype": dtype, "shape": shape} for name, dtype, shape in rows],
        },
        "states": {"tensors": len(states), "bytes": sum(states.values())},
        "inputs": {name: str(leaf.type) for name, leaf in graph.inputs.items()},
        "outputs": [{"name": node.label, "type": str(node.type)} for node in graph.outputs],
        "nodes": len(graph),
        "ops": dict(Counter(node.op.name for node in graph.nodes).most_common()),
        "flops": int(cost.flops),
        "bytes_moved": int(cost.bytes),
    }


def _of_file(path: str) -> dict[str, Any]:
    """The tensors of a file, and what it says of itself."""
    from ..load import weights

    found = weights(path)
    rows = [(name, found.info(name)) for name in found]
    # A darner checkpoint has the states of its optimizer besides.
    own = [row for row in rows if not row[0].startswith("state:")]
    said = {k: v for k, v in found.metadata.items() if len(v) <= 200 and "digest" not in k}
    return {
        "file": path,
        "parameters": {
            "tensors": len(own),
            "count": sum(prod(info.shape) for _, info in own),
            "bytes": sum(info.nbytes for _, info in own),
            "list": [
                {"name": name, "dtype": str(info.dtype), "shape": list(info.shape)}
                for name, info in own
            ],
        },
        "states": {
            "tensors": len(rows) - len(own),
            "bytes": found.nbytes - sum(info.nbytes for _, info in own),
        },
        "metadata": said,
    }


def _plan_record(session: Session) -> dict[str, Any]:
    plan = session.plan()
    kinds = Counter(plan.spec(kernel).kind for kernel in plan.kernels)
    return {
        "kernels": len(plan.kernels),
        "specs": len(plan.specs),
        "kinds": dict(kinds.most_common()),
        "arena_bytes": plan.arena_bytes,
        "saved_bytes": plan.saved_bytes,
        "memory": str(session.memory_summary()),
    }


# --------------------------------------------------------------------------- for people


def _parameter_lines(found: dict[str, Any]) -> list[str]:
    from ..graph.text.annotated import format_bytes
    from ..load.listing import aligned, folded

    all_of = found["parameters"]
    head = f"{all_of['count']:,} parameters in {all_of['tensors']} tensors, {format_bytes(all_of['bytes'])}"
    states = found["states"]
    if states["tensors"]:
        head += f"; {states['tensors']} states, {format_bytes(states['bytes'])}"
    rows = [
        (one["name"], f"{one['dtype']}[{', '.join(map(str, one['shape']))}]")
        for one in all_of["list"]
    ]
    return [head, *aligned(folded(rows), most=MOST)]


def _lines(found: dict[str, Any]) -> list[str]:
    from ..graph.text.annotated import format_bytes

    inputs = ", ".join(f"{name} {kind}" for name, kind in found["inputs"].items())
    outputs = ", ".join(f"{one['name'] or 'unnamed'} {one['type']}" for one in found["outputs"])
    ops = ", ".join(f"{name} x{count}" for name, count in found["ops"].items())
    shown = [
        *_parameter_lines(found),
        "",
        f"graph {found['graph']}: {found['nodes']} nodes, {inputs} -> {outputs}",
        f"  {ops}",
        f"  {_flops(found['flops'])}, {format_bytes(found['bytes_moved'])} moved if nothing were fused",
    ]
    return [
        *shown,
        *(line for part in ("report", "plan") if part in found for line in ("", found[part])),
    ]


def _flops(count: float) -> str:
    """Operations with three digits: ``6.06 MFLOP``."""
    for unit in ("", "k", "M", "G"):
        if count < 1000:
            return f"{count:.3g} {unit}FLOP"
        count /= 1000
    return f"{count:,.3g} TFLOP"


def _file_lines(found: dict[str, Any]) -> list[str]:
    said = [f"  {name}: {value}" for name, value in sorted(found["metadata"].items())]
    return [found["file"], *_parameter_lines(found), *(["metadata", *said] if said else [])]
