"""What a product takes whose weights stay quantised: ``python -m bench.quantised --device cpu``.

Beside each other, in turns, results compared first: weights that are decoded in the product (``packed``), decoded to f32 in every step and multiplied then (``first``), kept in memory
as f32 (``floats``), and PyTorch's product of f32 (``torch``, on the CPU). Times are the fastest of many turns: of products that take microseconds, everything else on a machine only adds to them.
The last two columns are medians over the turns: how many times as long decoding first takes, and how many times as long floats take that lie there decoded. One thread of the CPU is timed by its
own clock, so that other programs do not count.
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
ROWS = (1, 4, 8, 12, 32, 128)
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


@dataclass(frozen=True)
class Found:
    """What was measured.

    Attributes:
        times: seconds of each form in each turn.
        bytes: of the session of ``packed``.
    """

    times: dict[str, list[float]]
    bytes: int

    def least(self, form):
        """Milliseconds of a form."""
        return 1e3 * min(self.times[form])

    def ratio(self, form):
        """How many times as long as ``packed`` a form takes."""
        turns = zip(self.times[form], self.times["packed"], strict=True)
        return float(np.median([other / packed for other, packed in turns]))


def measured(weights, rows, device, threads, seconds):
    """All forms in turns, once their results are compared."""
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
    order = np.random.default_rng(0)
    clock = time.thread_time if (device, threads) == ("cpu", 1) else time.perf_counter
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times["first"]) < 5:
        # In any order: what comes after PyTorch's product would share a core with its threads, which go on waiting.
        for form in order.permutation(list(calls)):
            start = clock()
            calls[form]()
            times[form].append(clock() - start)
    used = sessions["packed"][0].memory_summary().total_buffer_bytes
    for session, _ in sessions.values():
        session.close()
    return Found(times, used)


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
        "   first/packed  floats/packed"
    )
    worst = (float("inf"),)
    for scheme in chosen.schemes:
        for size in chosen.sizes:
            terms, columns = map(int, size.split("x"))
            block = QuantScheme(scheme).block
            weights = weights_of(scheme, -(-terms // block) * block, columns)
            shape = "x".join(map(str, weights.floats.shape))
            for rows in chosen.rows:
                found = measured(weights, rows, chosen.device, threads, chosen.seconds)
                worst = min(worst, (found.ratio("first"), scheme, shape, rows))
                shown = "".join(
                    f"{found.least(form):8.2f} ms" if form in found.times else " " * 11
                    for form in ("packed", "first", "floats", "torch")
                )
                shown += f" {found.bytes / 1e6:9.1f}"
                shown += f"{found.ratio('first'):16.2f}{found.ratio('floats'):15.2f}"
                print(f"{scheme:16} {shape:12} {rows:5}{shown}", flush=True)
    print("least first/packed:", *worst)


if __name__ == "__main__":
    main()
