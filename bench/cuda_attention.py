"""Attention and its gradients on tensor cores, beside torch's cuDNN and FLASH on the same card in the same run.

    python -m bench.cuda_attention --emit FOLDER [--arch sm_90a] [forward backward again odd tf32 f32]       writes kernels; needs no card
    python bench/cuda_attention.py --run FOLDER [--only TEXT] [--quick]                       checks and times them; needs torch and a card, no llvmlite

Results are compared with attention in f64 first. Times are medians of CUDA graphs of many launches, taken in turns. Peers get keys and values repeated for all query heads, and no window: they have none. A backward
has the result and the statistics that its forward left, as in training; those "again" find them by themselves. Where there are several launches each is timed by itself too. Of tf32 and f32 the peer is torch's memory-efficient attention.
"""

import argparse
import json
import math
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SHAPES = (
    # batch, heads, key heads, length, width
    (1, 9, 3, 2048, 64),
    (4, 9, 3, 512, 64),
    (4, 16, 16, 4096, 64),
    (2, 32, 8, 8192, 64),
    (4, 16, 16, 2048, 80),
    (4, 16, 16, 2048, 96),
    (2, 16, 16, 4096, 128),
    (1, 32, 8, 2048, 128),
    (2, 8, 8, 4096, 256),
)
ODD = (
    (2, 4, 4, 1000, 64),
    (1, 6, 2, 130, 64),
    (3, 5, 5, 777, 80),
    (1, 8, 1, 333, 128),
    (1, 4, 2, 201, 72),
    (2, 3, 3, 511, 256),
)


WHOLE = ("f32", "tf32")
"""Types whose factors lie in memory as f32."""


def cases(groups):
    """What is measured: dictionaries of name, sizes, options and whether it is the gradient."""
    found = []

    def add(
        shape,
        backward,
        causal=True,
        window=None,
        dtype="bf16",
        layout="bhsd",
        result=None,
        kept=True,
    ):
        batch, heads, kv_heads, length, width = shape
        kind = ("bwd" if kept else "again") if backward else "fwd"
        name = f"{kind}-B{batch}-H{heads}-KV{kv_heads}-S{length}-D{width}"
        name += "" if causal else "-full"
        name += f"-w{window}" * (window is not None) + f"-{dtype}" * (dtype != "bf16")
        name += f"-{layout}" * (layout != "bhsd") + "-to-f32" * bool(result)
        found.append(
            {
                "name": name, "batch": batch, "heads": heads, "kv_heads": kv_heads,
                "length": length, "width": width, "causal": causal, "window": window,
                "dtype": dtype, "layout": layout, "backward": backward, "kept": kept and backward,
                "result": result or ("f32" if dtype in WHOLE else dtype),
            }
        )  # fmt: skip

    for shape in SHAPES if "again" in groups else ():
        add(shape, True, kept=False)
    for dtype in WHOLE:
        for backward in (False, True):
            for shape in (*SHAPES[:3], *SHAPES[6:], ODD[2]) if dtype in groups else ():
                add(shape, backward, dtype=dtype)
    for backward, group in ((False, "forward"), (True, "backward")):
        if group in groups:
            for shape in SHAPES:
                add(shape, backward)
            for shape in (SHAPES[2], SHAPES[6]):
                add(shape, backward, causal=False)
            add(SHAPES[3], backward, window=1024)
            add(SHAPES[2], backward, dtype="f16")
            add(SHAPES[7], backward, layout="bshd")
        if "odd" in groups:
            for shape in ODD:
                add(shape, backward)
            add(ODD[0], backward, causal=False)
            add(ODD[0], backward, window=100)
            add(ODD[0], backward, causal=False, window=100)
            add(ODD[2], backward, layout="bshd", dtype="f16")
            add(ODD[0], backward, result="f32")
    return found


# --------------------------------------------------------------------------- writing kernels


