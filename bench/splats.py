"""Pictures of Gaussian splats and their gradients: darner beside PyTorch, in turns, the results compared first.

    python -m bench.splats                     all cases, two threads
    python -m bench.splats --cases 64x64/1000  one of them
    python -m bench.splats --clock cpu --threads 1   processor time, for machines that do other things too
    python -m bench.splats --json out.json     the same, as JSON too

PyTorch computes every splat for every pixel, in pieces of pixels that fit its caches, by autograd. Of large cases it computes every few rows only, and its time
is taken that many times. Each figure is the median of all turns, in milliseconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

import darner

Array = npt.NDArray[np.float32]

CAMERA = ([0.3, 0.4, 2.5], [0.1, 0.2, 0.0], [0.1, 1.0, 0.2], 60.0, 0.1, 10.0, [0.1, 0.2, 0.3])
PIECE = 1 << 18
"""Pairs of a pixel and a splat that PyTorch computes at once."""
MOST = 1e7
"""Pairs that it computes in all; of more, some rows are left out."""


@dataclass(frozen=True)
class Case:
    """A picture of so many pixels and splats; these have about ``size`` of a unit."""

    width: int
    height: int
    splats: int
    size: float

    def __str__(self) -> str:
        return f"{self.width}x{self.height}/{self.splats}"


CASES = (
    Case(64, 64, 100, 0.09),
    Case(64, 64, 1000, 0.045),
    Case(256, 256, 1000, 0.045),
    Case(333, 217, 3000, 0.03),
    Case(512, 512, 1000, 0.045),
    Case(512, 512, 10000, 0.02),
)


@dataclass(frozen=True)
class Row:
    """What a case took.

    Attributes:
        part: which part of the rows PyTorch computed.
        forward: milliseconds of the picture, of darner and of PyTorch.
        both: of the picture and its gradient.
        off: the share of numbers of the picture that differ by more than 1e-4.
        gradients_off: how far gradients are apart, over their size.
    """

    case: str
    part: float
    forward: tuple[float, float]
    both: tuple[float, float]
    off: float
    gradients_off: float


def scene_of(case: Case) -> dict[str, Array]:
    """Splats around the origin."""
    rng = np.random.default_rng(case.splats)
    count, middle = case.splats, np.log(case.size)
    found = {
        "positions": rng.uniform(-1.2, 1.2, 3 * count),
        "scales": rng.uniform(middle - 0.6, middle + 0.6, 3 * count),
        "rotations": rng.normal(size=4 * count),
        "opacities": rng.uniform(0.05, 1, count),
        "colors": rng.uniform(0, 1, 3 * count),
        "sh_coeffs": np.zeros(0),
    }
    return {name: values.astype(np.float32) for name, values in found.items()}


# --------------------------------------------------------------------------- PyTorch


def torch_rows(case: Case) -> tuple[torch.Tensor, float]:
    """The rows of pixels that PyTorch computes, and which part of all these are."""
    step = max(1, int(np.ceil(case.width * case.height * case.splats / MOST)))
    rows = torch.arange(step // 2, case.height, step)
    return rows, len(rows) / case.height


def torch_pieces(case: Case, rows: torch.Tensor) -> Sequence[torch.Tensor]:
    """Rays of the pixels of some rows, in pieces."""
    focal = case.height / 2 / np.tan(np.radians(CAMERA[3]) / 2)
    x = (torch.arange(case.width) + 0.5 - case.width / 2) / focal
    y = (rows + 0.5 - case.height / 2) / focal
    grid = torch.stack(
        [x.repeat(len(rows)), y.repeat_interleave(case.width), torch.ones(len(rows) * case.width)],
        1,
    )
    return (grid @ torch_axes()).split(max(1, PIECE // case.splats))


def torch_axes() -> torch.Tensor:
    """Right, down and ahead."""
    position, target, up = (torch.tensor(values) for values in CAMERA[:3])
    ahead = torch.nn.functional.normalize(target - position, dim=0)
    right = torch.nn.functional.normalize(torch.linalg.cross(ahead, up), dim=0)
    return torch.stack([right, torch.linalg.cross(ahead, right), ahead])


def torch_splats(scene: Mapping[str, torch.Tensor], radius: float) -> Sequence[torch.Tensor]:
    """What is known of each splat, nearest first: matrix, camera, opacity, colour, and whether it can be seen."""
    count = len(scene["opacities"])
    q = torch.nn.functional.normalize(scene["rotations"].reshape(count, 4), dim=1)
    w, x, y, z = q.unbind(1)
    turned = torch.stack(
        [
            *(1 - 2 * (y * y + z * z), 2 * (x * y + w * z), 2 * (x * z - w * y)),
            *(2 * (x * y - w * z), 1 - 2 * (x * x + z * z), 2 * (y * z + w * x)),
            *(2 * (x * z + w * y), 2 * (y * z - w * x), 1 - 2 * (x * x + y * y)),
        ],
        1,
    ).reshape(count, 3, 3)
    matrix = turned / (torch.exp(scene["scales"].reshape(count, 3, 1)) * radius)
    away = torch.tensor(CAMERA[0]) - scene["positions"].reshape(count, 3)
    order = torch.argsort((away * away).sum(1).detach(), stable=True)
    local = (matrix * away[:, None]).sum(2)
    depth = -(away @ torch_axes()[2])
    seen = (depth > CAMERA[4]) & (depth < CAMERA[5])
    colours = scene["colors"].reshape(count, 3)
    covers = scene["opacities"].clamp(0, 1)
    return [item[order] for item in (matrix, local, covers, colours, seen)]


def torch_picture(
    splats: Sequence[torch.Tensor], rays: torch.Tensor, params: darner.GaussianSplatRenderParams
) -> torch.Tensor:
    """The pixels of some rays."""
    matrix, local, covers, colours, seen = splats
    directions = (rays @ matrix.reshape(-1, 3).T).reshape(len(rays), -1, 3)
    along = (directions * local).sum(2)
    depth = -along / (directions * directions).sum(2)
    squares = ((local + depth[..., None] * directions) ** 2).sum(2)
    alpha = covers * torch.exp(-0.5 * squares)
    alpha = torch.where(seen & (depth > 0) & (alpha >= params.alpha_cutoff), alpha, 0)
    with torch.no_grad():
        before = torch.cumprod(1 - alpha, 1).roll(1, 1)
        before[:, 0] = 1
        counts = alpha > 0
        live = before >= params.transmittance_threshold
        steps = torch.cumsum(counts & live, 1) - (counts & live).long()
        live &= steps < params.max_splat_steps
    alpha = alpha * live
    left = torch.cumprod(1 - alpha, 1)
    before = torch.cat([torch.ones(len(rays), 1), left[:, :-1]], 1)
    light = (alpha * before) @ colours + left[:, -1:] * torch.tensor(CAMERA[6])
    return torch.cat([light.clamp(min=0) ** 2.2, 1 - left[:, -1:]], 1)


class TorchScene:
    """PyTorch's picture and gradient of some rows."""

    def __init__(self, case: Case, sent: Array, params: darner.GaussianSplatRenderParams) -> None:
        self.params = params
        self.leaves = {name: torch.from_numpy(v.copy()) for name, v in scene_of(case).items()}
        self.rows, self.part = torch_rows(case)
        self.rays = torch_pieces(case, self.rows)
        chosen = torch.from_numpy(sent).reshape(case.height, -1, 4)[self.rows].reshape(-1, 4)
        self.sent = chosen.split(len(self.rays[0]))

    def picture(self) -> torch.Tensor:
        """The pixels of its rows."""
        with torch.no_grad():
            splats = torch_splats(self.leaves, self.params.radius_scale)
            return torch.cat([torch_picture(splats, rays, self.params) for rays in self.rays])

    def gradients(self) -> list[torch.Tensor]:
        """What the scene receives from these."""
        leaves = {name: leaf.requires_grad_() for name, leaf in self.leaves.items()}
        for leaf in leaves.values():
            leaf.grad = None
        splats = torch_splats(leaves, self.params.radius_scale)
        held = [splat.detach().requires_grad_(splat.is_floating_point()) for splat in splats]
        for rays, sent in zip(self.rays, self.sent, strict=True):
            torch_picture(held, rays, self.params).backward(sent)
        pairs = [(a, b.grad) for a, b in zip(splats, held, strict=True) if b.grad is not None]
        torch.autograd.backward([a for a, _ in pairs], [g for _, g in pairs])
        return [torch.zeros_like(x) if x.grad is None else x.grad for x in leaves.values()]


