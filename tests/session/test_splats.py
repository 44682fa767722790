"""Pictures of splats in sessions: what is where, tiles that change nothing, faults, and fitting."""

import numpy as np
import pytest

import darner
from darner import (
    GaussianSplatBackwardParams,
    GaussianSplatInputs,
    GaussianSplatRenderParams,
    Graph,
)

CAMERA = ([0, 0, 4], [0, 0, 0], [0, 1, 0], 60, 0.1, 100, [0, 0, 0])


def scene_of(rows):
    """Tensors of round splats: (position, logarithm of the size, opacity, colour) each."""
    positions, sizes, opacities, colors = zip(*rows, strict=True)
    return {
        "positions": np.array(positions, np.float32).ravel(),
        "scales": np.repeat(np.array(sizes, np.float32), 3),
        "rotations": np.tile(np.array([1, 0, 0, 0], np.float32), len(rows)),
        "opacities": np.array(opacities, np.float32),
        "colors": np.array(colors, np.float32).ravel(),
        "sh_coeffs": np.zeros(0, np.float32),
    }


def random_scene(count, terms=0, seed=0, reach=1.2):
    rng = np.random.default_rng(seed)
    found = {
        "positions": rng.uniform(-reach, reach, 3 * count),
        "scales": rng.uniform(-3.5, -1.0, 3 * count),
        "rotations": rng.normal(size=4 * count),
        "opacities": rng.uniform(0, 1.1, count),
        "colors": rng.uniform(0, 1, 3 * count),
        "sh_coeffs": rng.normal(size=3 * count * terms) * 0.3,
    }
    return {name: values.astype(np.float32) for name, values in found.items()}


def graph_of(scene, params, camera=CAMERA, how="gaussian_splat_render", dtype="f32"):
    g = Graph("scene")
    leaves = {name: g.input(name, values.shape, dtype) for name, values in scene.items()}
    meta = g.gaussian_splat_render_meta(*camera, params)
    g.set_outputs([getattr(g, how)(GaussianSplatInputs(**leaves, meta=meta), params)])
    return g


def rendered(scene, params, camera=CAMERA, **session):
    g = graph_of(scene, params, camera)
    with darner.build_inference_session(g, **{"device": "cpu", **session}) as found:
        (image,) = found.run(scene).values()
    return image.reshape(params.height, params.width, 4)


# --------------------------------------------------------------------------- what is where

SIDES = {
    "front": ([0, 0, 4], "red"),
    "right": ([4, 0, 0], "green"),
    "back": ([0, 0, -4], "blue"),
    "left": ([-4, 0, 0], "yellow"),
}
COLOURS = {
    "red": [1, 0, 0],
    "green": [0, 1, 0],
    "blue": [0, 0, 1],
    "yellow": [1, 1, 0],
    "white": [1, 1, 1],
}
ROUND = ["front", "right", "back", "left"]
PLACES = [
    ([0, 0, 1], "red"),
    ([1, 0, 0], "green"),
    ([0, 0, -1], "blue"),
    ([-1, 0, 0], "yellow"),
    ([0, 1.2, 0], "white"),
]
SIDED = scene_of([(place, -1.7, 0.99, COLOURS[name]) for place, name in PLACES])


def colour_at(image, row, column):
    seen = image[row, column, :3] > 0.3
    assert image[row, column, 3] > 0.5, "nothing is there"
    return next(name for name, wanted in COLOURS.items() if (seen == np.array(wanted, bool)).all())


@pytest.mark.parametrize("side", SIDES)
def test_a_scene_from_four_sides_has_each_colour_where_it_is(side):
    position, nearest = SIDES[side]
    params = GaussianSplatRenderParams(width=48, height=48)
    image = rendered(SIDED, params, (position, *CAMERA[1:]))
    at = ROUND.index(side)
    names = [SIDES[name][1] for name in ROUND]
    # A splat a unit to the side is 24 / tan(30 degrees) / 4 pixels from the middle, and one above is as much higher.
    assert colour_at(image, 24, 24) == nearest
    assert colour_at(image, 24, 34) == names[(at + 1) % 4]
    assert colour_at(image, 24, 13) == names[(at - 1) % 4]
    assert colour_at(image, 11, 24) == "white"
    assert image[37:, :, 3].max() < 0.1, "below the middle there is nothing"


