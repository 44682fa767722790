"""The zoo keeps its promise: both spellings of everything compute the same numbers, and primitives are primitive."""

import numpy as np
import pytest

import darner
from darner import Graph
from tests.zoo import (
    MODEL_VARIANTS,
    MODELS,
    PIECES,
    SMOLLM2,
    SPELLINGS,
    ZOO,
    llama,
    mlp_step,
    run,
    step,
    trained,
    values,
)

SPELLED_PIECES = [(name, i) for name, (count, _, _) in PIECES.items() for i in range(count)]
SPELLED_MODELS = [(name, i) for name in MODELS for i in range(MODEL_VARIANTS)]


def assert_same(found, wanted, limit=1e-12):
    """Equal to a share of the largest of all numbers: a gradient that is 0 in exact arithmetic has no scale of its own."""
    scale = max(float(np.abs(array).max()) for array in wanted)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=limit * scale)


def composites(graph):
    return [node.op.name for node in graph.nodes if node.op.is_composite]


# --------------------------------------------------------------------------- pieces


@pytest.mark.parametrize(("piece", "variant"), SPELLED_PIECES)
def test_a_piece_in_primitives_computes_what_the_composite_does(piece, variant):
    _, in_composites, in_primitives = PIECES[piece]
    graph = in_primitives(variant, dtype="f64")
    assert composites(graph) == []
    assert_same(run(graph), run(in_composites(dtype="f64")))


@pytest.mark.parametrize(("piece", "variant"), SPELLED_PIECES)
def test_a_piece_in_primitives_has_the_gradients_of_the_composite(piece, variant):
    _, in_composites, in_primitives = PIECES[piece]
    whole, parts = in_composites(dtype="f64"), in_primitives(variant, dtype="f64")
    leaves = [name for name, leaf in whole.inputs.items() if leaf.dtype.is_float]
    assert_same(run(darner.vjp(parts, leaves)), run(darner.vjp(whole, leaves)))


@pytest.mark.parametrize("piece", PIECES)
def test_spellings_of_a_piece_are_different_graphs(piece):
    count, in_composites, in_primitives = PIECES[piece]
    assert count >= 2
    graphs = [in_composites(), *(in_primitives(i) for i in range(count))]
    assert len({graph.digest() for graph in graphs}) == count + 1
    assert composites(graphs[0])


@pytest.mark.parametrize(("piece", "variant"), SPELLED_PIECES)
def test_a_piece_in_f32_agrees_when_its_floats_are_widened(piece, variant):
    # Constants that primitives hold are rounded to f32 first.
    _, in_composites, in_primitives = PIECES[piece]
    found = run(darner.in_float64(in_primitives(variant)))
    assert_same(found, run(darner.in_float64(in_composites())), 1e-6)


@pytest.mark.parametrize("variant", range(PIECES["cross_entropy_ignoring"][0]))
def test_labels_to_ignore_count_for_nothing_in_either_spelling(variant):
    _, in_composites, in_primitives = PIECES["cross_entropy_ignoring"]
    given = dict(values(in_composites("f64")).inputs)
    everything = darner.run(in_composites("f64"), given)
    given["labels"][[1, 4]] = -100
    wanted = darner.run(in_composites("f64"), given)
    assert abs(everything[0] - wanted[0]) > 1e-3
    assert_same(darner.run(in_primitives(variant, "f64"), given), wanted)


# --------------------------------------------------------------------------- models


@pytest.mark.parametrize("loss", [False, True])
@pytest.mark.parametrize(("model", "variant"), SPELLED_MODELS)
def test_a_model_in_primitives_computes_what_the_composites_do(model, variant, loss):
    make = MODELS[model]
    wanted = run(make(loss=loss, dtype="f64"))
    found = run(make(spelling="primitive", variant=variant, loss=loss, dtype="f64"))
    assert_same(found, wanted)


