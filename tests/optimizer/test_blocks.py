"""Regions of a graph: what repeats has one key, and replacing regions never makes a cycle."""

import os
import random
import subprocess
import sys
from graphlib import TopologicalSorter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

import darner
from darner import Graph
from darner.graph.types import TensorType
from darner.optimizer.blocks import partition
from darner.optimizer.runs import Trace, find_runs
from tests.optimizer.deep_models import (
    adam,
    descent,
    encoder_decoder,
    llama,
    model,
    residual,
    stepped,
    trained,
)
from tests.strategies import graphs

DEPTHS = (1, 2, 3, 17, 30, 60)


# --------------------------------------------------------------------------- what always holds


def is_leaf(node):
    return "leaf" in node.op.traits


def carved(graph, region):
    """A region as a graph of its own."""
    result = Graph("carved")
    made = {}
    for k, id in enumerate(region.inputs):
        node = graph.node(id)
        if not is_leaf(node):
            made[id] = result.input(f"value{k}", node.shape, node.dtype)
        elif node.op.name == "constant":
            made[id] = result.insert_like(node, [])
        else:
            made[id] = result.insert_like(node, [], {**node.attrs, "name": f"{node.op.name}{k}"})
    for id in region.nodes:
        node = graph.node(id)
        made[id] = result.insert_like(node, [made[i] for i in node.inputs])
    result.set_outputs([made[region.nodes[k]] for k in region.outputs])
    return result


def outputs_of(graph, region):
    """Positions in one region that something outside it reads."""
    own = set(region.nodes)
    wanted = {node.id for node in (*graph.outputs, *graph.updates.values())}
    return {
        k
        for k, id in enumerate(region.nodes)
        if id in wanted or any(user.id not in own for user in graph.users(id))
    }


def assert_whole(graph, found):
    """Every node but the leaves is in one region, which says truly what crosses its border."""
    owned = [id for region in found.regions for id in region.nodes]
    assert sorted(owned) == [node.id for node in graph.nodes if not is_leaf(node)]
    repeated = sum(len(r.nodes) for rs in found.by_key.values() if len(rs) > 1 for r in rs)
    assert found.coverage == (repeated / len(owned) if owned else 0.0)
    for region in found.regions:
        assert list(region.nodes) == sorted(region.nodes)
        own = set(region.nodes)
        read = [i for id in region.nodes for i in graph.node(id).inputs if i not in own]
        assert list(region.inputs) == list(dict.fromkeys(read))
        assert outputs_of(graph, region) <= set(region.outputs)
        for k in region.outputs:
            assert isinstance(graph.node(region.nodes[k]).type, TensorType)


def assert_keys_exact(graph, found):
    """Regions have one key exactly when they are the same graph, and then share their outputs."""
    texts = {}
    for key, regions in found.by_key.items():
        assert {(r.outputs, r.late) for r in regions} == {(regions[0].outputs, regions[0].late)}
        union = set().union(*(outputs_of(graph, region) for region in regions))
        assert set(regions[0].outputs) == union
        digests = {carved(graph, region).digest() for region in regions}
        assert len(digests) == 1
        assert texts.setdefault(digests.pop(), key) == key


def assert_schedulable(graph, found):
    """Let each output depend on every input that is not late for it: still no cycle."""
    needs = {}
    for region in found.regions:
        late = set(region.late)
        for k in region.outputs:
            allowed = [i for j, i in enumerate(region.inputs) if (j, k) not in late]
            needs[region.nodes[k]] = [i for i in allowed if not is_leaf(graph.node(i))]
    # What crosses is an output of the region it comes from.
    assert {i for wanted in needs.values() for i in wanted} <= needs.keys()
    TopologicalSorter(needs).prepare()


def assert_late_is_true(graph, found):
    """What is made from an output is late for it; what an output is made from is not."""
    for region in found.regions:
        own, late = set(region.nodes), set(region.late)
        for k in region.outputs:
            reached = {region.nodes[k]}
            for node in graph.nodes[region.nodes[k] + 1 :]:
                if node.id not in own and not reached.isdisjoint(node.inputs):
                    reached.add(node.id)
            assert all((j, k) in late for j, i in enumerate(region.inputs) if i in reached - own)
        reads = {}
        for id in region.nodes:
            inputs = graph.node(id).inputs
            reads[id] = frozenset(inputs).union(*(reads.get(i, ()) for i in inputs))
        for j, k in region.late:
            assert k in region.outputs
            assert region.inputs[j] not in reads[region.nodes[k]]


