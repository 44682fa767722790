"""What a picture of splats is, said by PyTorch: pixel by pixel, one splat after another, without tiles."""

import math

import numpy as np
import torch
from torch.nn.functional import normalize


def legendre(order, degree, z):
    """P of a degree and an order without its factor (1 - z**2)**(order / 2), with the sign of Condon and Shortley."""
    last = torch.full_like(z, (-1) ** order * math.prod(range(1, 2 * order, 2)))
    before = torch.zeros_like(z)
    for n in range(order, degree):
        last, before = ((2 * n + 1) * z * last - (n + order) * before) / (n - order + 1), last
    return last


def harmonics(directions, terms):
    """Real spherical harmonics by Legendre's functions, and powers of x + iy for the angles around z."""
    x, y, z = directions.unbind(-1)
    found = []
    for degree in range(math.isqrt(terms)):
        for order in range(-degree, degree + 1):
            m = abs(order)
            real, imaginary = torch.ones_like(x), torch.zeros_like(x)
            for _ in range(m):
                real, imaginary = real * x - imaginary * y, real * y + imaginary * x
            ways = math.factorial(degree - m) / math.factorial(degree + m)
            factor = math.sqrt((2 * degree + 1) / (4 * math.pi) * ways * (2 if m else 1))
            around = imaginary if order < 0 else real
            found.append(factor * legendre(m, degree, z) * around)
    return torch.stack(found, -1)


def camera_of(meta, width, height):
    position, target, up = meta[:3], meta[3:6], meta[6:9]
    ahead = normalize(target - position, dim=0)
    right = normalize(torch.linalg.cross(ahead, up), dim=0)
    down = torch.linalg.cross(ahead, right)
    focal = height / 2 / torch.tan(torch.deg2rad(meta[9]) / 2)
    x = (torch.arange(width).double() + 0.5 - width / 2).repeat(height) / focal
    y = (torch.arange(height).double() + 0.5 - height / 2).repeat_interleave(width) / focal
    rays = x[:, None] * right + y[:, None] * down + ahead
    return (
        position,
        ahead,
        normalize(rays, dim=-1),
        torch.stack([right / focal, down / focal, ahead]),
    )


def rotated(q):
    w, x, y, z = q
    cross = torch.stack([0 * w, -z, y, z, 0 * w, -x, -y, x, 0 * w]).reshape(3, 3)
    return torch.eye(3, dtype=q.dtype) + 2 * w * cross + 2 * cross @ cross


def splats_of(positions, scales, rotations, opacities, colors, sh_coeffs, meta, radius_scale):
    """For each splat: the camera in it, 1 / sigma, its rotation, opacity and colour."""
    count = len(opacities)
    position = meta[:3]
    away = position - positions.reshape(count, 3)
    turns = [rotated(q) for q in normalize(rotations.reshape(count, 4), dim=-1)]
    turns = torch.stack(turns) if turns else torch.zeros(0, 3, 3)
    inverse = torch.exp(-scales.reshape(count, 3)) / radius_scale
    local = torch.einsum("nji,nj->ni", turns, away) * inverse
    shown = colors.reshape(count, 3)
    coefficients = sh_coeffs.reshape(count, -1, 3) if count else sh_coeffs.reshape(0, 0, 3)
    if coefficients.shape[1] and bool((coefficients[:, 0] != 0).any()):
        basis = harmonics(normalize(-away, dim=-1), coefficients.shape[1])
        shown = 0.5 + (basis[..., None] * coefficients).sum(1)
    return local, inverse, turns, opacities.clamp(0, 1), shown


def blended(splats, rays, order, options):
    """Light and transmittance of each ray, splats in an order; ``splats`` gives what a ray is in each, too."""
    local, directions, covers, colours = splats
    cutoff, steps, threshold = options
    light = [torch.zeros(3, dtype=local.dtype) for _ in range(rays)]
    left = [torch.ones((), dtype=local.dtype) for _ in range(rays)]
    for pixel in range(rays):
        hits = 0
        for n in order[pixel]:
            if left[pixel] < threshold or hits == steps:
                break
            o, d = local[n], directions(n, pixel)
            t = -(o @ d) / (d @ d)
            alpha = covers[n] * torch.exp(-((o + t * d) ** 2).sum() / 2)
            if not (t > 0 and alpha >= cutoff and alpha > 0):
                continue
            light[pixel] = light[pixel] + left[pixel] * alpha * colours[n]
            left[pixel] = left[pixel] * (1 - alpha)
            hits += 1
    return torch.stack(light), torch.stack(left)[:, None]


def shown(light, left, background):
    lit = light + left * background
    return torch.cat([lit.clamp(min=0) ** 2.2, 1 - left], 1).reshape(-1)


SIZES = {"width": 64, "height": 64, "tile_size": 16}
CUTS = {"alpha_cutoff": 1 / 255, "max_splat_steps": 32, "transmittance_threshold": 0.01}
OPTIONS = {**SIZES, "radius_scale": 1.6, **CUTS, "max_list_entries": 576}


