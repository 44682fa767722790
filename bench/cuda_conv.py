"""Convolutions on tensor cores, and ResNet-50, beside PyTorch with cuDNN on the same card in the same run.

    python -m bench.cuda_conv --emit FOLDER [--arch sm_90a] [resnet unet odd tf32 f32]     writes kernels; needs no card
    python bench/cuda_conv.py --run FOLDER [--only TEXT] [--quick]                         checks and times them; needs torch and a card, no llvmlite
    python -m bench.cuda_conv --model [train-bf16 infer-bf16 train-tf32 infer-tf32] [--top 40] [--batch 32]

Shapes are of the convolution, its gradient towards the input and that towards the weight. Results are compared first: with torch's convolution in f32, or the logits and the loss of
the same weights in f32. PyTorch has channels last, ``cudnn.benchmark``, and where a model trains autocast and fused SGD, all of it as one CUDA graph.
"""

import argparse
import json
import math
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

WAYS = ("forward", "input", "weight")
RESNET = (
    # channels, channels of the result, size, kernel, stride
    (3, 64, 224, 7, 2), (64, 64, 56, 1, 1), (64, 64, 56, 3, 1), (64, 256, 56, 1, 1), (256, 64, 56, 1, 1),
    (256, 128, 56, 1, 1), (128, 128, 56, 3, 2), (256, 512, 56, 1, 2), (128, 512, 28, 1, 1), (128, 128, 28, 3, 1),
    (256, 256, 28, 3, 2), (256, 256, 14, 3, 1), (1024, 256, 14, 1, 1), (512, 512, 14, 3, 2), (512, 512, 7, 3, 1),
    (2048, 512, 7, 1, 1),
)  # fmt: skip
UNET = ((320, 320, 64, 3, 1), (640, 640, 32, 3, 1), (1280, 1280, 16, 3, 1), (960, 320, 64, 3, 1))
ODD = ((17, 31, 37, 3, 1), (96, 96, 29, 5, 2), (3, 16, 101, 11, 4), (100, 60, 33, 3, 1))


def cases(groups):
    """What is measured: dictionaries of name, way, sizes and element type."""
    found = []

    def add(group, batch, shape, dtype):
        c, k, size, kernel, stride = shape
        for way in WAYS:
            name = f"{group}-{dtype}-{way}-{batch}x{c}x{size}-{k}-k{kernel}s{stride}"
            found.append(
                {
                    "name": name, "way": way, "batch": batch, "c": c, "k": k, "size": size,
                    "kernel": kernel, "stride": stride, "dtype": dtype,
                }
            )  # fmt: skip

    for group, batch, shapes in (("resnet", 32, RESNET), ("unet", 4, UNET), ("odd", 8, ODD)):
        for dtype in ("bf16", "tf32", "f32"):
            chosen = group in groups and (dtype == "bf16" or dtype in groups)
            for shape in shapes if chosen else ():
                add(group, batch, shape, dtype)
    return found


# --------------------------------------------------------------------------- writing kernels


def graph_of(case):
    """The graph of a case, of images with channels last."""
    import darner
    from darner.ops.spatial import conv_last

    graph = darner.Graph()
    n, c, k, size, kernel = (case[key] for key in ("batch", "c", "k", "size", "kernel"))
    kind = "bf16" if case["dtype"] == "bf16" else "f32"
    padding = kernel // 2
    out = (size + 2 * padding - kernel) // case["stride"] + 1
    attrs = {"stride": case["stride"], "padding": padding}

    def leaf(name, *shape):
        found = graph.input(name, shape, kind)
        if case["dtype"] == "tf32":
            return found.reduce_precision(8, 10)
        return found if kind == "f32" else found.cast("f32")

    x, w, dy = (n, size, size, c), (k, kernel, kernel, c), (n, out, out, k)
    if case["way"] == "forward":
        found = conv_last.conv_last(leaf("x", *x), leaf("w", *w), **attrs)
    elif case["way"] == "input":
        both = leaf("dy", *dy), leaf("w", *w)
        found = conv_last.conv_last_input_grad(*both, sizes=(size, size), **attrs)
    else:
        both = leaf("x", *x), leaf("dy", *dy)
        found = conv_last.conv_last_weight_grad(*both, kernel=kernel, **attrs)
    to_f32 = kind == "f32" or case["way"] == "weight"
    graph.set_outputs([found if to_f32 else found.cast("bf16")])
    return graph