def checked(graph, **options):
    found = partition(graph, **options)
    assert_whole(graph, found)
    assert_schedulable(graph, found)
    assert_late_is_true(graph, found)
    return found


def sizes(found):
    """How many regions of how many nodes each key has."""
    return [(len(regions), len(regions[0].nodes)) for regions in found.by_key.values()]


def region_of(found, id):
    return next(region for region in found.regions if id in region.nodes)


ZOO = {
    "gpt2": lambda: model("gpt2"),
    "unet": lambda: model("unet"),
    "convnet": lambda: model("convnet"),
    "dropout": lambda: llama(4, dropout=True),
    "tied": lambda: llama(4, tied=True),
    "recomputed": lambda: llama(3, recompute=True),
    "every third wider": lambda: llama(7, wide_every=3),
    "encoder and decoder": lambda: encoder_decoder(3),
    "every result": lambda: llama(4, shown=range(4)),
    "one result": lambda: llama(4, shown=[1]),
    "residual": lambda: residual((2, 3, 2)),
    "written out": lambda: darner.expand(llama(3)),
}


@pytest.mark.parametrize("name", ZOO)
def test_a_model_and_its_training_are_cut_legally_and_equal_keys_are_equal_graphs(name):
    graph = ZOO[name]()
    for version in (graph, darner.value_and_grad(graph) if len(graph.outputs) == 1 else graph):
        found = checked(version)
        assert_keys_exact(version, found)


@pytest.mark.slow
@pytest.mark.parametrize("transform", [darner.jvp, darner.hvp])
def test_further_derivatives_are_cut_legally(transform):
    graph = transform(llama(3))
    assert_keys_exact(graph, checked(graph))


@given(graphs(max_steps=12))
def test_random_graphs_are_cut_legally(graph):
    assert_keys_exact(graph, checked(graph))


@pytest.mark.parametrize("seed", range(20))
def test_random_blocks_in_random_order_are_cut_legally(seed):
    """Blocks that read any earlier value: regions that are far from convex."""
    choose = random.Random(seed)
    graph = Graph("tangle")
    values = [graph.input("x", (4,)), graph.input("y", (4,))]
    steps = [
        choose.choice(["add", "mul", "sub", "tanh", "exp"]) for _ in range(choose.randint(3, 12))
    ]
    for _ in range(choose.randint(3, 20)):
        far = choose.choice(values)
        for place, step in enumerate(steps):
            a = values[-1 - place % 2] if place else far
            operands = [a] if step in ("tanh", "exp") else [a, choose.choice(values[-9:])]
            values.append(graph.add_node(step, operands))
    graph.set_outputs(choose.sample(values[2:], 3))
    assert_keys_exact(graph, checked(graph))


def test_a_graph_of_leaves_alone_has_no_regions():
    graph = Graph("still")
    graph.set_outputs([graph.input("x", (3,))])
    found = checked(graph)
    assert found.regions == ()
    assert found.coverage == 0.0


# --------------------------------------------------------------------------- layers


@pytest.mark.parametrize("layers", DEPTHS)
def test_every_layer_of_a_forward_pass_is_one_region(layers):
    found = checked(llama(layers))
    if layers == 1:
        assert len(found.regions) == 1
    else:
        assert sizes(found) == [(1, 1), (layers, 17), (1, 3)]


@pytest.mark.parametrize("layers", DEPTHS)
def test_every_layer_is_one_region_with_its_backward_pass(layers):
    graph = trained(layers)
    found = checked(graph)
    if layers == 1:
        assert len(found.regions) == 1
        return
    assert sizes(found)[:2] == [(1, 1), (layers, 50)]
    assert len(found.by_key) == 4
    for i, region in enumerate(found.regions[1 : layers + 1]):
        # All of a layer's gradients are made where the layer is.
        for name in ("ln1", "q", "k", "v", "o", "ln2", "gate", "up", "down"):
            assert graph.parameters[f"layer{i}.{name}"].id in region.inputs
        names = list(graph.parameters)
        for name in ("q", "k", "v", "gate", "up", "down", "ln1", "ln2"):
            gradient = graph.outputs[1 + names.index(f"layer{i}.{name}")]
            assert region_of(found, gradient.id) is region
    if layers >= 30:
        assert found.coverage >= 0.95