def settled(sizes, options):
    """Options by name; the first three may be given by position."""
    return {**OPTIONS, **dict(zip(SIZES, sizes, strict=False)), **options}


def cuts(found):
    return [found[name] for name in CUTS]


def render(*args, **options):
    tensors, found = args[:7], settled(args[7:], options)
    meta = tensors[6]
    local, inverse, turns, covers, colours = splats_of(*tensors, found["radius_scale"])
    position, ahead, rays, _ = camera_of(meta, found["width"], found["height"])
    away = tensors[0].reshape(-1, 3) - position
    depth, distance = away @ ahead, away.norm(dim=-1)
    order = [n for n in distance.argsort(stable=True).tolist() if meta[10] < depth[n] < meta[11]]
    towards = lambda n, pixel: turns[n].T @ rays[pixel] * inverse[n]  # noqa: E731
    splats = (local, towards, covers, colours)
    light, left = blended(splats, len(rays), [order] * len(rays), cuts(found))
    return shown(light, left, meta[12:15])


def tiles_of(found):
    across = -(-found["width"] // found["tile_size"])
    y, x = np.divmod(np.arange(found["width"] * found["height"]), found["width"])
    return y // found["tile_size"] * across + x // found["tile_size"]


def listed(lists, count, found):
    """The splats of each pixel by the lists of tiles."""
    tiles = tiles_of(found)
    ends = lists[len(lists) - 2 * (tiles.max() + 1) :].reshape(-1, 2).long().tolist()
    numbers = [int(n) for n in lists.tolist()]
    return [[n for n in numbers[slice(*ends[tile])] if 0 <= n < count] for tile in tiles]


def blend(features, lists, *sizes, **options):
    found = settled(sizes, options)
    if features.ndim > 2:
        pairs = zip(features, lists, strict=True)
        return torch.stack([blend(one, other, *sizes, **options) for one, other in pairs])
    width, height = found["width"], found["height"]
    u = torch.arange(width * height) % width + 0.5 - width / 2
    v = torch.arange(width * height) // width + 0.5 - height / 2
    local, a, b, c = (features[:, 3 * k : 3 * k + 3] for k in range(4))
    towards = lambda n, pixel: u[pixel] * a[n] + v[pixel] * b[n] + c[n]  # noqa: E731
    splats = (local, towards, features[:, 12], features[:, 13:])
    order = listed(lists, len(features), found)
    return torch.cat(blended(splats, len(u), order, cuts(found)), 1)


def blend_backward(features, lists, g, *sizes, **options):
    features = features.detach().requires_grad_()
    result = blend(features, lists, *sizes, **options)
    if not result.requires_grad:
        return torch.zeros_like(features)
    (found,) = torch.autograd.grad(result, [features], [g], allow_unused=True)
    return torch.zeros_like(features) if found is None else found


def lists_of(bounds, numbers, across, down, entries):
    if bounds.ndim > 2:
        pairs = zip(bounds, numbers, strict=True)
        return np.stack([lists_of(one, other, across, down, entries) for one, other in pairs])
    tiles = [
        [
            int(number)
            for (left, top, right, bottom), number in zip(bounds, numbers, strict=True)
            if left <= x < right and top <= y < bottom
        ]
        for y in range(down)
        for x in range(across)
    ]
    ends = np.cumsum([0, *map(len, tiles)])
    numbers = np.concatenate([*tiles, np.full(entries - ends[-1], -1)])
    return np.concatenate([numbers, np.stack([ends[:-1], ends[1:]], 1).reshape(-1)]).astype(
        np.int64
    )


def prepare(*args, **options):
    tensors, found = args[:7], settled(args[7:], options)
    local, inverse, _, covers, colours = splats_of(*tensors, found["radius_scale"])
    count = len(covers)
    meta, width, height, size = tensors[6], found["width"], found["height"], found["tile_size"]
    position, _, rays, _ = camera_of(meta, width, height)
    with torch.no_grad():
        bounds, seen = bounds_of(tensors, found)
    across, down = -(-width // size), -(-height // size)
    order = (tensors[0].reshape(-1, 3) - position).norm(dim=-1).argsort(stable=True)
    tiles = lists_of(bounds[order], order, across, down, found["max_list_entries"])
    quaternions = normalize(tensors[2].reshape(-1, 4), dim=-1)
    alpha = torch.cat([colours, covers[:, None]], 1)
    parts = [alpha, seen[:, None].double(), local, inverse, quaternions]
    if count == 0:
        parts = [torch.zeros(15, dtype=torch.float64)]
    own = [width, height, size, across, found["alpha_cutoff"], found["transmittance_threshold"]]
    rest = [*own, *meta[12:15].tolist(), found["max_splat_steps"], 0]
    parts += [torch.from_numpy(tiles).double(), rays, torch.tensor(rest, dtype=torch.float64)]
    return torch.cat([part.reshape(-1) for part in parts])


def bounds_of(tensors, found):
    """Tiles within the bounds of where each splat takes as much as the cutoff, on a plane of pixels without end: by the ends of its ellipse there."""
    local, inverse, turns, covers, _ = splats_of(*tensors, found["radius_scale"])
    position, ahead, _, axes = camera_of(tensors[6], found["width"], found["height"])
    near, far = tensors[6][10:12]
    across, down = (-(-found[name] // found["tile_size"]) for name in ("width", "height"))
    bounds, seen = [], []
    for n in range(len(covers)):
        depth = (tensors[0].reshape(-1, 3)[n] - position) @ ahead
        radius = torch.sqrt(2 * torch.log(covers[n] / found["alpha_cutoff"]).clamp(min=0))
        matrix = turns[n].T * inverse[n][:, None]
        # Rays d within the cone: (o d)**2 >= (o o - r r) (d d). Its ellipse is a dual conic.
        o, d = local[n], matrix @ axes.T
        cone = torch.outer(o @ d, o @ d) - (o @ o - radius**2) * (d.T @ d)
        dual = torch.linalg.inv(cone)
        ends = []
        for k, (size, tiles) in enumerate(((found["width"], across), (found["height"], down))):
            middle = dual[k, 2] / dual[2, 2]
            half = torch.sqrt((middle**2 - dual[k, k] / dual[2, 2]).clamp(min=0))
            edges = (middle + size / 2 - 0.5 - half, middle + size / 2 - 0.5 + half)
            ends.append(
                [
                    math.floor((e + m) / found["tile_size"])
                    for e, m in zip(edges, (-0.25, 0.25), strict=True)
                ]
            )
            ends[-1] = [min(max(ends[-1][0], 0), tiles), min(max(ends[-1][1] + 1, 0), tiles)]
        (left, right), (top, bottom) = ends
        visible = bool(near < depth < far and covers[n] >= found["alpha_cutoff"])
        visible = visible and left < right and top < bottom
        seen.append(visible)
        bounds.append([left, top, right, bottom] if visible else [0] * 4)
    return np.array(bounds, int).reshape(-1, 4), torch.tensor(seen, dtype=torch.bool)


def rasterize(prep, meta, **options):
    found = settled([], options)
    tiles = int(tiles_of(found).max()) + 1
    entries, pixels = found["max_list_entries"], found["width"] * found["height"]
    count = (len(prep) - entries - 2 * tiles - 3 * pixels - 11) // 15
    sizes = [4 * count, count, 3 * count, 3 * count, 4 * count, entries + 2 * tiles]
    shown_as, seen, local, inverse, quaternions, lists, _ = prep.split([*sizes, 3 * pixels + 11])
    shown_as, inverse = shown_as.reshape(-1, 4), inverse.reshape(-1, 3)
    turns = torch.stack([rotated(q) for q in quaternions.reshape(-1, 4)])
    _, _, rays, _ = camera_of(meta, found["width"], found["height"])
    towards = lambda n, pixel: turns[n].T @ rays[pixel] * inverse[n]  # noqa: E731
    splats = (local.reshape(-1, 3), towards, shown_as[:, 3] * (seen > 0), shown_as[:, :3])
    light, left = blended(splats, pixels, listed(lists, count, found), cuts(found))
    return shown(light, left, meta[12:15])


def render_backward(*args, **options):
    own = {name: options.pop(name, default) for name, default in BACKWARD.items()}
    leaves = [x.detach().requires_grad_() for x in args[:6]]
    result = render(*leaves, args[6], *args[8:], **options)
    clip = own["loss_grad_clip"]
    found = [torch.zeros_like(x) for x in leaves]
    if result.requires_grad:
        found = torch.autograd.grad(
            result, leaves, [args[7].clamp(-clip, clip)], allow_unused=True, materialize_grads=True
        )
    *found, harmonic = found
    count, terms = len(leaves[3]), len(leaves[5]) // max(3 * len(leaves[3]), 1)
    if not terms:
        return torch.cat([*found, torch.zeros(3 * count, dtype=torch.float64)])
    kept = (torch.arange(terms) < (own["sh_band"] + 1) ** 2).to(harmonic.dtype)
    return torch.cat([*found, (harmonic.reshape(-1, terms, 3) * kept[:, None]).reshape(-1)])


BACKWARD = {"loss_grad_clip": 1.0, "sh_band": 0, "max_anisotropy": 10.0}

ROWS = {
    "splat_lists": lambda *args: lists_of(*(np.asarray(x) for x in args[:2]), *args[2:]),
    "splat_blend": blend,
    "splat_blend_backward": blend_backward,
    "gaussian_splat_render": render,
    "gaussian_splat_prepare": prepare,
    "gaussian_splat_rasterize": rasterize,
    "gaussian_splat_render_backward": render_backward,
}
