"""Pictures of splats and their gradients on a GPU, beside those of the CPU."""

import numpy as np
import pytest

import darner
from darner import GaussianSplatInputs, GaussianSplatRenderParams, Graph
from tests.gpu import needs_gpu
from tests.session.test_splats import CAMERA, gradients_of, random_scene, scene_of

pytestmark = needs_gpu


@pytest.mark.parametrize(("tile", "options"), [(16, {}), (5, {"max_splat_steps": 4})])
def test_picture_and_gradient_are_those_of_the_cpu(tile, options):
    params = GaussianSplatRenderParams(
        width=33, height=26, tile_size=tile, max_list_entries=6000, **options
    )
    g, given = gradients_of(random_scene(70), params)
    found = []
    for device in ("cpu", "gpu"):
        with darner.build_inference_session(g, device=device) as session:
            found.append([np.array(value) for value in session.run(given).values()])
            kinds = {name for spec in session.plan().specs.values() for name in spec.ops}
        assert {"splat_lists", "splat_blend", "splat_blend_backward"} <= kinds
    for ours, theirs in zip(*found, strict=True):
        scale = np.abs(theirs).max(initial=1e-6)
        # A splat that counts for one and not for the other, by rounding, is a pixel's.
        assert np.quantile(np.abs(ours - theirs), 0.98) < 1e-4 * scale if ours.size else True
        assert np.linalg.norm(ours - theirs) <= 0.01 * np.linalg.norm(theirs)


def test_too_many_entries_are_an_error_on_a_gpu_too():
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
    with darner.build_inference_session(g, device="gpu") as session:
        session.run(scene)
        before = float(session.state()["seen"])
        with pytest.raises(darner.RunError, match="there are 16 pairs of a tile") as caught:
            session.run(large)
        assert float(session.state()["seen"]) == before > 0.5
    assert "portrait" in str(caught.value)
    assert "test_splats.py" in str(caught.value)