def test_a_camera_that_lies_on_its_side_turns_the_picture():
    params = GaussianSplatRenderParams(width=48, height=48)
    image = rendered(SIDED, params, (*CAMERA[:2], [1, 0, 0], *CAMERA[3:]))
    assert colour_at(image, 24, 11) == "white"
    assert colour_at(image, 13, 24) == "green"


def test_near_and_far_are_of_the_middles_of_splats():
    params = GaussianSplatRenderParams(width=48, height=48)
    image = rendered(SIDED, params, (*CAMERA[:4], 3.5, 4.5, CAMERA[6]))
    assert image[24, 24, 3] < 0.2
    assert colour_at(image, 24, 34) == "green"


def test_the_background_shines_through_with_its_gamma():
    params = GaussianSplatRenderParams(width=8, height=8)
    scene = scene_of([([0, 0, 0], 2.0, 0.5, [1, 0, 0])])
    image = rendered(scene, params, (*CAMERA[:6], [0.2, 0.4, 0.6]))
    alpha = image[4, 4, 3]
    assert 0.49 < alpha < 0.5
    wanted = (alpha * np.array([1, 0, 0]) + (1 - alpha) * np.array([0.2, 0.4, 0.6])) ** 2.2
    np.testing.assert_allclose(image[4, 4, :3], wanted, rtol=1e-4)


def test_harmonics_are_of_the_direction_from_the_camera_to_the_splat():
    # Of band 1 only the term that goes with z: it is 0.488603 z, negative where the camera looks towards -z.
    scene = scene_of([([0, 0, 0], -1.0, 0.99, [0, 0, 0])])
    coefficients = np.zeros((4, 3), np.float32)
    coefficients[0, 0] = 1e-6
    coefficients[2] = 0.5, -0.5, 0
    scene["sh_coeffs"] = coefficients.ravel()
    params = GaussianSplatRenderParams(width=9, height=9)
    for z, wanted in ((4, [0.5 - 0.2443, 0.5 + 0.2443, 0.5]), (-4, [0.7443, 0.2557, 0.5])):
        image = rendered(scene, params, ([0, 0, z], *CAMERA[1:]))
        np.testing.assert_allclose(image[4, 4, :3] ** (1 / 2.2), 0.99 * np.array(wanted), atol=1e-3)


# --------------------------------------------------------------------------- tiles change nothing


def brute_force(scene, params, camera):
    """The picture in float64, all splats for all pixels."""
    position, target, up = (np.array(v, float) for v in camera[:3])
    ahead = (target - position) / np.linalg.norm(target - position)
    right = np.cross(ahead, up) / np.linalg.norm(np.cross(ahead, up))
    focal = params.height / 2 / np.tan(np.radians(camera[3]) / 2)
    y, x = np.mgrid[: params.height, : params.width] + 0.5
    x, y = (x.ravel() - params.width / 2) / focal, (y.ravel() - params.height / 2) / focal
    rays = x[:, None] * right + y[:, None] * np.cross(ahead, right) + ahead
    tensors = {name: values.astype(float) for name, values in scene.items()}
    middles = tensors["positions"].reshape(-1, 3)
    light, left = np.zeros((len(rays), 3)), np.ones(len(rays))
    steps = np.zeros(len(rays), int)
    for n in np.argsort(np.linalg.norm(middles - position, axis=1), kind="stable"):
        w, *v = q = tensors["rotations"].reshape(-1, 4)[n]
        a, b, c = v
        cross = np.array([[0, -c, b], [c, 0, -a], [-b, a, 0]])
        turn = np.eye(3) + (2 * w * cross + 2 * cross @ cross) / (q @ q)
        matrix = (
            turn.T / (np.exp(tensors["scales"].reshape(-1, 3)[n]) * params.radius_scale)[:, None]
        )
        o, d = matrix @ (position - middles[n]), rays @ matrix.T
        t = -(d @ o) / (d * d).sum(1)
        cover = np.clip(tensors["opacities"][n], 0, 1)
        alpha = cover * np.exp(-((o + t[:, None] * d) ** 2).sum(1) / 2)
        hit = (t > 0) & (alpha >= params.alpha_cutoff) & (steps < params.max_splat_steps)
        hit &= (left >= params.transmittance_threshold) & (alpha > 0)
        hit &= camera[4] < (middles[n] - position) @ ahead < camera[5]
        alpha = np.where(hit, alpha, 0)
        light += (alpha * left)[:, None] * tensors["colors"].reshape(-1, 3)[n]
        left, steps = left * (1 - alpha), steps + hit
    colours = np.maximum(light + left[:, None] * np.array(camera[6]), 0) ** 2.2
    return np.concatenate([colours, 1 - left[:, None]], 1).reshape(params.height, params.width, 4)


