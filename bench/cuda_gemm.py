"""Matrix products on tensor cores, beside torch.mm on the same card in the same run.

    python -m bench.cuda_gemm --emit FOLDER [--arch sm_90a] [main small random epilogues]     writes kernels; needs no card
    python bench/cuda_gemm.py --run FOLDER [--only TEXT] [--quick]                            checks and times them; needs torch and a card, no llvmlite

Results are compared with torch's product in f32 first. Times are medians of CUDA graphs of many launches, taken in turns; random numbers, not zeros. With ``--ways 20`` every case is written in so many ways, the
likely ones first, which shows what the choice between them costs; ``--table FILE`` keeps all times as JSON. An update (group ``updates``: a gradient's product with AdamW after it) is timed over more memory than the
card's cache holds, beside torch.mm and torch's fused AdamW.
"""

import argparse
import json
import math
import os
import random
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path

LAYOUTS = ("NN", "NT", "TN", "TT")
SIZES = ((1024,) * 3, (2048,) * 3, (4096,) * 3, (8192,) * 3)
MODEL = tuple(
    (m, n, k)
    for n, k in ((49152, 576), (3072, 576), (576, 1536), (576, 576), (960, 576))
    for m in (2048, 512, 128)
)
LARGE = ((16384, 4096, 4096), (4096, 4096, 16384))
PRIMES = (31, 61, 127, 251, 509, 997, 1021, 2039, 4093)
VARIANTS = 4
"""Ways to cut a product that are timed for shapes whose choice is looked at."""
UPDATES = (
    (576, 576),
    (960, 576),
    (1536, 576),
    (3072, 576),
    (576, 1536),
    (49152, 576),
    (4096, 4096),
)
"""Rows and columns of weights that are updated with their gradients' products."""
TOKENS = 2048
MORE_THAN_CACHED = 200 << 20
STEP = {"rate": 1e-3, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "decay": 0.01}


