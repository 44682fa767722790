"""Draw the pictures of the pages: ``python -m bench.pictures``.

``docs/stages.svg`` has the README's network at each stage, with the number of nodes and kernels that darner counts.
``docs/performance.svg`` is the first table of docs/performance.md, ``docs/denoising.svg`` the example of docs/fft.md. All are readable on white and on black.
"""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import numpy as np

import darner
from darner import optim
from darner.viz.curves import Curve, curves_svg

ROOT = Path(__file__).resolve().parents[1]
INK = "#7a828e"
"""Grey that has a contrast of about 4 on white and 5 on black."""
COLOURS = {
    "darner": "#e0662b",
    "torch": "#4c8dd6",
    "torch-compile": "#3f9c8f",
    "torch-frozen": "#8a7fd1",
    "JAX": "#b98a2f",
    "NumPy": "#8c8c8c",
}
FONT = "ui-sans-serif, system-ui, Helvetica, Arial, sans-serif"


def network() -> darner.Graph:
    """The network of the README."""
    g = darner.Graph("mnist")
    x, labels = g.input("x", (32, 784)), g.input("labels", (32, 10))
    w1, b1 = g.parameter("fc1.weight", (784, 128)), g.parameter("fc1.bias", (128,))
    w2, b2 = g.parameter("fc2.weight", (128, 10)), g.parameter("fc2.bias", (10,))
    logits = (x @ w1 + b1).relu() @ w2 + b2
    g.set_outputs([g.cross_entropy_loss(logits, labels)])
    return g


def node_counts() -> dict[str, int]:
    """How many nodes the network has as it is written, with its gradients, and after the optimizer."""
    g = network()
    return {
        "graph": len(g.nodes),
        "gradients": len(darner.value_and_grad(g).nodes),
        "optimized": len(darner.optimize_training(g)[0].nodes),
    }


def kernel_count() -> int:
    """How many kernels a step has, with the update by Adam."""
    with darner.build_session(network(), optimizer=optim.Adam(1e-3), cache=None) as session:
        return len(session.plan().kernels)


def text(x: float, y: float, words: str, size: int = 13, **options: str) -> str:
    """A line of text."""
    given = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in options.items())
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}"{given}>{escape(words)}</text>'


def document(width: int, height: int, lines: Sequence[str]) -> str:
    """An SVG file."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return "\n".join([f'{head} font-family="{FONT}" fill="{INK}">', *lines, "</svg>", ""])


def stages_svg(nodes: Mapping[str, int], kernels: int) -> str:
    """The way of a model through darner, with the numbers of one."""
    stages = [
        (
            "Graph",
            "what you write;",
            "shapes are checked",
            f"{nodes['graph']} nodes",
            "darner.Graph",
        ),
        (
            "Gradients",
            "from graph to graph,",
            "of any order",
            f"{nodes['gradients']} nodes",
            "darner.grad",
        ),
        (
            "Optimizer",
            "equality saturation,",
            "exact extraction",
            f"{nodes['optimized']} nodes",
            "darner.optimize",
        ),
        ("Kernels", "fused, the update", "among them", f"{kernels} kernels", "session.plan()"),
        ("Native step", "LLVM on the CPU,", "WGSL on GPUs", "1 call", "session.step()"),
    ]
    wide, gap, top = 146, 26, 12
    lines = []
    for i, (title, first, second, number, call) in enumerate(stages):
        x = 10 + i * (wide + gap)
        middle = x + wide / 2
        lines.append(
            f'<rect x="{x}" y="{top}" width="{wide}" height="128" rx="10" fill="{COLOURS["darner"]}" '
            f'fill-opacity="{0.05 + 0.02 * i:.2f}" stroke="{COLOURS["darner"]}" stroke-opacity="0.8"/>'
        )
        centre = {"text_anchor": "middle"}
        lines.append(text(middle, top + 24, title, 16, font_weight="600", **centre))
        lines.append(text(middle, top + 46, first, **centre))
        lines.append(text(middle, top + 63, second, **centre))
        big = {"font_weight": "700", "fill": COLOURS["darner"], **centre}
        lines.append(text(middle, top + 92, number, 18, **big))
        lines.append(
            text(middle, top + 116, call, 12, font_family="ui-monospace, monospace", **centre)
        )
        if i:
            lines.append(
                f'<path d="M{x - gap + 5} {top + 64}H{x - 6}m-6 -5l6 5l-6 5" fill="none" stroke="{INK}" stroke-width="1.5"/>'
            )
    lines.append(
        text(10, 162, "The numbers are those of the network below, trained with Adam.", 12)
    )
    return document(10 + 5 * wide + 4 * gap + 10, 172, lines)


def first_table(page: str) -> tuple[list[str], list[list[str]]]:
    """The header and the rows of a page's first table."""
    lines: list[str] = []
    for line in page.splitlines():
        if line.startswith("|"):
            lines.append(line)
        elif lines:
            break
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return cells[0], cells[2:]


