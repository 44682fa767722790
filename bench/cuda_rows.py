"""Maps, rows, columns, norms, losses, gathers, scatters and pooling on an NVIDIA GPU, beside torch on the same card in the same run.

    python -m bench.cuda_rows                         all
    python -m bench.cuda_rows softmax column          those whose name has one of these words
    python -m bench.cuda_rows --device cuda:emulated --small

Results are compared with torch's first, on the CPU where there is no card. A time is that of a launch among many in one CUDA graph: so operands of a few megabytes come from the L2 cache, as they
do within a step. Gigabytes a second count every operand and result once. ``--compile`` has torch's functions compiled too, and takes the quicker.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import darner
from darner import Graph, Node

TIMES = 40
"""Launches of a graph, at most."""
WANTED = 4e-3
"""Seconds that a graph takes, about."""


@dataclass(frozen=True)
class Case:
    """One computation.

    Attributes:
        name: what it is called.
        inputs: by name: shape and type, and what integers lie below.
        darner: the outputs of a graph, of its inputs.
        torch: the same of torch's tensors.
        loose: how far results may be apart, relative to the largest.
        gradients: of the first output to which inputs are wanted.
        value: whether that output is wanted too.
    """

    name: str
    inputs: dict[str, tuple[tuple[int, ...], str, int]]
    darner: Callable[[Graph, dict[str, Node]], Any]
    torch: Callable[..., Any]
    loose: float = 2e-5
    gradients: tuple[str, ...] = ()
    value: bool = False


def many(shape: tuple[int, ...], *names: str, dtype: str = "f32") -> dict[str, Any]:
    """Inputs of one shape."""
    return dict.fromkeys(names, (shape, dtype, 0))


def maps(n: int, m: int) -> Iterator[Case]:
    """Element by element."""
    import torch
    from torch.nn import functional

    one, two = many((n, m), "x"), many((n, m), "x", "y")
    size = f"{n}x{m}"
    yield Case(f"map x*2 {size}", one, lambda g, i: i["x"] * 2.0, lambda x: x * 2.0)
    yield Case(f"map add {size}", two, lambda g, i: i["x"] + i["y"], lambda x, y: x + y)
    yield Case(f"map exp {size}", one, lambda g, i: i["x"].exp(), torch.exp)
    yield Case(f"map gelu {size}", one, lambda g, i: i["x"].gelu(), functional.gelu)
    yield Case(
        f"map swiglu {size}",
        two,
        lambda g, i: i["x"].swiglu(i["y"]),
        lambda x, y: functional.silu(x) * y,
    )
    yield Case(
        f"map quotient {size}",
        two,
        lambda g, i: i["x"] / (i["y"] * i["y"] + 1.0),
        lambda x, y: x / (y * y + 1.0),
    )
    yield Case(
        f"map to bf16 {size}", one, lambda g, i: i["x"].cast("bf16"), lambda x: x.bfloat16(), 1e-2
    )
    half = many((n, m), "x", "y", dtype="bf16")
    yield Case(f"map add bf16 {size}", half, lambda g, i: i["x"] + i["y"], lambda x, y: x + y, 1e-2)
    yield Case(
        f"map transpose {size}", one, lambda g, i: i["x"].transpose(), lambda x: x.t().contiguous()
    )
    row = {"x": ((n, m), "f32", 0), "y": ((m,), "f32", 0)}
    yield Case(
        f"map add row {size}",
        row,
        lambda g, i: (i["x"] + i["y"]).relu(),
        lambda x, y: functional.relu(x + y),
    )


def rows(n: int, m: int) -> Iterator[Case]:
    """Reductions of rows and columns, softmax and norms."""
    import torch
    from torch.nn import functional

    one, size = many((n, m), "x"), f"{n}x{m}"
    weighed = {"x": ((n, m), "f32", 0), "w": ((m,), "f32", 0)}
    shifted = {**weighed, "b": ((m,), "f32", 0)}
    yield Case(f"row sum {size}", one, lambda g, i: i["x"].sum(-1), lambda x: x.sum(-1))
    yield Case(f"row argmax {size}", one, lambda g, i: i["x"].argmax(-1), lambda x: x.argmax(-1))
    yield Case(f"column sum {size}", one, lambda g, i: i["x"].sum(0), lambda x: x.sum(0))
    yield Case(f"whole sum {size}", one, lambda g, i: i["x"].sum(), lambda x: x.sum(), 1e-3)
    yield Case(
        f"softmax {size}", one, lambda g, i: i["x"].softmax(-1), lambda x: functional.softmax(x, -1)
    )
    yield Case(
        f"log softmax {size}",
        one,
        lambda g, i: i["x"].log_softmax(-1),
        lambda x: functional.log_softmax(x, -1),
    )
    yield Case(
        f"rms norm {size}",
        weighed,
        lambda g, i: i["x"].rms_norm(i["w"], 1e-5),
        lambda x, w: functional.rms_norm(x, w.shape, w, 1e-5),
    )
    yield Case(
        f"layer norm {size}",
        shifted,
        lambda g, i: i["x"].layer_norm(i["w"], i["b"], 1e-5),
        lambda x, w, b: functional.layer_norm(x, w.shape, w, b, 1e-5),
    )
    yield Case(
        f"rms norm to bf16 {size}",
        weighed,
        lambda g, i: i["x"].rms_norm(i["w"], 1e-5).cast("bf16"),
        lambda x, w: functional.rms_norm(x, w.shape, w, 1e-5).bfloat16(),
        1e-2,
    )
    backward = {**weighed, "d": ((n, m), "f32", 0)}

    def torch_gradients(x: Any, w: Any, d: Any) -> Any:
        r = torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)
        normal, slope = x * r, d * w
        return r * (slope - normal * (slope * normal).mean(-1, keepdim=True)), (d * normal).sum(0)

    yield Case(
        f"rms norm backward {size}",
        backward,
        lambda g, i: (i["x"].rms_norm(i["w"], 1e-5) * i["d"]).sum(),
        torch_gradients,
        1e-4,
        gradients=("x", "w"),
    )
    yield Case(
        f"rms norm and residual backward {size}",
        {**backward, "e": ((n, m), "f32", 0)},
        lambda g, i: (i["x"].rms_norm(i["w"], 1e-5) * i["d"] + i["x"] * i["e"]).sum(),
        lambda x, w, d, e: (torch_gradients(x, w, d)[0] + e, torch_gradients(x, w, d)[1]),
        1e-4,
        gradients=("x", "w"),
    )


def losses(n: int, m: int) -> Iterator[Case]:
    """Cross entropy and its gradient."""
    import torch
    from torch.nn import functional

    inputs = {"x": ((n, m), "f32", 0), "t": ((n,), "i32", m)}

    def torch_both(x: Any, t: Any) -> Any:
        total = torch.logsumexp(x, -1, keepdim=True)
        slope = torch.exp(x - total)
        slope.scatter_add_(1, t.long()[:, None], torch.full_like(total, -1.0))
        return (total - x.gather(1, t.long()[:, None])).mean(), slope / len(x)

    def loss(_: Graph, i: dict[str, Node]) -> Node:
        return i["x"].cross_entropy_loss(i["t"])

    def torch_loss(x: Any, t: Any) -> Any:
        return functional.cross_entropy(x, t.long())

    yield Case(f"cross entropy {n}x{m}", inputs, loss, torch_loss)
    name = f"cross entropy and gradient {n}x{m}"
    yield Case(name, inputs, loss, torch_both, 1e-4, gradients=("x",), value=True)


def indexed(words: int, width: int, count: int) -> Iterator[Case]:
    """Rows of a table that are read and written by index."""
    import torch

    table = {"x": ((words, width), "f32", 0), "t": ((count,), "i32", words)}
    yield Case(
        f"gather {count} of {words}x{width}",
        table,
        lambda g, i: g.embedding(i["t"], i["x"]),
        lambda x, t: x[t.long()],
    )
    source = {"x": ((count, width), "f32", 0), "t": ((count,), "i32", words)}
    yield Case(
        f"scatter add {count} to {words}x{width}", source,
        lambda g, i: g.scatter_add(i["t"], i["x"], words),
        lambda x, t: torch.zeros(words, width, device=x.device).index_add_(0, t.long(), x),
        1e-4,
    )  # fmt: skip


def images(n: int, channels: int, side: int) -> Iterator[Case]:
    """Batch norm and pooling."""
    from torch.nn import functional

    x = {"x": ((n, channels, side, side), "f32", 0)}
    normed = {**x, "w": ((channels,), "f32", 0), "b": ((channels,), "f32", 0)}
    size = f"{n}x{channels}x{side}x{side}"
    yield Case(
        f"batch norm {size}",
        normed,
        lambda g, i: i["x"].batch_norm_training(i["w"], i["b"], 1e-5)[0],
        lambda x, w, b: functional.batch_norm(x, None, None, w, b, True, 0.0, 1e-5),
        1e-4,
    )

    def torch_gradients(x: Any, w: Any, b: Any, d: Any) -> Any:
        import torch

        mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)
        return torch.ops.aten.native_batch_norm_backward(
            d, x, w, None, None, mean, (variance + 1e-5).rsqrt(), True, 1e-5, [True] * 3
        )

    yield Case(
        f"batch norm backward {size}",
        {**normed, "d": x["x"]},
        lambda g, i: (i["x"].batch_norm_training(i["w"], i["b"], 1e-5)[0] * i["d"]).sum(),
        torch_gradients,
        1e-3,
        gradients=("x", "w", "b"),
    )
    yield Case(
        f"max pool {size}",
        x,
        lambda g, i: i["x"].max_pool2d(3, 2, 1),
        lambda x: functional.max_pool2d(x, 3, 2, 1),
    )
    yield Case(
        f"average pool {size}",
        x,
        lambda g, i: i["x"].avg_pool2d(2),
        lambda x: functional.avg_pool2d(x, 2),
    )
    yield Case(
        f"mean of images {size}", x, lambda g, i: i["x"].mean((2, 3)), lambda x: x.mean((2, 3))
    )


def cases(small: bool) -> Iterator[Case]:
    """All of them; the small ones are for trying the benchmark out."""
    if small:
        for family in (
            maps(64, 96),
            rows(48, 80),
            losses(16, 200),
            indexed(50, 32, 40),
            images(2, 3, 12),
        ):
            yield from family
        return
    yield from maps(4096, 4096)
    yield from rows(4096, 4096)
    yield from rows(2048, 576)
    yield from maps(2048, 576)
    yield from rows(1999, 1001)
    yield from rows(16384, 768)
    yield from losses(2048, 49152)
    yield from indexed(49152, 576, 2048)
    yield from images(32, 64, 56)
    yield from images(32, 256, 14)


def values(case: Case) -> dict[str, np.ndarray]:
    """Noise, and integers where an index is asked for."""
    rng = np.random.default_rng(0)
    found = {}
    for name, (shape, _, below) in case.inputs.items():
        if below:
            found[name] = rng.integers(0, below, shape).astype(np.int32)
            continue
        count = int(np.prod(shape))
        noise = rng.standard_normal(min(count, (1 << 20) + 7), np.float32)
        found[name] = np.resize(noise, count).reshape(shape)
    return found


def as_tensors(case: Case, given: dict[str, np.ndarray], device: str) -> dict[str, Any]:
    """The same as torch has them."""
    import torch

    kinds = {"f32": torch.float32, "bf16": torch.bfloat16, "i32": torch.int32}
    return {
        name: torch.tensor(array, device=device).to(kinds[case.inputs[name][1]])
        for name, array in given.items()
    }


def session_of(case: Case, given: dict[str, np.ndarray], device: str) -> darner.Session:
    """A session that has run once."""
    graph = Graph("case")
    nodes = {
        name: graph.input(name, shape, dtype) for name, (shape, dtype, _) in case.inputs.items()
    }
    made = case.darner(graph, nodes)
    graph.set_outputs(list(made) if isinstance(made, tuple | list) else [made])
    if case.gradients:
        transform = darner.value_and_grad if case.value else darner.grad
        graph = transform(graph, list(case.gradients))
    session = darner.build_inference_session(graph, device=device, progress=False, cache=None)
    for name, array in given.items():
        if case.inputs[name][1] == "bf16":
            import ml_dtypes

            array = array.astype(ml_dtypes.bfloat16)
        session.set_input(name, array)
    session.step()
    session.wait()
    return session


def apart(session: darner.Session, wanted: Any) -> float:
    """How far results are from torch's, relative to the largest of each."""
    most = 0.0
    for number, one in enumerate(wanted if isinstance(wanted, tuple | list) else (wanted,)):
        right = one.float().cpu().numpy()
        found = np.asarray(session.read_output_by_index(number)).astype(np.float32)
        if found.size != right.size:
            return float("inf")
        difference = np.abs(found.reshape(right.shape) - right)
        most = max(most, float(difference.max() / max(np.abs(right).max(), 1e-30)))
    return most


