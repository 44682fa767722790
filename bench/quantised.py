"""What a product takes whose weights stay quantised: ``python -m bench.quantised --device cpu``.

Beside each other, in turns, results compared first: weights that are decoded in the product (``packed``), decoded to f32 in every step and multiplied then (``first``), kept in memory
as f32 (``floats``), and PyTorch's product of f32 (``torch``, on the CPU). Times are the fastest of many turns: of products that take microseconds, everything else on a machine only adds to them.
"""

import argparse
import time
from dataclasses import dataclass

import numpy as np
import torch

import darner
from darner import Graph, QuantScheme
from darner.ops.quantised.packed import decoded

SCHEMES = ("q8_0", "q4_0", "q4_k", "q6_k", "int8_block(32)", "int4_block(32)")
ROWS = (1, 4, 32, 128)
SIZES = ("2048x2048", "1920x1001")
"""Terms and columns; the others are odd for tiles, and even for codes that share a byte where a scheme needs that."""


@dataclass(frozen=True)
class Weights:
    """Weights [K, N] in a scheme.

    Attributes:
        stored: codes, scales and zero points by name, as far as there are any.
        floats: what they stand for.
    """

    scheme: QuantScheme
    stored: dict[str, np.ndarray]
    floats: np.ndarray


def weights_of(scheme, terms, columns):
    """Random weights of a scheme."""
    rng, known = np.random.default_rng(0), QuantScheme(scheme)
    if known.is_packed:
        codes = rng.integers(0, 40, (columns, known.row_bytes(terms))).astype(np.uint8)
        return Weights(known, {"codes": codes}, np.ascontiguousarray(decoded(known, codes).T))
    columns += columns % 2
    found = darner.quantize_weights(rng.normal(size=(terms, columns)), known)
    named = {name: value for name, value in found._asdict().items() if value is not None}
    g = Graph()
    g.set_outputs([_decode(known, {n: g.input(n, v.shape, v.dtype) for n, v in named.items()})])
    return Weights(known, named, darner.run(g, named)[0])


def _decode(scheme, nodes):
    return nodes["codes"].graph.dequantize_blocks(**nodes, scheme=scheme)


def session_of(weights, rows, form, device, threads):
    """A session that multiplies, and the inputs of a step."""
    terms = len(weights.floats)
    g = Graph(form)
    x = g.input("x", (rows, terms))
    given = {"x": np.random.default_rng(1).normal(size=(rows, terms)).astype(np.float32)}
    values = {"w": weights.floats} if form == "floats" else weights.stored
    # What is given in every step cannot be decoded before.
    leaf = g.input if form == "first" else g.parameter
    nodes = {name: leaf(name, value.shape, value.dtype) for name, value in values.items()}
    if form == "floats":
        g.set_outputs([x @ nodes["w"]])
    else:
        w = _decode(weights.scheme, nodes)
        product = x @ (w.T if weights.scheme.is_packed else w)
        # A second use of the weights keeps them in memory.
        g.set_outputs([product] if form == "packed" else [product, w[:1, :1].exp()])
    session = darner.build_inference_session(g, device=device, threads=threads)
    if form == "first":
        given |= values
    else:
        session.parameters().update(values)
    return session, given


def measured(weights, rows, device, threads, seconds):
    """Milliseconds of each form, the least of many turns, and bytes of the session of ``packed``."""
    sessions = {
        form: session_of(weights, rows, form, device, threads)
        for form in ("packed", "first", "floats")
    }
    x = sessions["packed"][1]["x"]
    wanted = x.astype(np.float64) @ weights.floats
    for form, (session, given) in sessions.items():
        found = session.run(given)["output0"]
        error = np.abs(found - wanted).max() / np.abs(wanted).max()
        if not error < 1e-5:
            raise SystemExit(f"{form} is off by {error:.1e} of the largest")
    calls = {form: lambda s=s, given=given: s.run(given) for form, (s, given) in sessions.items()}
    if device == "cpu":
        left, right = torch.from_numpy(x), torch.from_numpy(weights.floats)
        calls["torch"] = lambda: left @ right
    times = {form: [] for form in calls}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times["first"]) < 5:
        for form, call in calls.items():
            start = time.perf_counter()
            call()
            times[form].append(time.perf_counter() - start)
    used = sessions["packed"][0].memory_summary().total_buffer_bytes
    for session, _ in sessions.values():
        session.close()
    return {form: 1e3 * min(found) for form, found in times.items()}, used


def main():
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--schemes", nargs="+", default=SCHEMES)
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS)
    parser.add_argument("--sizes", nargs="+", default=SIZES, help="terms x columns")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each line")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    threads = chosen.threads if chosen.device == "cpu" else None
    print(
        "scheme           size          rows     packed      first     floats      torch   MB packed"
    )
    for scheme in chosen.schemes:
        for size in chosen.sizes:
            terms, columns = map(int, size.split("x"))
            block = QuantScheme(scheme).block
            weights = weights_of(scheme, -(-terms // block) * block, columns)
            shape = "x".join(map(str, weights.floats.shape))
            for rows in chosen.rows:
                found, used = measured(weights, rows, chosen.device, threads, chosen.seconds)
                shown = "".join(
                    f"{found[form]:8.2f} ms" if form in found else " " * 11
                    for form in ("packed", "first", "floats", "torch")
                )
                print(f"{scheme:16} {shape:12} {rows:5}{shown} {used / 1e6:9.1f}", flush=True)


if __name__ == "__main__":
    main()