VIEWS = {
    "from outside": (([0.3, -0.5, 3], [0, 0, 0], [0.1, 1, 0.2], 50, 0.1, 100, [0.1, 0, 0.2]), {}),
    "from among them": (([0.1, 0, 0.2], [1, 0.2, 0], [0, 0, 1], 80, -5, 9, [0.1, 0, 0.2]), {}),
    "a wide angle": (([0, 0, 1.3], [0, 0, 0], [0, 1, 0], 150, 0.01, 100, [0, 0, 0]), {}),
    "few steps": (([1, 1, 2], [0, 0, 0], [0, 1, 0], 40, 0.1, 5, [0, 0, 0]), {"max_splat_steps": 3}),
    "all of it": (
        ([1, 1, 2], [0, 0, 0], [0, 1, 0], 40, 0.1, 5, [0, 0, 0]),
        {"alpha_cutoff": 0.0, "transmittance_threshold": 0.0, "max_splat_steps": 500},
    ),
    "little of it": (
        ([1, 1, 2], [0, 0, 0], [0, 1, 0], 40, 0.1, 5, [0, 0, 0]),
        {"alpha_cutoff": 0.3, "transmittance_threshold": 0.5, "radius_scale": 0.7},
    ),
}


@pytest.mark.parametrize(("name", "tile"), list(zip(VIEWS, [16, 5, 3, 64, 7, 16], strict=True)))
def test_tiles_never_change_the_picture(name, tile):
    camera, options = VIEWS[name]
    params = GaussianSplatRenderParams(
        width=53, height=38, tile_size=tile, max_list_entries=40000, **options
    )
    scene = random_scene(120)
    found, wanted = rendered(scene, params, camera), brute_force(scene, params, camera)
    # Where f32 decides otherwise than f64 whether a splat counts, a pixel is off by what it takes.
    off = np.abs(found - wanted).max(-1)
    assert np.quantile(off, 0.99) < 2e-5
    assert off.max() < 0.05


def test_in_two_steps_it_is_the_same_picture_bit_by_bit():
    params = GaussianSplatRenderParams(width=40, height=30, max_list_entries=3000)
    scene = random_scene(80, terms=9)
    images = []
    for how in ("gaussian_splat_render", "gaussian_splat_render_decomposed"):
        g = graph_of(scene, params, how=how)
        with darner.build_inference_session(g, device="cpu") as session:
            images += session.run(scene).values()
    assert images[0].std() > 0.05
    np.testing.assert_array_equal(*images)


def gradients_of(scene, params, seed=3):
    g = darner.vjp(graph_of(scene, params), list(scene))
    (cotangent,) = set(g.inputs) - set(scene)
    sent = np.random.default_rng(seed).normal(size=g.inputs[cotangent].shape)
    return g, {**scene, cotangent: sent.astype(np.float32)}