def test_only_the_residual_stream_crosses_between_layers():
    graph = llama(5)
    found = partition(graph)
    layers = found.regions[1:6]
    assert [len(region.outputs) for region in layers] == [1] * 5
    for before, after in pairwise(layers):
        crossing = [i for i in after.inputs if not is_leaf(graph.node(i))]
        assert crossing == [before.nodes[before.outputs[0]]]
        assert graph.node(crossing[0]).op.name == "add"


def test_the_matmuls_that_share_a_norm_share_its_region():
    graph = trained(4)
    found = partition(graph)
    norms = [node for node in graph.nodes if node.op.name == "rms_norm"]
    assert len(norms) == 9
    for norm in norms:
        region = region_of(found, norm.id)
        users = [user.id for user in graph.users(norm)]
        assert set(users) <= set(region.nodes)


def test_a_layer_may_not_compute_its_result_from_the_gradient_that_comes_back():
    graph = trained(3)
    layer = partition(graph).regions[1]
    [(j, k)] = layer.late
    result, gradient = graph.node(layer.nodes[k]), graph.node(layer.inputs[j])
    assert result.op.name == "add"
    assert gradient.type == result.type
    assert gradient.id > result.id


def test_layers_in_groups_of_three_are_regions_of_two_kinds():
    for layers in (12, 13, 14):
        found = checked(trained(layers, wide_every=3))
        wide = layers // 3
        assert sizes(found)[1:3] == [(layers - wide, 50), (wide, 50)]


def test_a_first_layer_without_a_gradient_of_its_input_keeps_its_backward_pass():
    for layers in (3, 6):
        graph = trained(layers, embedded=False)
        found = checked(graph)
        assert sizes(found)[:2] == [(1, 48), (layers - 1, 50)]
        names = list(graph.parameters)
        for name in ("ln1", "q", "down"):
            gradient = graph.outputs[1 + names.index(f"layer0.{name}")]
            assert region_of(found, gradient.id) is found.regions[0]


def test_two_layers_whose_backward_passes_differ_keep_them():
    graph = llama(2)
    trained_names = [name for name in graph.parameters if name != "words"]
    result = darner.value_and_grad(graph, trained_names)
    found = checked(result)
    assert sizes(found)[:3] == [(1, 1), (1, 48), (1, 50)]


def test_layers_that_compute_their_values_again_are_not_joined_to_their_backward_pass():
    found = checked(trained(4, recompute=True))
    assert [count for count, _ in sizes(found)].count(4) == 2


def test_encoder_and_decoder_layers_are_two_kinds():
    found = checked(darner.value_and_grad(encoder_decoder(5)))
    repeated = [size for size in sizes(found) if size[0] > 1]
    assert repeated == [(5, 43), (5, 72)]


def test_residual_blocks_of_a_stage_are_equal_and_those_that_widen_are_not():
    """Seven nodes are a block, where they hand on one value; half a block is none."""
    found = checked(darner.value_and_grad(residual((3, 4, 6))))
    repeated = [size for size in sizes(found) if size[0] > 1]
    assert repeated == [(3, 20), (3, 20), (5, 20)]
    for stages, expected in (((2, 2, 2), [(2, 20)]), ((1, 1, 1), [])):
        found = checked(darner.value_and_grad(residual(stages)))
        assert [size for size in sizes(found) if size[0] > 1] == expected


def test_layers_with_dropout_are_equal_though_their_streams_differ():
    found = checked(trained(4, dropout=True))
    assert (4, 50) in sizes(found)


def test_layers_that_share_their_parameters_are_equal_except_where_gradients_are_summed():
    found = checked(llama(5, tied=True))
    assert sizes(found) == [(1, 1), (5, 17), (1, 3)]
    assert (4, 50) in sizes(checked(trained(5, tied=True)))


def test_a_value_that_one_layer_returns_is_an_output_of_all():
    for shown in ([2], range(5)):
        graph = llama(5, shown=shown)
        assert sizes(checked(graph)) == [(1, 1), (5, 17), (1, 3)]
    # A value from within a layer: the third layer's first norm.
    graph = llama(5)
    inside = [node for node in graph.nodes if node.op.name == "rms_norm"][4]
    graph.set_outputs([*graph.outputs, inside])
    layers = checked(graph).regions[1:6]
    assert {region.outputs for region in layers} == {(0, 16)}