def seconds(start: Callable[[], None], wait: Callable[[], None], count: int) -> float:
    """The median time of what is started so often at once."""
    found = []
    for _ in range(7):
        wait()
        begun = time.perf_counter()
        start()
        wait()
        found.append((time.perf_counter() - begun) / count)
    return statistics.median(found)


def our_seconds(session: darner.Session, nbytes: int) -> tuple[float, int]:
    """Of all kernels of a step; and how many launches these are."""
    runner = session._runner
    program: Any = runner.loaded(runner.ran()).program
    stream, count = program.queue.stream, repeats(nbytes)
    kernels = range(len(program.plan.kernels))

    def launch() -> None:
        for _ in range(count):
            for number in kernels:
                program._launch_kernel(number)

    with program.device.guard:
        graph = stream.record(launch)
        found = seconds(lambda: graph.start(stream), stream.wait, count)
        graph.close()
    return found, sum(map(len, program._launches))


def their_seconds(function: Callable[..., Any], tensors: dict[str, Any], nbytes: int) -> float:
    """Of torch, as a graph of many calls."""
    import torch

    count = repeats(nbytes)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            function(**tensors)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            function(**tensors)
    return seconds(graph.replay, torch.cuda.synchronize, count)


def repeats(nbytes: int) -> int:
    """How many launches a graph has: fewer of those that take long."""
    return max(3, min(TIMES, round(WANTED / (nbytes / 3e12 + 2e-6))))