def test_picture_and_gradient_do_not_depend_on_the_number_of_threads():
    params = GaussianSplatRenderParams(width=45, height=35, max_list_entries=5000)
    g, given = gradients_of(random_scene(90, terms=1), params)
    found = []
    for threads in (1, 2, 3):
        with darner.build_inference_session(g, device="cpu", threads=threads) as session:
            found.append(list(session.run(given).values()))
    assert np.abs(found[0][1]).max() > 0.1
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(one, two)


def test_autodiff_of_two_steps_is_that_of_one_and_the_op_that_says_it():
    params = GaussianSplatRenderParams(width=12, height=10, tile_size=5, max_list_entries=300)
    scene = random_scene(8, terms=4, reach=0.8)
    found = []
    for how in ("gaussian_splat_render", "gaussian_splat_render_decomposed"):
        g = darner.vjp(graph_of(scene, params, how=how, dtype="f64"), list(scene))
        (cotangent,) = set(g.inputs) - set(scene)
        sent = np.random.default_rng(0).uniform(-1, 1, g.inputs[cotangent].shape)
        found.append(darner.run(g, {**scene, cotangent: sent})[1:])
    g = graph_of(scene, params, dtype="f64")
    inputs = GaussianSplatInputs(**g.inputs, meta=g.gaussian_splat_render_meta(*CAMERA, params))
    all_bands = GaussianSplatBackwardParams(params, sh_band=3)
    g.set_outputs([g.gaussian_splat_render_backward(inputs, g.constant(sent), all_bands)])
    (packed,) = darner.run(g, scene)
    assert np.abs(packed).max() > 0.1
    for one, two in zip(*found, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(packed, np.concatenate(found[0]), rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_a_batch_of_cameras_is_a_loop_over_them():
    params = GaussianSplatRenderParams(width=20, height=14, max_list_entries=900)
    scene = random_scene(30)
    g = Graph("cameras")
    leaves = {name: g.input(name, values.shape) for name, values in scene.items()}
    meta = g.input("meta", (23,))
    g.set_outputs([g.gaussian_splat_render(GaussianSplatInputs(**leaves, meta=meta), params)])
    cameras = [([2, 1, 3], *CAMERA[1:]), CAMERA, ([-3, 0, 1], *CAMERA[1:])]
    with darner.build_inference_session(darner.vmap(g, ["meta"], 3), device="cpu") as session:
        metas = np.zeros((3, 23), np.float32)
        for k, camera in enumerate(cameras):
            metas[k, :15] = np.concatenate([np.ravel(part) for part in camera])
        (found,) = session.run({**scene, "meta": metas}).values()
    for image, camera in zip(found, cameras, strict=True):
        np.testing.assert_allclose(
            image.reshape(14, 20, 4), rendered(scene, params, camera), rtol=1e-4, atol=1e-5
        )


# --------------------------------------------------------------------------- fitting


@pytest.mark.slow
def test_splats_are_fitted_to_a_picture_by_their_gradients():
    params = GaussianSplatRenderParams(width=16, height=16, max_list_entries=200)
    goal = rendered(scene_of([([0.3, 0.2, 0], -0.8, 0.9, [0.9, 0.5, 0.2])]), params)
    start = scene_of([([0, 0, 0], -1.0, 0.5, [0.5, 0.5, 0.5])])
    g = Graph("fit")
    leaves = {name: g.parameter(name, value.shape) for name, value in start.items() if value.size}
    leaves["sh_coeffs"] = g.constant(start["sh_coeffs"])
    meta = g.gaussian_splat_render_meta(*CAMERA, params)
    image = g.gaussian_splat_render(GaussianSplatInputs(**leaves, meta=meta), params)
    g.set_outputs([(image - goal.ravel()).square().mean()])
    with darner.build_session(g, device="cpu", progress=False) as session:
        for name, value in start.items():
            if value.size:
                session.set_parameter(name, value)
        session.set_adam(0.03, 0.9, 0.999, 1e-8)
        losses = []
        for _ in range(150):
            session.step()
            losses.append(session.read_loss())
        fitted = {name: np.array(value) for name, value in session.parameters().items()}
    assert losses[-1] < losses[0] / 200
    np.testing.assert_allclose(fitted["positions"][:2], [0.3, 0.2], atol=0.02)
    np.testing.assert_allclose(
        np.asarray(fitted["colors"]) * fitted["opacities"], [0.81, 0.45, 0.18], atol=0.05
    )


# --------------------------------------------------------------------------- what cannot be


def test_too_many_entries_are_an_error_that_names_the_call_and_leaves_all_as_it_was():
    params = GaussianSplatRenderParams(width=64, height=64, max_list_entries=10)
    g = Graph("full")
    scene = scene_of([([0, 0, 0], -2.0, 0.9, [1, 1, 1])])
    leaves = {name: g.input(name, value.shape) for name, value in scene.items()}
    meta = g.gaussian_splat_render_meta(*CAMERA, params)
    image = g.gaussian_splat_render(
        GaussianSplatInputs(**leaves, meta=meta), params, label="portrait"
    )
    seen = g.state("seen", ())
    g.set_update(seen, seen + image.reshape((-1, 4))[:, 3].max())
    g.set_outputs([image])
    large = {**scene, "scales": np.full(3, 1.0, np.float32)}
    with darner.build_inference_session(g, device="cpu") as session:
        session.run(scene)
        before = float(session.state()["seen"])
        assert before > 0.5
        with pytest.raises(
            darner.RunError, match="there are 16 pairs of a tile and a splat"
        ) as caught:
            session.run(large)
        assert float(session.state()["seen"]) == before
        session.run(scene)
        assert float(session.state()["seen"]) == 2 * before
    assert "portrait" in str(caught.value)
    assert "test_splats.py" in str(caught.value)
    assert "max_list_entries=16" in str(caught.value)


HOSTILE = {
    "nothing is finite": {"positions": np.nan, "scales": np.nan, "colors": np.inf},
    "far away": {"positions": 1e30},
    "of no size": {"scales": -200.0},
    "larger than all": {"scales": 200.0},
    "in the camera": {"positions": [0, 0, 4, 0, 0, 4]},
    "without rotation": {"rotations": 0.0},
    "more than opaque": {"opacities": np.inf},
    "behind the camera": {"positions": [0, 0, 9, 0, 0, 9]},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_scenes_of_any_numbers_make_a_picture(name):
    params = GaussianSplatRenderParams(width=20, height=20, max_list_entries=8)
    rows = [([0, 0, 0], -2.0, 0.9, [1, 0, 0]), ([0.5, 0, 0], -2.0, 0.9, [0, 1, 0])]
    scene = scene_of(rows)
    plain = rendered(scene, params)
    for tensor, value in HOSTILE[name].items():
        scene[tensor] = np.broadcast_to(np.float32(value), scene[tensor].shape).copy()
    # The scene's first splat stays as it is.
    for tensor, width in (("positions", 3), ("scales", 3), ("rotations", 4), ("colors", 3)):
        scene[tensor][:width] = scene_of(rows)[tensor][:width]
    scene["opacities"][0] = 0.9
    g, given = gradients_of(scene, params)
    with darner.build_inference_session(g, device="cpu") as session:
        image, *gradients = session.run(given).values()
    image = image.reshape(20, 20, 4)
    if name in ("nothing is finite", "far away", "of no size", "behind the camera"):
        # As if it were not there: what the first one is alone.
        np.testing.assert_allclose(image[:, :9], plain[:, :9], atol=1e-5)
        assert np.isfinite(image).all()
        assert np.isfinite(gradients[0][:3]).all()


def calls(**changed):
    g = Graph("wrong")
    scene = {**{k: v.shape for k, v in random_scene(4).items()}, **changed}
    return g, {name: g.input(name, shape) for name, shape in scene.items()}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"positions": (11,)}, r"positions must be \(12,\) for 4 splats, not \(11,\)"),
        ({"rotations": (4, 4)}, r"rotations must be \(16,\) for 4 splats, not \(4, 4\)"),
        ({"opacities": (4, 1)}, r"opacities must be flat"),
        ({"sh_coeffs": (24,)}, r"sh_coeffs must be flat with 0, 1, 4, 9 or 16 coefficients"),
    ],
)
def test_tensors_that_are_not_of_one_scene_are_refused_where_they_are_given(changed, message):
    g, leaves = calls(**changed)
    meta = g.gaussian_splat_render_meta(*CAMERA)
    count = len(g.nodes)
    with pytest.raises(darner.ShapeError, match=message) as caught:
        g.gaussian_splat_render(
            GaussianSplatInputs(**leaves, meta=meta), GaussianSplatRenderParams(), label="it"
        )
    assert "gaussian_splat_render 'it'" in str(caught.value)
    assert len(g.nodes) == count


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("width", 0),
        ("height", 1 << 20),
        ("tile_size", -1),
        ("radius_scale", 0.0),
        ("radius_scale", np.nan),
        ("alpha_cutoff", 2.0),
        ("alpha_cutoff", np.nan),
        ("max_splat_steps", 0),
        ("transmittance_threshold", -0.1),
        ("max_list_entries", 0),
        ("max_list_entries", 1 << 30),
    ],
)
def test_parameters_that_mean_nothing_are_refused_by_name(option, value):
    g, leaves = calls()
    inputs = GaussianSplatInputs(**leaves, meta=g.gaussian_splat_render_meta(*CAMERA))
    with pytest.raises(darner.ArgumentError, match=f"{option} must be"):
        g.gaussian_splat_render(inputs, GaussianSplatRenderParams(**{option: value}))


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (0, [0, 0, 0], "up must not be the direction from position to target"),
        (2, [0, 0, 1], "up must not be the direction from position to target"),
        (1, [0, np.nan, 0], "target must be three finite numbers"),
        (0, "left", "position must be three numbers"),
        (3, 180, "fov_y_degrees must be above 0 and below 180, not 180"),
        (4, 100, "near must be below far, not 100 and 100"),
    ],
)
def test_cameras_that_see_nothing_are_refused(place, value, message):
    camera = list(CAMERA)
    camera[place] = value
    with pytest.raises(darner.ArgumentError, match=message):
        Graph().gaussian_splat_render_meta(*camera)