def variants_of(case, machine, most):
    """The launches of a case, by names of the ways to cut it, and the names of its operands."""
    from darner.backends.base.lowering import written_specs
    from darner.backends.cuda import kernels
    from darner.lower.lower import lower

    given = kernels.multipliers_of(machine)
    plan = lower(graph_of(case), target="cuda", ended=set(), alignment=256, multipliers=given)
    specs = [spec for _, spec in written_specs(plan)]
    if len(specs) != 1:
        raise SystemExit(f"{case['name']}: {len(specs)} kernels where one was expected")
    template = kernels.template_of(specs[0], machine)
    ways = template.variants(specs[0], machine) if template.variants else {"": None}
    names = list(ways)[:most]
    leaves = [plan.buffers[number].name for number in plan.kernels[0].operands]
    return template.name, {name: ways[name]() for name in names}, leaves


def emitted(folder, arch, most, case):
    """Write the kernels of a case; returns its description, or None where there are none."""
    from dataclasses import asdict

    from darner.backends.cuda.code import to_ptx
    from darner.backends.cuda.machine import Machine

    machine, folder = Machine.without_card(arch), Path(folder)
    try:
        template, written, leaves = variants_of(case, machine, most)
    except Exception as error:
        print(f"LEFT OUT {case['name']}: {error!r}", file=sys.stderr)
        return None
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
    return {**case, "template": template, "leaves": leaves, "ways": ways}


def emit(folder, arch, chosen, most, jobs):
    """Write the kernels of some cases, and their description."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        found = list(pool.map(partial(emitted, folder, arch, most), chosen))
    described = [case for case in found if case is not None]
    for case in described:
        print(
            f"{case['name']}: {case['template']}, {', '.join(way['name'] for way in case['ways'])}"
        )
    (Path(folder) / "cases.json").write_text(json.dumps(described), encoding="utf-8")


# --------------------------------------------------------------------------- running them


class Problem:
    """The operands and the result of a case on the card, and cuDNN's way to compute it."""

    def __init__(self, torch, case):
        self.torch, self.case = torch, case
        n, c, k, size, kernel = (case[key] for key in ("batch", "c", "k", "size", "kernel"))
        self.padding, self.stride = kernel // 2, case["stride"]
        out = (size + 2 * self.padding - kernel) // self.stride + 1
        kind = torch.bfloat16 if case["dtype"] == "bf16" else torch.float32

        def new(*shape):
            """Of PyTorch's axes, with channels last in memory."""
            found = torch.randn(*shape, device="cuda").to(kind)
            return found.to(memory_format=torch.channels_last)

        self.x, self.w, self.dy = (
            new(n, c, size, size),
            new(k, c, kernel, kernel),
            new(n, k, out, out),
        )
        self.leaves = {
            name: tensor.permute(0, 2, 3, 1).contiguous()
            for name, tensor in (("x", self.x), ("w", self.w), ("dy", self.dy))
        }
        shapes = {"forward": (n, out, out, k), "input": (n, size, size, c), "weight": self.w.shape}
        to_f32 = case["way"] == "weight" or kind == torch.float32
        result = torch.float32 if to_f32 else kind
        self.results = [torch.empty(shapes[case["way"]], device="cuda", dtype=result)]

    def computed(self, x, w, dy):
        """PyTorch's result, with its axes."""
        mask = [self.case["way"] == "input", self.case["way"] == "weight", False]
        if self.case["way"] == "forward":
            return self.torch.nn.functional.conv2d(x, w, None, self.stride, self.padding)
        two = [self.stride] * 2, [self.padding] * 2, [1, 1]
        found = self.torch.ops.aten.convolution_backward(
            dy, x, w, None, *two, False, [0, 0], 1, mask
        )
        return found[0] if mask[0] else found[1]

    def wanted(self):
        """The result in f32."""
        torch = self.torch
        torch.backends.cudnn.allow_tf32 = False
        found = self.computed(self.x.float(), self.w.float(), self.dy.float())
        torch.backends.cudnn.allow_tf32 = self.case["dtype"] == "tf32"
        return [found if self.case["way"] == "weight" else found.permute(0, 2, 3, 1)]

    def launches(self, launch, folder, way):
        """A function that starts all launches of a way to compute it."""
        from cuda_launch import Run

        operands = [self.leaves[name] for name in self.case["leaves"]]
        return Run.of(self.torch, launch, folder, way, [(operands, self.results)])

    def torch_run(self, stream):
        """PyTorch's result."""
        del stream
        self.peer = self.computed(self.x, self.w, self.dy)


LIMITS = {"bf16": 4e-3, "tf32": 1e-3, "f32": 3e-5}
"""Of the norm of the difference, relative to the norm of the result."""