# --------------------------------------------------------------------------- darner and both


def darner_graph(
    scene: Mapping[str, Array], params: darner.GaussianSplatRenderParams
) -> darner.Graph:
    """The picture of a scene."""
    g = darner.Graph("splats")
    leaves = {name: g.input(name, values.shape) for name, values in scene.items()}
    meta = g.gaussian_splat_render_meta(*CAMERA, params)
    g.set_outputs(
        [g.gaussian_splat_render(darner.GaussianSplatInputs(**leaves, meta=meta), params)]
    )
    return g


CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def milliseconds(body: Callable[[], object], clock: Callable[[], float]) -> float:
    """How long something takes, of the best of three: other work only adds to it."""
    times = []
    for _ in range(3):
        begun = clock()
        body()
        times.append(1e3 * (clock() - begun))
    return min(times)


def in_turns(
    bodies: Sequence[Callable[[], object]], turns: int, clock: Callable[[], float]
) -> list[float]:
    """The median time of each, one after another, again and again."""
    times = [[milliseconds(body, clock) for body in bodies] for _ in range(turns)]
    return [statistics.median(column) for column in zip(*times, strict=True)]


def measure(case: Case, threads: int, turns: int, clock: Callable[[], float]) -> Row:
    """Compare the results of a case, and the times that they take."""
    scene = scene_of(case)
    params = darner.GaussianSplatRenderParams(
        width=case.width,
        height=case.height,
        radius_scale=1.0,
        max_list_entries=40 * case.splats + 4000,
    )
    graph = darner_graph(scene, params)
    backward = darner.vjp(graph, list(scene))
    (cotangent,) = set(backward.inputs) - set(scene)
    rng = np.random.default_rng(1)
    sent = rng.normal(size=4 * case.width * case.height).astype(np.float32)
    peer = TorchScene(case, sent, params)
    # Both get the cotangent of the same rows.
    chosen = np.zeros((case.height, case.width * 4), np.float32)
    chosen[peer.rows.numpy()] = sent.reshape(case.height, -1)[peer.rows.numpy()]
    given = {**scene, cotangent: chosen.ravel()}
    session = darner.build_inference_session(graph, device="cpu", threads=threads)
    learning = darner.build_inference_session(backward, device="cpu", threads=threads)
    with session, learning:
        picture = next(iter(session.run(scene).values())).reshape(case.height, -1)
        ours = np.array(picture[peer.rows.numpy()]).reshape(-1, 4)
        gradients = [np.array(found) for found in learning.run(given).values()][1:]
        off = float((np.abs(ours - peer.picture().numpy()) > 1e-4).mean())
        apart = [
            float(np.linalg.norm(a - b.numpy()) / max(np.linalg.norm(b.numpy()), 1e-9))
            for a, b in zip(gradients, peer.gradients(), strict=True)
        ]
        forward = in_turns([lambda: session.run(scene), peer.picture], turns, clock)
        both = in_turns([lambda: learning.run(given), peer.gradients], turns, clock)
    return Row(
        str(case),
        peer.part,
        (forward[0], forward[1] / peer.part),
        (both[0], both[1] / peer.part),
        off,
        max(apart),
    )


def main() -> None:
    """Measure, and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", nargs="*", default=[str(case) for case in CASES])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--clock", choices=sorted(CLOCKS), default="wall")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    print(
        f"{'case':16} {'part':>5} {'picture':>9} {'torch':>9} {'':>7} {'gradient':>9} {'torch':>9}"
    )
    rows = []
    for case in CASES:
        if str(case) not in given.cases:
            continue
        row = measure(case, given.threads, given.turns, CLOCKS[given.clock])
        rows.append(row)
        times = [*row.forward, row.forward[1] / row.forward[0]]
        times += [*row.both, row.both[1] / row.both[0]]
        print(
            f"{row.case:16} {row.part:5.3f} {times[0]:9.2f} {times[1]:9.1f} {times[2]:6.0f}x "
            f"{times[3]:9.2f} {times[4]:9.1f} {times[5]:6.0f}x   "
            f"{100 * row.off:.3f} % of the picture differ, gradients by {row.gradients_off:.1e}"
        )
    if given.json is not None:
        given.json.write_text(json.dumps([asdict(row) for row in rows], indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