def random_shapes(count, seed=1):
    """Shapes of all kinds, primes and sizes that are a multiple of nothing among them."""
    rng = random.Random(seed)
    found = []
    for number in range(count):
        sizes = []
        for _ in range(3):
            if number % 3 == 0:
                sizes.append(rng.choice(PRIMES))
            else:
                size = int(2 ** rng.uniform(5, 12.3))
                sizes.append(max(size // 8 * 8, 16) if number % 3 == 1 else size)
        found.append(tuple(sizes))
    return found


def cases(groups):
    """What is measured: dictionaries of name, sizes, layout, element type of operands and result, batch, epilogue, and how many variants."""
    found = []

    def add(shape, layout="NT", dtype="bf16", result=None, variants=1, batch=0, finish="plain"):
        m, n, k = shape
        result = result or dtype
        name = f"{dtype}-{layout}-{m}x{n}x{k}"
        name += f"-to-{result}" * (result != dtype) + f"-b{batch}" * bool(batch)
        name += f"-{finish}" * (finish != "plain")
        found.append(
            {
                "name": name, "m": m, "n": n, "k": k, "layout": layout, "dtype": dtype,
                "result": result, "variants": variants, "whole first": False, "batch": batch, "finish": finish,
            }
        )  # fmt: skip

    if "main" in groups:
        for shape in SIZES:
            for layout in LAYOUTS:
                add(shape, layout, variants=VARIANTS if layout == "NT" else 1)
        for shape in LARGE:
            add(shape, variants=2)
        add(SIZES[2], "NT", "f16")
        add(SIZES[2], "NT", "bf16", "f32")
    if "f32" in groups:
        for shape in SIZES:
            for layout in LAYOUTS if shape == SIZES[2] else ("NN",):
                add(shape, layout, "tf32")
                add(shape, layout, "f32", variants=VARIANTS)
        add(MODEL[3], "NT", "f32", variants=VARIANTS)
        add((997, 1009, 1013), "NN", "f32", variants=VARIANTS)
    if "small" in groups:
        for shape in MODEL:
            add(shape, variants=2 * VARIANTS)
        for shape in MODEL[3:9]:
            add(shape, "NN")
    if "updates" in groups:
        for m, n in UPDATES:
            add((m, n, TOKENS), "TN", result="f32", finish="adamw")
    if "random" in groups:
        for number, shape in enumerate(random_shapes(60)):
            add(shape, LAYOUTS[number % 4])
    if "epilogues" in groups:
        for finish in ("bias", "silu-residual", "two"):
            for shape in (
                (2048, 3072, 576),
                (2048, 576, 1536),
                (4096, 4096, 4096),
                (777, 501, 333),
            ):
                add(shape, finish=finish)
        add((512, 64, 512), "NN", batch=36)
        add((512, 512, 64), "NT", batch=36)
        add((130, 70, 90), "TN", batch=6)
    return found


# --------------------------------------------------------------------------- writing kernels


def graph_of(case):
    """The graph of a case: operands a and b, and what its epilogue reads."""
    import darner

    graph = darner.Graph()
    m, n, k, layout, batch = (case[key] for key in ("m", "n", "k", "layout", "batch"))
    lead = (batch,) if batch else ()
    swapped = (*range(len(lead)), len(lead) + 1, len(lead))
    kind = "f32" if case["dtype"] in ("tf32", "f32") else case["dtype"]
    a = graph.input("a", (*lead, m, k) if layout[0] == "N" else (*lead, k, m), kind)
    b = graph.input("b", (*lead, k, n) if layout[1] == "N" else (*lead, n, k), kind)
    if case["dtype"] == "tf32":
        a, b = (x.reduce_precision(8, 10) for x in (a, b))
    x = a.transpose(swapped) if layout[0] == "T" else a
    y = b.transpose(swapped) if layout[1] == "T" else b
    product = x @ y if kind == "f32" else x.cast("f32") @ y.cast("f32")
    finish = case["finish"]
    if finish == "adamw":
        graph.set_outputs(adamw(graph, product))
        return graph
    if finish != "plain":
        product = product + graph.input("bias", (n,), "f32")
    if finish == "silu-residual":
        product = product.silu() + graph.input("residual", (m, n), "bf16").cast("f32")
    outputs = [product if kind == "f32" else product.cast(case["result"])]
    if finish == "two":
        outputs.append(product.relu())
    graph.set_outputs(outputs)
    return graph


def adamw(graph, gradient):
    """The new moments and weight of a step of AdamW, with the numbers of the step as inputs."""
    weight, first, second = (
        graph.input(name, gradient.shape, "f32") for name in ("weight", "first", "second")
    )
    keep, beta1, rest1, beta2, rest2, scale, epsilon, rate = (
        graph.input(name, (), "f32") for name in NUMBERS
    )
    first = beta1 * first + rest1 * gradient
    second = beta2 * second + rest2 * gradient.square()
    return [first, second, weight * keep - rate * (first / (second.sqrt() * scale + epsilon))]


NUMBERS = ("keep", "beta1", "rest1", "beta2", "rest2", "scale", "epsilon", "rate")


def numbers_of_step():
    """The values of ``NUMBERS`` at the first step."""
    beta1, beta2 = STEP["beta1"], STEP["beta2"]
    return (
        1 - STEP["rate"] * STEP["decay"],
        beta1,
        1 - beta1,
        beta2,
        1 - beta2,
        1 / math.sqrt(1 - beta2),
        STEP["epsilon"],
        STEP["rate"] / (1 - beta1),
    )


def variants_of(case, machine):
    """The launches of a case's product, by names of the ways to cut it."""
    from darner.backends.base.lowering import written_specs
    from darner.backends.cuda import kernels
    from darner.lower.lower import lower

    given = kernels.multipliers_of(machine)
    plan = lower(
        graph_of(case), target="cuda", whole=set(), ended=set(), alignment=256, multipliers=given
    )
    specs = [spec for _, spec in written_specs(plan)]
    if len(specs) != 1:
        raise SystemExit(f"{case['name']}: {len(specs)} kernels where one was expected")
    template = kernels.template_of(specs[0], machine)
    ways = template.variants(specs[0], machine)
    # Of many, first those whose sums are not cut into parts.
    names = sorted(ways, key=lambda name: case["whole first"] and "parts" in name)
    names = names[: case["variants"]]
    order = [specs[0].inputs[i].name for i in range(len(specs[0].inputs))]
    leaves = [plan.buffers[number].name for number in plan.kernels[0].operands]
    return template.name, {name: ways[name]() for name in names}, leaves or order


def emit(folder, arch, chosen, assembler=None):
    """Write the kernels of cases, and their description; with an assembler as object code."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(min(os.cpu_count() or 1, 16)) as pool:
        found = list(pool.map(partial(emit_case, folder, arch, assembler), chosen))
    described = [case for case in found if case is not None]
    (folder / "cases.json").write_text(json.dumps(described), encoding="utf-8")


def emit_case(folder, arch, assembler, case):
    """Write the kernels of a case; returns its description, or None where it has no kernels."""
    from dataclasses import asdict

    from darner.backends.cuda.code import to_ptx
    from darner.backends.cuda.machine import Machine

    try:
        template, written, leaves = variants_of(case, Machine.without_card(arch))
    except Exception as error:
        print(f"LEFT OUT {case['name']}: {error}", file=sys.stderr)
        return None
    ways = []
    for way, (name, found) in enumerate(written.items()):
        stages = []
        for number, stage in enumerate(found.stages):
            file = f"{case['name']}.{way}.{number}.ptx"
            (folder / file).write_text(to_ptx(stage.ir, arch), encoding="utf-8")
            if assembler:
                source, target = folder / file, (folder / file).with_suffix(".cubin")
                subprocess.run([assembler, "-arch", arch, source, "-o", target], check=True)
                source.unlink()
            stages.append(
                {
                    "ptx": file, "kernel": stage.kernel, "threads": stage.threads,
                    "groups": stage.groups, "shared": stage.shared, "cluster": stage.cluster,
                    "bindings": [asdict(binding) for binding in stage.bindings],
                    "maps": [asdict(map_) for map_ in stage.maps],
                }
            )  # fmt: skip
        ways.append({"name": name, "stages": stages, "scratch": found.scratch})
    print(f"{case['name']}: {template}, {', '.join(written)}", flush=True)
    return {**case, "template": template, "leaves": leaves, "ways": ways}


# --------------------------------------------------------------------------- running them


class Problem:
    """The operands and results of a case on the card, and torch's way to compute it."""

    def __init__(self, torch, case):
        self.torch, self.case = torch, case
        m, n, k = case["m"], case["n"], case["k"]
        layout, lead = case["layout"], (case["batch"],) if case["batch"] else ()
        types = {"bf16": torch.bfloat16, "f16": torch.float16}
        kind = types.get(case["dtype"], torch.float32)

        def new(*shape):
            return torch.randn(*lead, *shape, device="cuda").to(kind)

        a = new(m, k) if layout[0] == "N" else new(k, m)
        b = new(k, n) if layout[1] == "N" else new(n, k)
        self.x = a if layout[0] == "N" else a.transpose(-1, -2)
        self.y = b if layout[1] == "N" else b.transpose(-1, -2)
        self.leaves = {"a": a, "b": b}
        self.sets = 1
        if case["finish"] == "adamw":
            self.update()
            return
        if case["finish"] != "plain":
            self.leaves["bias"] = torch.randn(n, device="cuda")
        if case["finish"] == "silu-residual":
            self.leaves["residual"] = torch.randn(m, n, device="cuda").bfloat16()
        result = types.get(case["result"], torch.float32)

        def room(dtype):
            return torch.empty(*lead, m, n, device="cuda", dtype=dtype)

        self.results = [room(result)] + [room(torch.float32)] * (case["finish"] == "two")
        self.peer = room(kind)

    def update(self):
        """Weights and moments, as many sets as no cache holds; results lie in other memory, and torch's are its own."""
        torch, m, n = self.torch, self.case["m"], self.case["n"]
        self.sets = max(1, -(-MORE_THAN_CACHED // (24 * m * n)))
        self.states = torch.randn(self.sets, 3, m, n, device="cuda")
        self.states[:, 2].square_()
        for number, name in enumerate(("weight", "first", "second")):
            self.leaves[name] = self.states[0, number]
        for name, value in zip(NUMBERS, numbers_of_step(), strict=True):
            self.leaves[name] = torch.full((), value, device="cuda")
        self.others = torch.empty(self.sets, 3, m, n, device="cuda")
        self.results = list(self.others[0])
        self.peer = torch.empty(m, n, device="cuda")
        self.ones = [torch.ones((), device="cuda") for _ in range(self.sets)]
        self.turn = 0

    def wanted(self):
        """The results in f32."""
        torch, finish = self.torch, self.case["finish"]
        torch.backends.cuda.matmul.allow_tf32 = False
        found = self.x.float() @ self.y.float()
        if finish == "adamw":
            weight, first, second = (self.leaves[name] for name in ("weight", "first", "second"))
            keep, beta1, rest1, beta2, rest2, scale, epsilon, rate = numbers_of_step()
            first = beta1 * first + rest1 * found
            second = beta2 * second + rest2 * found.square()
            return [first, second, weight * keep - rate * first / (second.sqrt() * scale + epsilon)]
        if finish != "plain":
            found = found + self.leaves["bias"]
        if finish == "silu-residual":
            found = torch.nn.functional.silu(found) + self.leaves["residual"].float()
        return [found, torch.relu(found)] if finish == "two" else [found]

    def launches(self, launch, folder, way):
        """A function that starts all launches of a way to compute it."""
        from cuda_launch import Run

        sets = []
        for number in range(self.sets):
            operands = [self.leaf(name, number) for name in self.case["leaves"]]
            sets.append((operands, self.results if number == 0 else list(self.others[number])))
        return Run.of(self.torch, launch, folder, way, sets)

    def leaf(self, name, number):
        """An operand, of one of the sets that take turns."""
        own = {"weight": 0, "first": 1, "second": 2}
        return self.states[number, own[name]] if name in own else self.leaves[name]

    def torch_run(self, stream):
        """Torch's product, without any epilogue but an update."""
        del stream
        torch = self.torch
        if self.case["finish"] != "adamw":
            torch.matmul(self.x, self.y, out=self.peer)
            return
        gradient = torch.mm(self.x, self.y, out_dtype=torch.float32)
        self.turn = (self.turn + 1) % self.sets
        weight, first, second = self.states[self.turn]
        torch._fused_adamw_(
            [weight], [gradient], [first], [second], [], [self.ones[self.turn]],
            lr=1e-3, beta1=0.9, beta2=0.999, weight_decay=0.01, eps=1e-8, amsgrad=False, maximize=False,
        )  # fmt: skip


def graph_times(torch, functions, inner, rounds=7):
    """The median milliseconds of each function, run ``inner`` times in a CUDA graph, the functions in turns."""
    stream, graphs = torch.cuda.Stream(), []
    with torch.cuda.stream(stream):
        for function in functions:
            function(stream.cuda_stream)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                for _ in range(inner):
                    function(stream.cuda_stream)
            graphs.append(graph)
        times = [[] for _ in functions]
        for _ in range(rounds):
            for graph, own in zip(graphs, times, strict=True):
                graph.replay()
                first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                first.record(stream)
                graph.replay()
                last.record(stream)
                last.synchronize()
                own.append(first.elapsed_time(last) / inner)
    return [sorted(own)[len(own) // 2] for own in times]


TOLERANCE = {"bf16": 4e-3, "f16": 6e-4, "tf32": 8e-4, "f32": 2e-5}
"""Of the norm of the difference, relative to the norm of the result."""


def check(torch, problem, run):
    """The largest error of the results, relative to their norms; written twice, it must be the same bits."""
    worst, kept = 0.0, []
    for _ in range(2):
        for result in problem.results:
            result.fill_(math.nan)
        run.first(torch.cuda.current_stream().cuda_stream)
        torch.cuda.synchronize()
        kept.append([result.clone() for result in problem.results])
    same = all(torch.equal(x, y) for x, y in zip(*kept, strict=True))
    for result, wanted in zip(problem.results, problem.wanted(), strict=True):
        error = ((result.float() - wanted).norm() / wanted.norm()).item()
        worst = max(worst, error if error == error else math.inf)
    return worst, same


def run_all(folder, only, without, quick, table):
    """Check and time all cases."""
    import torch

    sys.path.insert(0, str(Path(__file__).parent))
    from cuda_launch import Launch, call, code_of, load

    torch.zeros(1, device="cuda")
    described = json.loads((Path(folder) / "cases.json").read_text(encoding="utf-8"))
    described = [case for case in described if is_meant(case, only)]
    for case in described:
        case["ways"] = [way for way in case["ways"] if not without or without not in way["name"]]
    context = current_context(call)
    stages = {
        str(Path(folder) / stage["ptx"]): stage
        for case in described
        for way in case["ways"]
        for stage in way["stages"]
    }

    def prepare(item):
        call("cuCtxSetCurrent", context)
        key, stage = item
        return key, load(code_of(key), stage["kernel"], stage["shared"])

    with ThreadPoolExecutor(os.cpu_count() or 8) as pool:
        Launch.loaded.update(pool.map(prepare, stages.items()))
    ratios, wrong, rows = {}, [], []
    for case in described:
        row = run_case(torch, folder, case, quick, wrong)
        rows.append(row)
        kind = case["dtype"] + (" with AdamW" if case["finish"] == "adamw" else "")
        ratios.setdefault(kind, []).append(row["torch"] / row["ways"][0][1])
        if table:
            Path(table).write_text(json.dumps(rows), encoding="utf-8")
    for dtype, found in ratios.items():
        mean = math.exp(sum(map(math.log, found)) / len(found))
        print(
            f"{dtype}: {mean:.3f} x torch (geometric mean of {len(found)}), least {min(found):.3f}"
        )
    print("WRONG: " + "; ".join(wrong) if wrong else "all results agree")


def run_case(torch, folder, case, quick, wrong):
    """Check and time a case, and print it; returns the microseconds of torch and of each way."""
    from cuda_launch import Launch, registers

    torch.manual_seed(0)
    problem = Problem(torch, case)
    runs, shown = [], []
    for way in case["ways"]:
        run = problem.launches(Launch, folder, way)
        error, same = check(torch, problem, run)
        kind = case["dtype"] if case["dtype"] in ("tf32", "f32") else case["result"]
        limit = TOLERANCE[kind if kind != "f32" or case["dtype"] == "f32" else "tf32"]
        used, spilled = registers(Launch.loaded[str(Path(folder) / way["stages"][-1]["ptx"])])
        note = "" if error < limit and same else f" WRONG (error {error:.2e}, same bits {same})"
        if note:
            wrong.append(f"{case['name']} {way['name']}")
        shown.append(f"[{way['name']} err {error:.1e} r{used} s{spilled}{note}")
        runs.append(run)
    torch.backends.cuda.matmul.allow_tf32 = case["dtype"] == "tf32"
    flops = 2 * max(case["batch"], 1) * case["m"] * case["n"] * case["k"]
    inner = max(2, min(20 if quick else 50, int(1e12 / flops)))
    alone = runs[0].stages
    times = graph_times(torch, [problem.torch_run, *runs, *alone], inner, 3 if quick else 7)
    times = [time * 1e3 for time in times]
    peer, own = times[0], times[1 : 1 + len(runs)]
    for number, time in enumerate(own):
        shown[number] += f" {time:.2f}us {flops / time / 1e6:.0f}T x{peer / time:.3f}]"
    late = f" CHOICE LOSES {own[0] / min(own):.2f}" if own[0] > 1.05 * min(own) else ""
    apart = " + ".join(f"{time:.2f}" for time in times[1 + len(runs) :])
    late += f" (launches {apart}us)" if alone else ""
    if case["finish"] == "adamw":
        late += f" {24 * case['m'] * case['n'] / own[0] / 1e3:.0f} GB/s of state"
    told = f"torch {peer:.2f}us {flops / peer / 1e6:.0f}T"
    print(f"{case['name']} ({case['template']}): {told} | {' '.join(shown)}{late}", flush=True)
    names = (way["name"] for way in case["ways"])
    return {"case": case["name"], "torch": peer, "ways": list(zip(names, own, strict=True))}


def is_meant(case, only):
    """Whether a case is one of those that are asked for."""
    return any(part in case["name"] for part in only.split(","))


def current_context(call):
    """The context that torch made."""
    import ctypes

    found = ctypes.c_void_p()
    call("cuCtxGetCurrent", ctypes.byref(found))
    return found


def main():
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("groups", nargs="*", default=[])
    parser.add_argument("--emit", metavar="FOLDER")
    parser.add_argument("--run", metavar="FOLDER")
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--only", default="", help="parts of names, with commas between them")
    parser.add_argument("--without", help="part of the names of ways that are not run")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--ways", type=int, default=0, help="ways to write each case")
    parser.add_argument("--assembler", help="ptxas, for object code instead of PTX")
    parser.add_argument("--table", help="where times are written as JSON")
    given = parser.parse_args()
    groups = given.groups or ["main", "f32", "small", "random", "epilogues"]
    if given.emit:
        chosen = [case for case in cases(groups) if is_meant(case, given.only)]
        more = {"variants": given.ways, "whole first": True} if given.ways else {}
        emit(given.emit, given.arch, [{**case, **more} for case in chosen], given.assembler)
    if given.run:
        run_all(given.run, given.only, given.without, given.quick, given.table)


if __name__ == "__main__":
    main()
