"""A small network learns a shape in the plane from noise, and draws new points of it.

    python examples/diffusion_toy.py                   a ring, in some ten seconds
    python examples/diffusion_toy.py --shape moons     two moons
    python examples/diffusion_toy.py --quick           the same in a few seconds, less sharp

Points become noise step by step, and the network learns which noise it was. A session that shares its parameters then goes the way
back, from noise to points. The picture has both: what was learnt from, and what was drawn.
"""

import argparse
import math
import time

import numpy as np

import darner
from darner import nn
from darner.models.diffusion import NoiseSchedule

SCHEDULE = NoiseSchedule(num_train_timesteps=100, beta_schedule="squaredcos_cap_v2")
NEAR = 0.1


def curve(shape, count):
    """``count`` points along a shape, which fits a square of 2 by 2."""
    angle = np.linspace(0.0, 2.0 * math.pi, count, endpoint=False)
    if shape == "ring":
        return np.stack([np.cos(angle), np.sin(angle)], 1)
    upper = angle < math.pi
    x = np.where(upper, np.cos(angle) - 0.5, np.cos(angle) + 0.5)
    return np.stack([x, np.where(upper, np.sin(angle) - 0.25, np.sin(angle) + 0.25)], 1) / 1.5


def network(batch, width, training):
    """The noise in points, told the time as sines and cosines; or its squared error."""
    g = darner.Graph("denoiser")
    points = g.input("points", (batch, 2))
    moment = g.input("moment", (batch, 1))
    angles = moment * g.constant(math.pi * 2.0 ** np.arange(4), dtype="f32")
    x = nn.Linear("enter", 10, width)(g.concat([points, angles.sin(), angles.cos()], 1))
    for layer in range(3):
        x = x + nn.MLP(f"layers.{layer}", width, 2 * width, activation="silu")(x)
    noise = nn.Linear("leave", width, 2)(x.silu())
    g.relabel(noise, "noise")
    g.set_outputs(
        [g.mse_loss(noise, g.input("noise", (batch, 2)), label="loss")] if training else [noise]
    )
    return g


def train(session, shape, steps, batch, rng):
    """Show the session points with noise; returns the loss of each step."""
    places, losses = curve(shape, 4096), []
    for _ in range(steps):
        data = rng.choice(places, batch).astype(np.float32)
        noise = rng.standard_normal(data.shape).astype(np.float32)
        timesteps = rng.integers(0, SCHEDULE.num_train_timesteps, batch)
        noisy = SCHEDULE.add_noise(data, noise, timesteps)
        session.run({"points": noisy, "moment": moments(timesteps), "noise": noise})
        losses.append(session.read_loss())
    return losses


def moments(timesteps):
    """Timesteps as numbers from 0 to 1."""
    return (timesteps / SCHEDULE.num_train_timesteps).astype(np.float32)[:, None]


def share_near(shape, points):
    """The share of points that are near the shape."""
    distances = np.linalg.norm(points[:, None] - curve(shape, 1000), axis=2)
    return np.mean(distances.min(1) < NEAR)


def write_svg(path, shape, points):
    """The shape in grey, and the points that were drawn."""
    marks = [(curve(shape, 400), "#bbb", 2.0), (points, "#06c", 1.2)]
    dots = "".join(
        f'<circle cx="{200 + 120 * x:.1f}" cy="{200 - 120 * y:.1f}" r="{radius}" fill="{color}"/>'
        for places, color, radius in marks
        for x, y in places
    )
    with open(path, "w") as file:
        file.write(
            f'<svg xmlns="http://www.w3.org/2000/svg" width="400" height="400">{dots}</svg>\n'
        )


def main():
    parser = argparse.ArgumentParser(description="Learn a shape by diffusion.")
    parser.add_argument("--shape", choices=["ring", "moons"], default="ring")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    parser.add_argument("--points", type=int, default=1000, help="to draw")
    parser.add_argument("--svg", metavar="FILE", default="diffusion_toy.svg")
    options = parser.parse_args()
    steps, batch, width = (400 if options.quick else options.steps), 256, 64
    rng, start = np.random.default_rng(0), time.perf_counter()
    optimizer = darner.optim.Adam(5e-3, schedule=darner.optim.cosine(steps))
    graph = network(batch, width, training=True)
    # Steps are short: a second thread would wait longer than it works.
    with darner.build_session(graph, optimizer=optimizer, seed=0, threads=1) as session:
        losses = train(session, options.shape, steps, batch, rng)
        drawing = network(options.points, width, training=False)
        with darner.build_inference_session(drawing, share=session, threads=1) as sampler:

            def denoise(x, timestep):
                moment = moments(np.full(options.points, timestep))
                return sampler.run({"points": x, "moment": moment})["noise"]

            noise = rng.standard_normal((options.points, 2)).astype(np.float32)
            points = SCHEDULE.sample(denoise, noise, count=50)
    write_svg(options.svg, options.shape, points)
    first, last = np.mean(losses[:20]), np.mean(losses[-100:])
    print(f"loss {first:.3f} at first, {last:.3f} after {steps:,} steps")
    before, after = (100 * share_near(options.shape, found) for found in (noise, points))
    verdict = "learnt" if after > 80 else "not learnt yet"
    print(
        f"{verdict}: {after:.1f} % of the points are within {NEAR} of the {options.shape}, {before:.1f} % of the noise"
    )
    print(f"{time.perf_counter() - start:.1f} s; the picture is {options.svg}")


if __name__ == "__main__":
    main()
