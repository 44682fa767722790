"""A graph at a stage: hir, mir, lir."""

import copy
import json
import pickle

import numpy as np
import pytest

import darner
from darner import (
    ArgumentError,
    DimBinding,
    FormatError,
    Graph,
    GraphModule,
    HirModule,
    LowerError,
    MirModule,
    ShapeError,
    UnknownNameError,
)


def build(g):
    x = g.input("x", (2, 3))
    x.exp()  # nothing needs it
    return [x.tanh(label="out")]


def test_define_makes_a_hir_module_from_a_function():
    module = Graph.define("model", build)
    assert isinstance(module, HirModule)
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


def test_lowering_a_broken_graph_is_refused():
    module = Graph.define("model", build)
    object.__setattr__(module.graph.nodes[2], "slots", ("y",))
    with pytest.raises(LowerError, match="tanh has no operand 'y'"):
        module.lower()
    with pytest.raises(LowerError, match="tanh has no operand 'y'"):
        Graph.try_from(module)


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
    assert repr(module) == "<HirModule 'model': 3 nodes, 1 output>"
    assert repr(module.lower()) == "<MirModule 'model': 2 nodes, 1 output>"
    assert (
        module.inspect() == Graph.inspect_module(module) == f"stage hir\n{module.graph.inspect()}"
    )
    assert module.inspect().splitlines()[1].startswith("graph @model (3 nodes, 1 output")


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda m: Graph.from_lir(m), "from_lir: expected a module at stage lir, got hir"),
        (lambda m: Graph.from_mir(m), "from_mir: expected a module at stage mir, got hir"),
        (lambda m: Graph.from_hir(m.lower()), "from_hir: expected a module at stage hir, got mir"),
        (lambda m: Graph.from_hir(m.graph), "from_hir: expected a module at stage hir, got Graph"),
        (lambda m: Graph.try_from(m.graph), "try_from: expected a module, got Graph"),
        (lambda m: Graph.inspect_module(3), "inspect_module: expected a module, got int"),
    ],
)
def test_wrong_stages_are_refused(call, text):
    with pytest.raises(LowerError) as caught:
        call(Graph.define("model", build))
    assert text in str(caught.value)
    assert "test_module.py" in str(caught.value)


def test_a_module_without_a_stage_or_a_graph_is_refused():
    with pytest.raises(ArgumentError, match=r"a module is at a stage; write HirModule\(graph\)"):
        GraphModule(Graph("g"))
    with pytest.raises(ArgumentError, match="MirModule: a Graph is needed, got int"):
        MirModule(3)
    with pytest.raises(ArgumentError, match="lowering from hir takes no level"):
        Graph.define("model", build).lower(level=0)
    with pytest.raises(ArgumentError, match=r"got HirModule; module.into_graph\(\) gives it"):
        darner.grad(Graph.define("model", build))


def test_graphs_come_from_modules_of_every_stage():
    module = Graph.define("model", build)
    lowered = module.lower()
    assert Graph.from_mir(lowered) is lowered.graph is Graph.try_from(lowered)
    assert Graph.try_from(module) == lowered.graph


def test_modules_are_saved_at_their_stage():
    module = Graph.define("model", build)
    for one in (module, module.lower()):
        found = GraphModule.from_json(one.to_json())
        assert type(found) is type(one)
        assert found == one
        assert hash(found) == hash(one)
        assert (found.name, found.inspect()) == (one.name, one.inspect())
        assert copy.deepcopy(one) == one
        assert pickle.loads(pickle.dumps(one)) == one
    assert module != module.lower()
    assert module.lower() != MirModule(module.graph)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"format": "darner.graph"}, "the format is 'darner.graph', not 'darner.module'"),
        ({"version": 2}, "version 2 of modules is not known here"),
        ({"stage": "xir"}, "a stage is one of hir, mir, lir, not 'xir'"),
        ({"stage": ["hir"]}, "a stage is one of hir, mir, lir, not ['hir']"),
        ({"graph": None}, "the document should be an object"),
        ({"graph": {}}, "the field 'format' is missing"),
    ],
)
def test_documents_of_something_else_are_refused(change, text):
    document = {**json.loads(Graph.define("model", build).to_json()), **change}
    with pytest.raises(FormatError) as caught:
        GraphModule.from_json(json.dumps(document))
    assert text in str(caught.value)


def test_what_is_no_document_is_refused():
    for text in ("", "[1]", "3", "[" * 100_000, None):
        with pytest.raises(FormatError):
            GraphModule.from_json(text)


# ------------------------------------------------------------- sizes


def rows():
    graph = Graph("rows")
    graph.set_outputs([graph.input("x", ("batch", "seq", 4)).sum(-1)])
    return graph


def test_one_binding_serves_graphs_that_have_a_part_of_its_symbols():
    sizes = DimBinding.from_pairs([("batch", 2), (darner.symbol("seq"), 3)]).set("heads", 8)
    assert dict(sizes) == {"batch": 2, "seq": 3, "heads": 8}
    assert repr(sizes) == "DimBinding(batch=2, seq=3, heads=8)"
    assert rows().bind(sizes).outputs[0].shape == (2, 3)
    assert rows().bind(DimBinding.new().set("batch", 5)).dynamic_symbols() == ["seq"]
    assert rows().bind(sizes, seq=7).outputs[0].shape == (2, 7)
    assert rows().bind(DimBinding(seq="2*batch")).outputs[0].shape[1] == 2 * darner.symbol("batch")
    with pytest.raises(UnknownNameError, match="has no symbol 'heads'"):
        rows().bind(dict(sizes))


def test_a_binding_checks_names_and_sizes():
    with pytest.raises(ShapeError, match="'2x' is not a name for a dimension"):
        DimBinding({"2x": 3})
    with pytest.raises(ShapeError, match="size -2 is negative"):
        DimBinding(seq=-2)
    with pytest.raises(ArgumentError, match="sizes are given by name, got list"):
        DimBinding([("seq", 3)])


def test_modules_bind_sizes_at_their_stage():
    module = rows().module().bind(DimBinding(batch=2, seq=3))
    assert isinstance(module, MirModule)
    assert module.graph.outputs[0].shape == (2, 3)
    assert HirModule(rows()).bind(batch=1).graph.dynamic_symbols() == ["seq"]


def test_a_graph_has_a_clone():
    graph = rows()
    other = graph.clone()
    assert other == graph
    other.parameter("w", (2,))
    assert (len(graph), len(other)) == (2, 3)
    assert graph.clone(name="other").name == "other"