def performance_svg(page: str) -> str:
    """Milliseconds of each engine over those of darner, workload by workload."""
    header, rows = first_table(page)
    engines = [name for name in header if name in COLOURS]
    left, right, thick, least = 120, 640, 11, 18
    most, lines, y = 4.0, [], 34
    x = 10.0
    for name in engines:
        lines.append(f'<rect x="{x}" y="8" width="11" height="11" rx="2" fill="{COLOURS[name]}"/>')
        lines.append(text(x + 16, 18, name, 12))
        x += 36 + 7.2 * len(name)
    scale = (right - left) / most
    for row in rows:
        cells = dict(zip(header, row, strict=True))
        times = {name: float(cells[name].strip("*")) for name in engines if cells[name]}
        begin = y
        for name, time in times.items():
            ratio = time / times["darner"]
            lines.append(
                f'<rect class="bar" x="{left}" y="{y}" width="{ratio * scale:.1f}" height="{thick - 2}" rx="2" fill="{COLOURS[name]}"/>'
            )
            words = f"{time:g} ms" if name == "darner" else f"{ratio:.2f} x"
            lines.append(text(left + ratio * scale + 6, y + 8.5, words, 10))
            y += thick
        middle = (begin + y) / 2 + 4
        lines.append(text(left - 10, middle, cells["workload"], 12, text_anchor="end"))
        y += least - thick + 6
    below = "time of a step over darner's: shorter is faster"
    lines.append(text(left, y + 8, below, 12))
    return document(right + 80, y + 20, lines)


def denoising_svg() -> str:
    """The example of docs/fft.md: a signal, with noise, and filtered."""
    count = 1000
    time = np.arange(count) / count
    clean = np.sin(2 * np.pi * 5 * time) + 0.5 * np.sin(2 * np.pi * 12 * time)
    noisy = (clean + 0.6 * np.random.default_rng(0).standard_normal(count)).astype(np.float32)
    g = darner.Graph("denoise")
    re, im = g.input("x", (count,)).rfft(n=count)
    kept = (re * re + im * im) > 100.0**2
    g.set_outputs([g.irfft(kept.where(re, 0.0), kept.where(im, 0.0), count, "backward")])
    (found,) = darner.run(g, {"x": noisy}, float64=True)
    curves = [
        Curve("with noise", time, noisy, "faint"),
        Curve("filtered", time, found),
        Curve("before the noise", time, clean),
    ]
    return curves_svg(curves, x_label="time (s)", width=760, height=300)


def main() -> None:
    """Draw all."""
    page = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
    (ROOT / "docs/stages.svg").write_text(
        stages_svg(node_counts(), kernel_count()), encoding="utf-8"
    )
    (ROOT / "docs/denoising.svg").write_text(denoising_svg(), encoding="utf-8")
    (ROOT / "docs/performance.svg").write_text(performance_svg(page), encoding="utf-8")


if __name__ == "__main__":
    main()