@pytest.mark.parametrize(("model", "variant"), SPELLED_MODELS)
def test_a_model_in_primitives_has_the_gradients_of_the_composites(model, variant):
    make = MODELS[model]
    wanted = run(trained(make, dtype="f64"))
    assert len(wanted) > len(make().parameters)
    assert_same(run(trained(make, spelling="primitive", variant=variant, dtype="f64")), wanted)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_step_of_training_in_primitives_updates_as_the_composites_do(optimizer):
    found, wanted = (
        run(mlp_step(optimizer=optimizer, spelling=spelling, dtype="f64")) for spelling in SPELLINGS
    )
    assert_same(found, wanted)


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_steps_of_training_lower_the_loss(optimizer, spelling):
    graph = mlp_step(optimizer=optimizer, spelling=spelling)
    inputs, params, _ = values(graph)
    state = {}
    losses = []
    for _ in range(8):
        losses += darner.run(graph, inputs, params, state=state)
        params = {name: state[name] for name in params}
    assert losses[-1] < 0.9 * losses[0]


def test_any_model_with_a_loss_makes_a_step_of_training():
    graph = step(llama(spelling="primitive"), optimizer="adam")
    assert composites(graph) == []
    assert {leaf.name for leaf in graph.updates} == {*graph.parameters, *graph.states}


# --------------------------------------------------------------------------- the list


@pytest.mark.parametrize("name", ZOO)
def test_a_graph_of_the_zoo_is_whole_lean_and_finite(name):
    graph = ZOO[name]().verify()
    assert bool(composites(graph)) == ("composite" in name)
    assert len(graph) == len(graph.toposort()), "some node is not used"
    for array in run(graph):
        assert np.isfinite(array).all()


def test_the_zoo_holds_every_model_in_both_spellings_for_both_uses():
    for model in MODELS:
        for use in ("", ", training"):
            assert f"{model}, composite{use}" in ZOO
            for variant in range(MODEL_VARIANTS):
                assert f"{model}, primitive {variant}{use}" in ZOO


@pytest.mark.parametrize("model", MODELS)
def test_variants_of_a_model_are_different_graphs_of_the_same_leaves(model):
    graphs = [MODELS[model](spelling="primitive", variant=i) for i in range(MODEL_VARIANTS)]
    assert len({graph.digest() for graph in graphs}) == MODEL_VARIANTS
    leaves = [
        {name: leaf.type for name, leaf in {**graph.inputs, **graph.parameters}.items()}
        for graph in (*graphs, MODELS[model]())
    ]
    assert all(found == leaves[0] for found in leaves)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_llama_has_the_size_of_smollm2_when_asked(spelling):
    graph = llama(spelling=spelling, **SMOLLM2)
    sizes = [leaf.type.size for leaf in graph.parameters.values()]
    assert sum(sizes) == 134_515_008
    # Every layer adds the same nodes.
    few = [len(llama(n, spelling=spelling)) for n in (1, 2)]
    assert len(graph) == few[0] + 29 * (few[1] - few[0])


def test_an_unknown_spelling_is_refused():
    with pytest.raises(ValueError, match="'composites'"):
        llama(spelling="composites")


# --------------------------------------------------------------------------- values


@pytest.mark.parametrize("variant", range(MODEL_VARIANTS))
def test_values_are_the_same_for_every_spelling_and_for_gradients(variant):
    wanted = values(llama(), 3)
    graph = llama(spelling="primitive", variant=variant)
    for found in (values(graph, 3), values(darner.value_and_grad(graph), 3)):
        for kind in ("inputs", "params"):
            ours, theirs = getattr(found, kind), getattr(wanted, kind)
            assert ours.keys() == theirs.keys()
            for name, array in ours.items():
                np.testing.assert_array_equal(array, theirs[name])


def test_values_differ_by_seed():
    one, two = (values(llama(), seed).params["words"] for seed in (0, 1))
    assert np.abs(one - two).max() > 0.1


def test_integers_span_what_they_index():
    found = values(llama(tokens=400)).inputs
    for name in ("tokens", "labels"):
        assert found[name].min() == 0
        assert found[name].max() == 31


def test_masks_leave_the_first_place_and_hide_some():
    graph = Graph()
    graph.set_outputs([graph.input("mask", (50, 1, 6), "bool")])
    mask = values(graph).inputs["mask"]
    assert mask[..., 0].all()
    assert not mask.all()
    assert (mask[..., 1:] <= mask[..., :-1]).all()


def test_run_gives_outputs_and_then_updates_by_name():
    graph = mlp_step(optimizer="sgd", layers=1)
    loss, *updated = run(graph)
    assert loss.shape == (1,)
    assert [array.shape for array in updated] == [(5,), (5,), (12, 5), (12, 5)]