def bytes_of(session: darner.Session) -> int:
    """Of the inputs and outputs; of a table that is read by index, the rows that are."""
    runner = session._runner
    plan: Any = runner.ran().plans.step
    inputs = [one.nbytes for one in plan.buffers if one.place == "input"]
    outputs = [plan.buffers[number].nbytes for number in plan.outputs]
    gathers = any("gather" in spec.ops for spec in plan.specs.values())
    return sum(outputs) + (sum(outputs) + min(inputs) if gathers else sum(inputs))


def measured(case: Case, given: argparse.Namespace) -> str:
    """One line of the table."""
    arrays = values(case)
    session = session_of(case, arrays, given.device)
    tensors = as_tensors(case, arrays, "cpu" if "emulated" in given.device else "cuda")
    off = apart(session, case.torch(**tensors))
    told = "" if off <= case.loose else f"  WRONG by {off:.1e}"
    if "emulated" in given.device:
        return f"{case.name:48s} off {off:.1e}{told}"
    nbytes = bytes_of(session)
    ours, launches = our_seconds(session, nbytes)
    theirs = float("nan")
    if not given.alone:
        functions = [case.torch]
        if given.compile:
            import torch

            functions.append(torch.compile(case.torch, dynamic=False))
        theirs = min(their_seconds(function, tensors, nbytes) for function in functions)
    session.close()
    return (
        f"{case.name:48s} {ours * 1e6:8.2f} us {nbytes / ours / 1e9:6.0f} GB/s {launches:2d} launches   "
        f"torch {theirs * 1e6:8.2f} us  {theirs / ours:5.2f}x   floor {nbytes / 4.1e6 + 1:7.1f} us{told}"
    )


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", help="parts of names of cases")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="small sizes")
    parser.add_argument("--alone", action="store_true", help="without torch's times")
    parser.add_argument("--compile", action="store_true", help="torch's functions compiled too")
    given = parser.parse_args()
    for case in cases(given.small):
        if given.words and not any(word in case.name for word in given.words):
            continue
        try:
            print(measured(case, given), flush=True)
        except Exception as error:  # one case that fails says so, and the others are measured
            print(f"{case.name:48s} failed: {type(error).__name__}: {error}", flush=True)
            if given.small:
                sys.exit(1)


if __name__ == "__main__":
    main()