def graph_of(case):
    """The graph of a case."""
    import darner

    graph, layout = darner.Graph(), case["layout"]

    def shape(heads):
        lead = (heads, case["length"]) if layout == "bhsd" else (case["length"], heads)
        return (case["batch"], *lead, case["width"])

    heads = [case["heads"], case["kv_heads"], case["kv_heads"], case["heads"], case["heads"]]
    names = ("q", "k", "v", "dy", "out")[: (5 if case["kept"] else 4) if case["backward"] else 3]
    kind = "f32" if case["dtype"] in WHOLE else case["dtype"]
    factors = [graph.input(n, shape(h), kind) for n, h in zip(names, heads, strict=False)]
    if case["dtype"] == "tf32":
        factors = [factor.reduce_precision(8, 10) for factor in factors]
    elif case["result"] != kind:
        factors = [factor.cast(case["result"]) for factor in factors]
    op = graph.scaled_dot_attention_backward if case["backward"] else graph.scaled_dot_attention
    options = {"causal": case["causal"], "window": case["window"], "layout": layout}
    if case["kept"]:
        options["out"] = factors.pop()
        known = (case["batch"], case["heads"], 2, case["length"])
        options["statistics"] = graph.input("statistics", known, "f32")
    found = op(*factors, **options)
    graph.set_outputs(list(found) if case["backward"] else [found])
    return graph


def variants_of(case, machine):
    """The launches of a case, by names of the ways to compute it; and its operands and results in order."""
    from darner.backends.cuda import kernels
    from darner.lower.lower import lower
    from darner.lower.roles import whole_ops

    given, whole = kernels.multipliers_of(machine), set(whole_ops())
    graph = graph_of(case)
    plan = lower(graph, target="cuda", whole=whole, ended=set(), alignment=256, multipliers=given)
    if len(plan.kernels) != 1:
        raise SystemExit(f"{case['name']}: {len(plan.kernels)} kernels where one was expected")
    (kernel,) = plan.kernels
    spec = plan.spec(kernel)
    template = kernels.template_of(spec, machine)
    if template.variants is None:
        ways = {template.name: lambda: template.write(spec, machine)}
    else:
        ways = template.variants(spec, machine)
    names = {number: name for name, number in plan.leaves("input").items()}
    results = [plan.outputs.index(number) for number in kernel.results]
    written = {name: way() for name, way in ways.items()}
    return template.name, written, [names[n] for n in kernel.operands], results


def emit(folder, arch, groups):
    """Write the kernels of all cases, and their description."""
    from dataclasses import asdict

    from darner.backends.cuda.code import to_ptx
    from darner.backends.cuda.machine import Machine

    machine, folder = Machine.without_card(arch), Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    described = []
    for case in cases(groups):
        template, written, leaves, results = variants_of(case, machine)
        ways = []
        for way, (name, found) in enumerate(written.items()):
            stages = []
            for number, stage in enumerate(found.stages):
                file = f"{case['name']}.{way}.{number}.ptx"
                (folder / file).write_text(to_ptx(stage.ir, arch), encoding="utf-8")
                stages.append(
                    {
                        "ptx": file, "kernel": stage.kernel, "threads": stage.threads,
                        "groups": stage.groups, "shared": stage.shared, "cluster": stage.cluster,
                        "bindings": [asdict(binding) for binding in stage.bindings],
                        "maps": [asdict(map_) for map_ in stage.maps],
                    }
                )  # fmt: skip
            ways.append({"name": name, "stages": stages, "scratch": found.scratch})
        described.append(
            {**case, "template": template, "leaves": leaves, "results": results, "ways": ways}
        )
        print(f"{case['name']}: {template}, {', '.join(written)}", flush=True)
    (folder / "cases.json").write_text(json.dumps(described), encoding="utf-8")


# --------------------------------------------------------------------------- running them


