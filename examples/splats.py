"""Gaussian splats that learn a picture: soft ellipsoids before a camera, moved, turned, stretched and coloured by gradients.

    python examples/splats.py                         400 splats, 500 steps, some seconds
    python examples/splats.py --splats 1000 --steps 1000 --size 192

The picture is drawn here. ``splats.png`` has it beside what the splats show at first and at the end.
"""

import argparse
import struct
import time
import zlib

import numpy as np

import darner

SHOWN = 8
"""How often progress is said."""


def draw(size):
    """A house on a hill in the evening, as colours from 0 to 1: [size, size, 3]."""
    y, x = np.mgrid[:size, :size] / size
    sky = np.stack([0.95 - 0.5 * (1 - y), 0.55 + 0.1 * x, 0.35 + 0.5 * (1 - y)], -1)
    shapes = [
        ((x - 0.74) ** 2 + (y - 0.3) ** 2 < 0.012, (1.0, 0.9, 0.5)),
        (y > 0.72 + 0.12 * np.cos(5 * x), (0.3, 0.35, 0.55)),
        (y > 0.78 - 0.1 * np.sin(4 * x + 0.4), (0.25, 0.5, 0.3)),
        ((abs(x - 0.35) < 0.13) & (abs(y - 0.66) < 0.1), (0.85, 0.8, 0.7)),
        ((y - 0.42 > 0.8 * abs(x - 0.35)) & (y < 0.57), (0.7, 0.25, 0.2)),
        ((abs(x - 0.3) < 0.03) & (abs(y - 0.64) < 0.04), (0.2, 0.25, 0.4)),
        ((abs(x - 0.41) < 0.025) & (y > 0.62) & (y < 0.76), (0.4, 0.25, 0.15)),
    ]
    for where, colour in shapes:
        sky[where] = colour
    return sky.astype(np.float32)


def start(count, rng):
    """Small grey splats anywhere in the picture."""
    places = rng.uniform(-1, 1, (count, 3)) * [1.0, 1.0, 0.1]
    return {
        "positions": places,
        "scales": rng.uniform(-3.0, -2.2, (count, 3)),
        "rotations": rng.normal(size=(count, 4)),
        "opacity": np.zeros(count),
        "colour": np.zeros((count, 3)),
    }


def build(picture, count):
    """The loss of a scene of splats as a graph, and the picture that it shows."""
    size = len(picture)
    g = darner.Graph("splats")
    params = darner.GaussianSplatRenderParams(
        width=size, height=size, radius_scale=1.0, max_list_entries=40 * count
    )
    meta = g.gaussian_splat_render_meta(
        [0, 0, 3], [0, 0, 0], [0, 1, 0], 37, 0.1, 10, [0.2, 0.2, 0.2], params
    )
    inputs = darner.GaussianSplatInputs(
        positions=g.parameter("positions", (3 * count,)),
        scales=g.parameter("scales", (3 * count,)),
        rotations=g.parameter("rotations", (4 * count,)),
        opacities=g.parameter("opacity", (count,)).sigmoid(),
        colors=g.parameter("colour", (3 * count,)).sigmoid(),
        sh_coeffs=g.zeros((0,)),
        meta=meta,
    )
    image = g.gaussian_splat_render(inputs, params).reshape((size, size, 4))[:, :, :3]
    g.set_outputs([(image - picture).square().mean(label="loss"), image])
    return g


def write_png(path, picture):
    """A picture of colours from 0 to 1 as a file."""
    height, width, _ = picture.shape
    levels = (np.clip(picture, 0, 1) * 255 + 0.5).astype(np.uint8)
    rows = b"".join(b"\0" + row.tobytes() for row in levels)
    parts = {
        b"IHDR": struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0),
        b"IDAT": zlib.compress(rows, 9),
        b"IEND": b"",
    }
    with open(path, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n")
        for name, data in parts.items():
            check = zlib.crc32(name + data)
            file.write(struct.pack(">I", len(data)) + name + data + struct.pack(">I", check))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--splats", type=int, default=400)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--size", type=int, default=96, help="pixels of a side")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", default="splats.png")
    given = parser.parse_args()

    picture = draw(given.size)
    graph = build(picture, given.splats)
    with darner.build_session(graph, device=given.device, progress=False) as session:
        for name, values in start(given.splats, np.random.default_rng(0)).items():
            session.set_parameter(name, values.astype(np.float32).ravel())
        shown, begun = [picture], time.perf_counter()
        for step in range(given.steps + 1):
            # Splats move less and less: from a fortieth of the picture to a tenth of that.
            session.set_adam(0.05 * 0.1 ** (step / given.steps), 0.9, 0.999, 1e-8)
            session.step()
            if step % max(1, given.steps // SHOWN) == 0:
                error = session.read_loss()
                rate = step / (time.perf_counter() - begun)
                print(
                    f"step {step:5,}  error {error:.5f}  {-10 * np.log10(error):5.2f} dB  "
                    f"{rate:5.0f} steps a second"
                )
            if step in (0, given.steps):
                shown.append(np.array(session.read_output_by_index(1)).reshape(picture.shape))
    write_png(given.out, np.concatenate(shown, 1))
    print(f"{given.splats} splats; the picture, the first and the last try are {given.out}")


if __name__ == "__main__":
    main()
