"""A graph at a stage: hir, mir, lir."""

import numpy as np
import pytest

import darner
from darner import ArgumentError, Graph, GraphModule, VerifyError


def build(g):
    x = g.input("x", (2, 3))
    x.exp()  # nothing needs it
    return [x.tanh(label="out")]


def test_define_makes_a_hir_module_from_a_function():
    module = Graph.define("model", build)
    assert isinstance(module, GraphModule)
    assert (module.name, module.stage()) == ("model", "hir")
    assert [node.op.name for node in module.graph.nodes] == ["input", "exp", "tanh"]
    assert module.into_graph() is module.graph
    assert module.graph.outputs[0].label == "out"


def test_define_accepts_one_node_or_ids():
    assert len(Graph.define("one", lambda g: g.input("x", (2,))).graph.outputs) == 1
    assert len(Graph.define("ids", lambda g: [g.input("x", (2,)).id]).graph.outputs) == 1
    with pytest.raises(ArgumentError, match="set_outputs: a node's id is an integer, got None"):
        Graph.define("none", lambda g: None)


def test_lowering_drops_dead_nodes_and_verifies():
    module = Graph.define("model", build)
    lowered = module.lower()
    assert (lowered.stage(), module.stage()) == ("mir", "hir")
    assert [node.op.name for node in lowered.graph.nodes] == ["input", "tanh"]
    assert Graph.from_hir(module) == lowered.graph
    values = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(darner.run(lowered.graph, {"x": values})[0], np.tanh(values))
    with pytest.raises(ArgumentError, match="lower: module 'model' is at stage mir; only hir"):
        lowered.lower()


def test_lowering_a_broken_graph_is_refused():
    module = Graph.define("model", build)
    object.__setattr__(module.graph.nodes[2], "slots", ("y",))
    with pytest.raises((VerifyError, ArgumentError), match="tanh has no operand 'y'"):
        module.lower()


def test_an_empty_module_can_be_filled():
    module = Graph.hir("later")
    assert module.graph.is_empty()
    x = module.graph.input("x", (2,))
    module.set_outputs([x.relu()])
    assert len(module.lower().graph) == 2
    assert Graph.hir().name == "graph"


def test_a_graph_is_a_mir_module():
    g = Graph("g")
    g.set_outputs([g.input("x", (2,))])
    assert g.module().stage() == g.to_mir().stage() == "mir"
    assert g.module().graph is g


def test_modules_print_their_stage():
    module = Graph.define("model", build)
    assert str(module) == f"stage hir\n{module.graph}"
    assert (
        module.inspect() == Graph.inspect_module(module) == f"stage hir\n{module.graph.inspect()}"
    )
    assert module.inspect().splitlines()[1].startswith("graph @model (3 nodes, 1 output")


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda m: Graph.from_lir(m), "from_lir: expected a module at stage lir, got hir"),
        (lambda m: Graph.from_hir(m.lower()), "from_hir: expected a module at stage hir, got mir"),
        (lambda m: Graph.from_hir(m.graph), "from_hir: expected a module at stage hir, got Graph"),
        (lambda m: GraphModule(m.graph, "xir"), "a stage is one of hir, mir, lir, not 'xir'"),
    ],
)
def test_wrong_stages_are_refused(call, text):
    with pytest.raises(ArgumentError) as caught:
        call(Graph.define("model", build))
    assert text in str(caught.value)


def test_a_lir_module_gives_its_graph_back():
    g = Graph("g")
    assert Graph.from_lir(GraphModule(g, "lir")) is g