def test_blocks_within_blocks_are_regions_of_a_sensible_size():
    graph = Graph("nested")
    x = graph.input("x", (8, 16)).tanh()
    for i in range(12):
        for j in range(2):
            x = x + (x @ graph.parameter(f"w{i}.{j}", (16, 16))).relu()
        x = x * x.layer_norm().sigmoid()
    graph.set_outputs([x])
    found = checked(graph)
    assert sizes(found) == [(1, 1), (12, 9)]
    chain = Graph("chain")
    x = chain.input("x", (8, 16)).tanh()
    for i in range(40):
        x = x + (x @ chain.parameter(f"w{i}", (16, 16))).relu()
    chain.set_outputs([x])
    repeated = [size for size in sizes(checked(chain)) if size[0] > 1]
    assert len(repeated) == 1
    assert 8 <= repeated[0][1] <= 16
    assert repeated[0][0] * repeated[0][1] >= 108


# --------------------------------------------------------------------------- updates


def test_equal_updates_are_found_however_small():
    graph = Graph("averages")
    for i in range(20):
        parameter, average = (
            graph.parameter(f"w{i}", (4, 3 + i % 2)),
            graph.state(f"a{i}", (4, 3 + i % 2)),
        )
        graph.set_update(average, average + 0.1 * (parameter - average))
    graph.set_outputs([])
    found = checked(graph)
    assert found.coverage >= 0.8
    assert len(found.by_key) <= 3
    assert_keys_exact(graph, found)


@pytest.mark.parametrize("shuffle", [None, 1])
@pytest.mark.parametrize(("update", "length"), [(descent, 2), (adam, 12)])
def test_updates_of_parameters_repeat_and_leave_the_layers_alone(update, length, shuffle):
    graph = stepped(llama(6), update, shuffle)
    found = checked(graph)
    assert_keys_exact(graph, found)
    assert (6, 50) in sizes(found)
    # 58 parameters of six shapes.
    assert found.coverage >= 0.9
    assert all(size == 50 or size <= 9 * length for count, size in sizes(found) if count > 1)


def test_updates_inside_a_forward_pass_do_not_cut_it():
    """Running statistics are updated among the layers, which stay one region."""
    graph = model("convnet")
    found = checked(graph)
    convolutions = [node.id for node in graph.nodes if node.op.name.startswith("conv")]
    assert len({region_of(found, id).nodes for id in convolutions}) == 1


# --------------------------------------------------------------------------- keys


def blocks(second, first=lambda graph, x, i: x * 2.0, kinds=("parameter", "parameter"), tag=None):
    """Two blocks on a parameter each, which end in ``first`` and ``second``."""
    graph = Graph("two")
    x = graph.input("x", (8, 8)).tanh()
    for i, (kind, step) in enumerate(zip(kinds, (first, second), strict=True)):
        x = x @ getattr(graph, kind)(f"w{i}", (8, 8))
        x = (x.tanh() + x.sigmoid()).relu().exp() - x
        x = step(graph, x, i).layer_norm()
    graph.set_outputs([x])
    found = checked(graph, **({} if tag is None else {"tag": tag}))
    if tag is None:
        assert_keys_exact(graph, found)
    return found


def test_blocks_are_equal_when_everything_about_them_is():
    assert sizes(blocks(lambda graph, x, i: x * 2.0)) == [(1, 1), (2, 9)]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda g, x, i: x * 0.0, lambda g, x, i: x * -0.0),
        (lambda g, x, i: x.clip(0.0, 1.0), lambda g, x, i: x.clip(-0.0, 1.0)),
        (lambda g, x, i: x * 2.0, lambda g, x, i: x * 3.0),
        (lambda g, x, i: x.sum(0, keepdims=True), lambda g, x, i: x.sum(1, keepdims=True)),
        (lambda g, x, i: x - x.T, lambda g, x, i: x.T - x),
        (lambda g, x, i: x * g.input("a", ()), lambda g, x, i: x * g.state("b", ())),
        (lambda g, x, i: x * g.input("a", ()), lambda g, x, i: x * g.input("b", (1, 8))),
    ],
)
def test_blocks_differ_when_an_attribute_a_constant_a_wire_or_a_kind_does(first, second):
    assert blocks(first, first=lambda g, x, i: first(Renamed(g, i), x, i)).regions
    found = blocks(second, first)
    assert found.coverage == 0.0


