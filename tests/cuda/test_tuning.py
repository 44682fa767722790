"""Tuning on the emulated device: the ways to write a product are timed, one is chosen and remembered, and programs are written so."""

import numpy as np

import darner
from darner.backends.base.cache import ObjectCache
from darner.backends.base.keys import kept_key
from darner.backends.base.tuning import keep_choices
from darner.backends.cuda import kernels
from darner.backends.cuda.opening import opened
from darner.backends.cuda.tuning import known_choices, tune

DEVICE = "cuda:emulated"


def graph():
    g = darner.Graph("product")
    x, w = g.input("x", (40, 300)), g.parameter("w", (300, 40), init="normal(1)")
    g.set_outputs([(x @ w).relu()])
    return g


def test_ways_to_write_a_product_are_timed_and_the_choice_is_remembered(tmp_path):
    device, cache = opened(DEVICE), ObjectCache(tmp_path)
    x = np.random.default_rng(0).standard_normal((40, 300)).astype(np.float32)
    with darner.build(graph(), device=DEVICE, mode="infer", tune=True, cache=tmp_path) as session:
        (found,) = session.run({"x": x}).values()
        wanted = np.maximum(x @ session.read_param("w"), 0)
        plan = session.plan()
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-3)
    (digest,) = known_choices(device.machine, cache)
    assert digest in plan.specs
    told = []
    again = tune(plan, device, progress=lambda *about: told.append(about))
    assert len(again.times[digest]) > 1
    assert told[0][:2] == (0, len(plan.specs))
    assert again.choices[digest] in str(again)
    assert tune(plan, device, known=again.choices).times == {}


def test_programs_are_written_as_chosen(tmp_path, monkeypatch):
    device, cache = opened(DEVICE), ObjectCache(tmp_path)
    with darner.build(graph(), device=DEVICE, mode="infer", cache=None) as session:
        plan = session.plan()
    (digest,) = [key for key, spec in plan.specs.items() if spec.kind == "contract"]
    spec = plan.specs[digest]
    template = kernels.template_of(spec, device.machine)
    last = list(template.variants(spec, device.machine))[-1]
    keep_choices(kept_key("tuned", device.machine), {digest: last}, cache)
    asked = []
    common = kernels.written

    def written(spec, machine, choice=None):
        asked.append(choice)
        return common(spec, machine, choice)

    monkeypatch.setattr(kernels, "written", written)
    with darner.build(graph(), device=DEVICE, mode="infer", cache=tmp_path) as session:
        session.run({"x": np.ones((40, 300), np.float32)})
    assert asked == [last]
    # What is not known here any more is written as expected.
    assert common(spec, device.machine, "no such way") == common(spec, device.machine)