def run_all(folder, only, quick):
    """Check and time all cases."""
    import torch

    sys.path.insert(0, str(Path(__file__).parent))
    from cuda_gemm import check, current_context, graph_times
    from cuda_launch import Launch, call, load, registers

    torch.zeros(1, device="cuda")
    torch.backends.cudnn.benchmark = True
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
        runs, shown = [], []
        for way in case["ways"]:
            run = problem.launches(Launch, folder, way)
            error, same = check(torch, problem, run)
            spilled = [
                registers(Launch.loaded[str(Path(folder) / s["ptx"])]) for s in way["stages"]
            ]
            note = "" if error < LIMITS[case["dtype"]] and same else f" WRONG (same bits {same})"
            if note:
                wrong.append(f"{case['name']} {way['name']}")
            most = max(spilled)
            shown.append(
                f"[{way['name']} err {error:.1e} r{most[0]} s{max(s for _, s in spilled)}{note}"
            )
            runs.append(run)
        out = problem.dy.shape[2]
        flops = 2 * case["batch"] * out * out * case["c"] * case["k"] * case["kernel"] ** 2
        inner = max(3, min(10 if quick else 30, int(1e12 / flops)))
        times = graph_times(torch, [problem.torch_run, *runs], inner, 3 if quick else 7)
        for number, spent in enumerate(times[1:]):
            shown[number] += (
                f" {spent * 1e3:.1f}us {flops / spent / 1e9:.0f}T x{times[0] / spent:.2f}]"
            )
        ratios.setdefault((case["dtype"], case["way"]), []).append(times[0] / times[1])
        best = min(times[1:])
        late = f" CHOICE LOSES {times[1] / best:.2f}" if times[1] > 1.05 * best else ""
        peer = f"cudnn {times[0] * 1e3:.1f}us {flops / times[0] / 1e9:.0f}T"
        print(f"{case['name']} ({case['template']}): {peer} | {' '.join(shown)}{late}", flush=True)
        del problem, runs
    for (dtype, way), found in ratios.items():
        mean = math.exp(sum(map(math.log, found)) / len(found))
        print(
            f"{dtype} {way}: {mean:.3f} x cudnn (geometric mean of {len(found)}), least {min(found):.2f}"
        )
    print("WRONG: " + "; ".join(wrong) if wrong else "all results agree")


# --------------------------------------------------------------------------- ResNet-50


def torch_resnet(torch):
    """ResNet-50 with torchvision's names."""
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self, c, width, stride):
            super().__init__()
            narrow = width // 4
            self.conv1, self.bn1 = nn.Conv2d(c, narrow, 1, bias=False), nn.BatchNorm2d(narrow)
            self.conv2 = nn.Conv2d(narrow, narrow, 3, stride, 1, bias=False)
            self.bn2 = nn.BatchNorm2d(narrow)
            self.conv3, self.bn3 = nn.Conv2d(narrow, width, 1, bias=False), nn.BatchNorm2d(width)
            self.downsample = None
            if c != width or stride != 1:
                short = nn.Conv2d(c, width, 1, stride, bias=False)
                self.downsample = nn.Sequential(short, nn.BatchNorm2d(width))

        def forward(self, x):
            y = torch.relu(self.bn1(self.conv1(x)))
            y = self.bn3(self.conv3(torch.relu(self.bn2(self.conv2(y)))))
            return torch.relu(y + (x if self.downsample is None else self.downsample(x)))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
            self.pool = nn.MaxPool2d(3, 2, 1)
            c = 64
            for stage, (width, depth) in enumerate(
                zip((256, 512, 1024, 2048), (3, 4, 6, 3), strict=True)
            ):
                blocks = []
                for number in range(depth):
                    blocks.append(Block(c, width, 2 if number == 0 and stage else 1))
                    c = width
                setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
            self.fc = nn.Linear(c, 1000)

        def forward(self, x):
            x = self.pool(torch.relu(self.bn1(self.conv1(x))))
            x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
            return self.fc(x.mean((2, 3)))

    return Net()


def darner_session(mode, precision, batch, device, image):
    """A session of ResNet-50, and the seconds that its build took without a cache."""
    import darner
    from darner import optim
    from darner.models.resnet import TorchvisionResNet, TorchvisionResNetConfig

    model = TorchvisionResNet(TorchvisionResNetConfig.of_depth(50))
    started = time.perf_counter()
    options = {"device": device, "precision": precision, "progress": False, "cache": None}
    if mode == "train":
        graph = model.training_graph(batch=batch, image_size=image)
        session = darner.build_session(graph, optimizer=optim.SGD(0.1, momentum=0.9), **options)
    else:
        graph = model.inference_graph(batch=batch, image_size=image)
        session = darner.build_inference_session(graph, **options)
    session.compile()
    return session, time.perf_counter() - started