def test_what_was_packed_with_other_parameters_is_refused():
    g, leaves = calls()
    meta = g.gaussian_splat_render_meta(*CAMERA)
    inputs = GaussianSplatInputs(**leaves, meta=meta)
    packed = g.gaussian_splat_prepare(inputs, GaussianSplatRenderParams(width=32))
    with pytest.raises(darner.ShapeError, match="prepare and rasterize take the same options"):
        g.gaussian_splat_rasterize(packed, meta, GaussianSplatRenderParams(width=33))


def test_a_record_and_an_option_of_its_own_are_given_once():
    g, leaves = calls()
    inputs = GaussianSplatInputs(**leaves, meta=g.gaussian_splat_render_meta(*CAMERA))
    with pytest.raises(darner.ArgumentError, match="'width' is given twice"):
        g.gaussian_splat_render(inputs, GaussianSplatRenderParams(), width=3)


def test_lists_of_any_numbers_are_safe():
    """Numbers that are no splat's are passed over, and lists end where the memory does."""
    g = Graph("lists")
    features = g.input("features", (3, 16))
    lists = np.array([2, -7, 99, 1, -5, 4000, 5, 1], np.int32)
    image = g.splat_blend(features, g.input("lists", (8,), "i32"), 2, 4, 2)
    g.set_outputs([image])
    values = {
        "features": np.random.default_rng(0).uniform(0.1, 0.9, (3, 16)).astype("f4"),
        "lists": lists,
    }
    with darner.build_inference_session(g, device="cpu") as session:
        (found,) = session.run(values).values()
    np.testing.assert_allclose(found, darner.run(g, values)[0], rtol=1e-5)