class Renamed:
    """Makes the leaves of two equal blocks, whose names must differ."""

    def __init__(self, graph, i):
        self.graph, self.i = graph, i

    def __getattr__(self, kind):
        return lambda name, shape: getattr(self.graph, kind)(f"{name}.{self.i}", shape)


def test_blocks_differ_when_a_parameter_is_a_state_or_has_another_tag():
    def same(graph, x, i):
        return x * 2.0

    assert blocks(same).coverage > 0.8
    assert blocks(same, kinds=("parameter", "state")).coverage == 0.0
    assert blocks(same, tag=lambda leaf: leaf.op.name).coverage > 0.8
    assert blocks(same, tag=lambda leaf: leaf.name).coverage == 0.0


def test_keys_of_different_graphs_can_be_compared():
    assert partition(llama(3)).regions[1].key == partition(llama(5)).regions[2].key
    assert partition(llama(3)).regions[1].key != partition(trained(3)).regions[1].key


def fingerprint():
    """Everything about the partitions of two graphs, as text."""
    found = [
        partition(stepped(llama(4, dropout=True), adam, 3)),
        partition(trained(7, wide_every=3)),
    ]
    return repr([(r.nodes, r.inputs, r.outputs, r.late, r.key) for p in found for r in p.regions])


@pytest.mark.slow
def test_a_partition_is_the_same_in_every_process():
    script = "from tests.optimizer.test_blocks import fingerprint; print(fingerprint())"
    root = Path(__file__).parents[2]
    here = fingerprint()
    for seed in ("0", "4321"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        result = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
            cwd=root,
            env=environment,
        )
        assert result.stdout.strip() == here


# --------------------------------------------------------------------------- runs


def runs_of(exact, loose=None, reads=()):
    reads = sorted(reads, key=lambda read: read[1])
    trace = Trace(
        np.array(exact, np.int64),
        np.array(exact if loose is None else loose, np.int64),
        np.array([a for a, _ in reads], np.int64),
        np.array([b for _, b in reads], np.int64),
    )
    return [(run.start, run.period, run.count) for run in find_runs(trace)]


def test_the_smallest_period_of_a_sensible_size_is_found():
    assert runs_of([*range(9)] * 6) == [(0, 9, 6)]
    assert runs_of([99, *[*range(12)] * 4, 98, 97]) == [(1, 12, 4)]
    chain = [(i, i + 1) for i in range(39)]
    assert runs_of([0, 1] * 20, reads=chain) == [(0, 8, 5)]
    assert runs_of([0, 1, 2] * 14, reads=chain) == [(0, 9, 4)]
    assert runs_of([0, 1, 2, 0, 1, 3, 4] * 5, reads=chain[:34]) == [(0, 7, 5)]


def test_two_runs_with_different_periods_are_found():
    trace = [*[*range(10)] * 5, 50, 51, *[*range(20, 33)] * 4, 52]
    assert runs_of(trace) == [(0, 10, 5), (52, 13, 4)]


def test_a_run_is_cut_where_the_fewest_values_cross():
    # Each block reads all its nodes at its end; the streak starts within one.
    labels = [*range(4, 10), *[*range(10)] * 4, *range(4)]
    reads = [(i, i + 1) for i in range(len(labels) - 1)]
    reads += [(start + a, start + 9) for start in range(6, 46, 10) for a in range(8)]
    assert runs_of(labels, reads=reads) == [(6, 10, 4)]


def test_nothing_repeats_in_a_sequence_of_different_things():
    assert runs_of(range(300)) == []
    assert runs_of([]) == []
    assert runs_of([1]) == []


def test_the_rest_may_be_one_region():
    """What occurs once is one region then, and any choice of replacements is still a graph."""
    for layers in (2, 5):
        graph = trained(layers)
        found = partition(graph, rest_as_one=True)
        assert sorted(count for count, _ in sizes(found)) == [1, layers]
        assert found.coverage == partition(graph).coverage
        assert_schedulable(graph, found)