def torch_step(torch, net, mode, precision, batch, image, labels):
    """A function that runs a step of PyTorch, and the output of the first."""
    net = net.cuda().to(memory_format=torch.channels_last)
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    x = image.cuda().to(memory_format=torch.channels_last)
    labels = labels.cuda()
    cast = torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16")
    if mode == "infer":
        net.eval()
        if precision == "bf16":
            net, x = net.bfloat16(), x.bfloat16()

        @torch.no_grad()
        def step():
            return net(x)

    else:
        net.train()
        update = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, fused=True)

        def step():
            update.zero_grad(set_to_none=True)
            with cast:
                loss = torch.nn.functional.cross_entropy(net(x).float(), labels)
            loss.backward()
            update.step()
            return loss

    return step


def as_graph(torch, step, warm=4):
    """A step as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(warm):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def timed(run, wait, count=20):
    """Milliseconds of a step that is waited for, and of one of many."""
    run()
    wait()
    alone = []
    for _ in range(count):
        started = time.perf_counter()
        run()
        wait()
        alone.append(time.perf_counter() - started)
    started = time.perf_counter()
    for _ in range(count):
        run()
    wait()
    return statistics.median(alone) * 1e3, (time.perf_counter() - started) / count * 1e3


def model(cases_, given):
    """Time ResNet-50 beside PyTorch."""
    import numpy as np
    import torch

    rng = np.random.default_rng(0)
    batch, size = given.batch, given.size
    pixels = rng.standard_normal((batch, 3, size, size)).astype(np.float32)
    labels = rng.integers(0, 1000, (batch,)).astype(np.int32)
    for name in cases_:
        mode, _, precision = name.partition("-")
        torch.manual_seed(0)
        net = torch_resnet(torch)
        for part in net.modules():
            if isinstance(part, torch.nn.BatchNorm2d):
                part.momentum = 0.1
        weights = {key: value.detach().numpy().copy() for key, value in net.state_dict().items()}
        session, spent = darner_session(mode, precision, batch, given.device, size)
        print(f"{name}: built in {spent:.2f} s", flush=True)
        for key in session.parameters():
            session.set_parameter(key, weights[key])
        session.state().update({key: weights[key] for key in session.state() if key in weights})
        session.set_input("pixels", pixels)
        if mode == "train":
            session.set_input("labels", labels)
        session.step()
        session.wait()
        own = session.read_loss() if mode == "train" else np.asarray(session.output("logits"))
        alone, among = timed(session.step, session.wait)
        print(
            f"{name}: darner step and wait {alone:.3f} ms, one of many {among:.3f} ms", flush=True
        )
        torch_image = torch.from_numpy(pixels)
        peer = None
        if torch.cuda.is_available() and not given.alone:
            step = torch_step(
                torch, net, mode, precision, batch, torch_image, torch.from_numpy(labels).long()
            )
            found = step().detach().float().cpu().numpy()
            error = np.linalg.norm(own - found) / np.linalg.norm(found)
            print(f"{name}: loss or logits differ by {error:.1e} of their norm", flush=True)
            eager = timed(step, torch.cuda.synchronize, 5)
            peer = timed(as_graph(torch, step), torch.cuda.synchronize)
            print(
                f"{name}: torch step by step {eager[1]:.3f} ms; as a graph {peer[0]:.3f} ms, one of many {peer[1]:.3f}",
                flush=True,
            )
        if peer:
            print(f"{name}: torch's step by darner's {peer[1] / among:.3f}", flush=True)
        if given.top:
            from bench.cuda_models import kernels

            for line in kernels(session, given.top):
                print("  " + line)
        session.close()


def main():
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("groups", nargs="*", default=[])
    parser.add_argument("--emit", metavar="FOLDER")
    parser.add_argument("--run", metavar="FOLDER")
    parser.add_argument("--model", action="store_true")
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--variants", type=int, default=3, help="ways to cut a product")
    parser.add_argument("--jobs", type=int, default=2, help="kernels that are written at a time")
    parser.add_argument("--only", default="")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--alone", action="store_true", help="a model without PyTorch's")
    parser.add_argument("--top", type=int, default=0, help="how many kernels of a model are listed")
    given = parser.parse_args()
    if given.emit:
        found = cases(given.groups or ["resnet", "unet", "odd"])
        chosen = [case for case in found if given.only in case["name"]]
        emit(given.emit, given.arch, chosen, given.variants, given.jobs)
    if given.run:
        run_all(given.run, given.only, given.quick)
    if given.model:
        model(given.groups or ["train-bf16", "infer-bf16", "train-tf32", "infer-tf32"], given)


if __name__ == "__main__":
    main()