class Problem:
    """The operands and results of a case on the card, and torch's ways to compute it."""

    def __init__(self, torch, case):
        self.torch, self.case = torch, case
        kind = {"bf16": torch.bfloat16, "f16": torch.float16}.get(case["dtype"], torch.float32)
        result = torch.float32 if case["result"] == "f32" else kind
        batch, length, width = case["batch"], case["length"], case["width"]

        def new(heads):
            lead = (heads, length) if case["layout"] == "bhsd" else (length, heads)
            return torch.randn(batch, *lead, width, device="cuda").to(kind)

        heads, kv_heads = case["heads"], case["kv_heads"]
        self.leaves = {"q": new(heads), "k": new(kv_heads), "v": new(kv_heads), "dy": new(heads)}
        self.leaves["out"] = torch.empty_like(self.leaves["q"])
        self.leaves["statistics"] = torch.empty(batch, heads, 2, length, device="cuda")
        made = ("q", "k", "v") if case["backward"] else ("q",)
        rooms = [torch.empty_like(self.leaves[name], dtype=result) for name in made]
        self.results = [rooms[i] for i in case["results"]]
        self.in_order = rooms

    def heads_first(self, name):
        """An operand, its heads first."""
        leaf = self.leaves[name]
        return leaf if self.case["layout"] == "bhsd" else leaf.transpose(1, 2)

    def wanted(self):
        """The results in f64, in the order of the graph's outputs; a head after the other. What a forward pass keeps is left where it is read."""
        torch, case = self.torch, self.case
        group, length = case["heads"] // case["kv_heads"], case["length"]
        far = torch.arange(length, device="cuda")
        distance = far[:, None] - far[None, :]
        hidden = torch.zeros_like(distance, dtype=torch.bool)
        if case["causal"]:
            hidden |= distance < 0
        if case["window"] is not None:
            hidden |= distance.abs() >= case["window"]
        found = [
            torch.zeros(self.heads_first(n).shape, dtype=torch.float64, device="cuda")
            for n in ("q", "k", "v")
        ]
        q_kind = self.leaves["q"].dtype
        for batch in range(case["batch"]):
            for head in range(case["heads"]):
                q, dy = (self.heads_first(n)[batch, head].double() for n in ("q", "dy"))
                k, v = (self.heads_first(n)[batch, head // group].double() for n in ("k", "v"))
                scores = (q @ k.T) * case["width"] ** -0.5
                p = torch.softmax(scores.masked_fill_(hidden, -math.inf), -1)
                top = scores.max(-1).values
                kept = self.leaves["statistics"][batch, head]
                kept[0] = top
                kept[1] = 1 / (scores - top[:, None]).exp().sum(-1)
                self.heads_first("out")[batch, head] = (p @ v).to(q_kind)
                if not case["backward"]:
                    found[0][batch, head] = p @ v
                    continue
                dp = dy @ v.T
                ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * case["width"] ** -0.5
                found[0][batch, head] = ds @ k
                found[1][batch, head // group] += ds.T @ q
                found[2][batch, head // group] += p.T @ dy
        if case["layout"] == "bshd":
            found = [x.transpose(1, 2) for x in found]
        return found if case["backward"] else found[:1]

    def launches(self, launch, folder, way):
        """A function that starts all launches of a way to compute it."""
        from cuda_launch import Run

        operands = [self.leaves[name] for name in self.case["leaves"]]
        return Run.of(self.torch, launch, folder, way, [(operands, self.results)])

    def peers(self):
        """Torch's ways by name: functions of a stream. Those that it cannot do are left out."""
        torch, case = self.torch, self.case
        from torch.nn.attention import SDPBackend, sdpa_kernel

        group = case["heads"] // case["kv_heads"]
        q, dy = (self.heads_first(n).contiguous() for n in ("q", "dy"))
        k, v = (self.heads_first(n).repeat_interleave(group, 1).contiguous() for n in ("k", "v"))
        attention = torch.nn.functional.scaled_dot_product_attention
        found = {}
        ways = [("cudnn", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION)]
        if case["dtype"] in WHOLE:
            ways = [("efficient", SDPBackend.EFFICIENT_ATTENTION)]
            torch.backends.cuda.matmul.allow_tf32 = case["dtype"] == "tf32"
        for name, backend in ways:
            factors = [x.detach().clone().requires_grad_(case["backward"]) for x in (q, k, v)]

            def forward(stream, backend=backend, factors=factors):
                with sdpa_kernel(backend):
                    return attention(*factors, is_causal=case["causal"])

            kept = {}

            def backward(stream, forward=forward, factors=factors, kept=kept):
                if "y" not in kept:
                    kept["y"] = forward(stream)
                return torch.autograd.grad(kept["y"], factors, dy, retain_graph=True)

            try:
                function = backward if case["backward"] else forward
                # Made anew in the stream that is recorded.
                function(None)
                torch.cuda.synchronize()
                kept.clear()
                found[name] = function
            except Exception as error:
                print(f"no {name} for {case['name']}: {str(error)[:80]}")
        return found

    @property
    def flops(self):
        """Additions and multiplications, hidden scores left out: two products forward, five backward."""
        case, length = self.case, self.case["length"]
        seen = length * length / (2 if case["causal"] else 1)
        if case["window"] is not None:
            seen = min(seen, length * case["window"] * (1 if case["causal"] else 2))
        products = 5 if case["backward"] else 2
        return 2 * products * case["batch"] * case["heads"] * seen * case["width"]


TOLERANCE = {"bf16": 4e-3, "f16": 6e-4, "tf32": 1.5e-3, "f32": 1e-5}
"""Of the norm of the difference, relative to the norm of the result."""


def check(torch, problem, run):
    """The largest error of the results, relative to their norms, and whether two runs give the same bits."""
    kept = []
    for _ in range(2):
        for result in problem.in_order:
            result.fill_(math.nan)
        run(torch.cuda.current_stream().cuda_stream)
        torch.cuda.synchronize()
        kept.append([result.clone() for result in problem.in_order])
    same = all(torch.equal(x, y) for x, y in zip(*kept, strict=True))
    errors = []
    for result, wanted in zip(problem.in_order, problem.reference, strict=True):
        error = ((result.double() - wanted).norm() / wanted.norm()).item()
        errors.append(error if error == error else math.inf)
    return max(errors), same


def run_all(folder, only, quick):
    """Check and time all cases."""
    import torch

    sys.path.insert(0, str(Path(__file__).parent))
    from cuda_gemm import current_context, graph_times
    from cuda_launch import Launch, call, load, registers

    torch.zeros(1, device="cuda")
    described = json.loads((Path(folder) / "cases.json").read_text(encoding="utf-8"))
    described = [case for case in described if only in case["name"]]
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
        return key, load(Path(key).read_text(encoding="utf-8"), stage["kernel"], stage["shared"])

    with ThreadPoolExecutor(8) as pool:
        Launch.loaded.update(pool.map(prepare, stages.items()))
    ratios, wrong = {}, []
    for case in described:
        torch.manual_seed(0)
        problem = Problem(torch, case)
        problem.reference = problem.wanted()
        runs, shown, parts = [], [], []
        for way in case["ways"]:
            run = problem.launches(Launch, folder, way)
            error, same = check(torch, problem, run)
            good = error < TOLERANCE[case["dtype"]] and same
            note = "" if good else f" WRONG (error {error:.2e}, same bits {same})"
            if note:
                wrong.append(f"{case['name']} {way['name']}")
            used = [registers(Launch.loaded[str(Path(folder) / s["ptx"])]) for s in way["stages"]]
            resources = " ".join(f"r{r} s{s}" for r, s in used)
            shown.append(f"[{way['name']} err {error:.1e} {resources}{note}")
            runs.append(run)
        if runs[0].stages:
            parts = runs[0].stages
        del problem.reference
        peers = problem.peers()
        inner = max(2, min(20 if quick else 50, int(2e12 / problem.flops)))
        functions = [*runs, *peers.values(), *parts]
        times = graph_times(torch, functions, inner, 3 if quick else 7)
        best_peer = min(times[len(runs) : len(runs) + len(peers)], default=math.nan)
        for number, time in enumerate(times[: len(runs)]):
            rate = problem.flops / time / 1e9
            shown[number] += f" {time * 1e3:.2f}us {rate:.0f}T x{best_peer / time:.3f}]"
        if peers and case["window"] is None:
            kind = "backward" if case["backward"] else "forward"
            ratios.setdefault(kind, []).append(best_peer / times[0])
        others = zip(peers, times[len(runs) :], strict=False)
        said = " ".join(f"{name} {time * 1e3:.2f}us" for name, time in others)
        each = " ".join(f"{time * 1e3:.2f}" for time in times[len(runs) + len(peers) :])
        late = " CHOICE LOSES" if times[0] > 1.05 * min(times[: len(runs)]) else ""
        tail = f" parts {each}" if each else ""
        print(
            f"{case['name']} ({case['template']}): {said} | {' '.join(shown)}{late}{tail}",
            flush=True,
        )
        del problem, runs, functions, peers, parts
    for kind, found in ratios.items():
        mean = math.exp(sum(map(math.log, found)) / len(found))
        print(
            f"{kind}: {mean:.3f} x torch's best (geometric mean of {len(found)}), least {min(found):.3f}"
        )
    print("WRONG: " + "; ".join(wrong) if wrong else "all results agree")


def main():
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("groups", nargs="*", default=[])
    parser.add_argument("--emit", metavar="FOLDER")
    parser.add_argument("--run", metavar="FOLDER")
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--only", default="")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    groups = given.groups or ["odd", "forward", "backward"]
    if given.emit:
        emit(given.emit, given.arch, groups)
    if given.run:
        run_all(given.run, given.only, given.quick)


if __name__ == "__main__":
    main()
