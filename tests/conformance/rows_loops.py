"""What loops compute: a loop of Python in PyTorch. The bodies stand in ``darner/ops/loops/samples.py``."""

import torch


def _recurrent(h, w, x):
    following = torch.tanh(h @ w + x)
    return [following, following.sum(-1)]


def _nested(h, k, x):
    last = h + x
    for _ in range(2):
        last = torch.tanh(last * k)
    return [last, last * x]


BODIES = {
    "decay": lambda h: [torch.sin(h * 0.5)],
    "recurrent": _recurrent,
    "exchange": lambda a, b, x: [b * 0.5, a + x, a * b],
    "written": lambda k, x: [torch.exp(x * k), x.sum()],
    "counted": lambda total, count, n: [total + n * total, count + n, count],
    "nested": _nested,
}


def loop(init, constants, xs, body, length, reverse=False):
    carries, written = list(init), []
    for t in reversed(range(length)) if reverse else range(length):
        found = BODIES[body.name](*carries, *constants, *(x[t] for x in xs))
        carries = found[: len(init)]
        written.append(found[len(init) :])
    if reverse:
        written.reverse()
    kinds = body.outputs[len(init) :]
    empty = [torch.zeros((0, *kind.shape), dtype=torch.float64) for kind in kinds]
    stacked = [torch.stack(steps) for steps in zip(*written, strict=True)] if length else empty
    return [*carries, *stacked]


ROWS = {"loop": loop}
