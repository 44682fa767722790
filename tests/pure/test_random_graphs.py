"""Properties of any graph: exact round trips, transforms that keep the results, no limit on size."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import darner
from darner import DarnerError, Graph, Node
from darner.graph.op import OPS
from tests.conformance import examples
from tests.strategies import built_graphs, graphs, snapshot

several = settings(
    max_examples=examples(50), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
many = settings(several, max_examples=examples(150))


def run(built, graph=None, **options):
    """Outputs and states after a run, as bytes; or the rule that stopped it."""
    state = dict(built.states)
    try:
        outputs = darner.run(
            built.graph if graph is None else graph,
            built.inputs,
            built.params,
            state=state,
            **options,
        )
    except DarnerError as error:
        return type(error).__name__
    values = [*outputs, *(state[name] for name in sorted(state))]
    return [(value.dtype, value.shape, value.tobytes()) for value in values]


def check_round_trips(graph):
    before = snapshot(graph)
    text = graph.to_text()
    from_text = Graph.from_text(text)
    assert from_text == graph
    assert from_text.to_text() == text
    assert str(from_text) == str(graph)
    assert [node.label for node in from_text.nodes] == [node.label for node in graph.nodes]
    document = graph.to_json()
    from_json = Graph.from_json(document)
    assert from_json == graph
    assert from_json.to_json() == document
    assert from_json.to_text() == text
    assert from_json.digest() == from_text.digest() == graph.digest()
    assert [(n.scope, n.source) for n in from_json.nodes] == [
        (n.scope, n.source) for n in graph.nodes
    ]
    from_json.verify()
    from_text.verify()
    assert snapshot(graph) == before


def check_results(built):
    graph = built.graph
    wanted = run(built)
    for again in (
        graph.copy(),
        graph.toposort(),
        darner.expand(graph),
        Graph.from_json(graph.to_json()),
        Graph.from_text(graph.to_text()),
    ):
        again.verify()
        assert run(built, again) == wanted
    symbols = graph.dynamic_symbols()
    bound = graph.bind({name: built.sizes[name] for name in symbols})
    assert not bound.has_dynamic_dims()
    if isinstance(wanted, list):
        assert run(built, bound) == wanted


@several
@given(graphs())
def test_round_trips_are_exact(graph):
    check_round_trips(graph)


@several
@given(built_graphs())
def test_copies_and_transforms_keep_the_results(built):
    check_results(built)


@pytest.mark.slow
@many
@given(built_graphs(max_steps=10))
def test_larger_graphs_round_trip_and_keep_their_results(built):
    check_round_trips(built.graph)
    check_results(built)


@several
@given(built_graphs())
def test_float64_runs_where_the_graph_runs(built):
    wanted, wide = run(built), run(built, float64=True)
    assert isinstance(wide, list) or isinstance(wanted, str)
    if isinstance(wanted, list):
        assert [shape for _, shape, _ in wide] == [shape for _, shape, _ in wanted]


@several
@given(graphs())
def test_users_and_orders_agree_with_the_operands(graph):
    for node in graph.nodes:
        readers = [other for other in graph.nodes if node.id in other.inputs]
        assert graph.users(node) == readers
        assert graph.use_count(node) == len(readers)
        assert all(operand.id < node.id for operand in node.operands)
    assert list(graph.reverse_topo()) == list(graph.nodes)[::-1]


@several
@given(graphs())
def test_toposort_keeps_exactly_what_is_needed(graph):
    needed = set()
    waiting: list[Node] = [*graph.outputs, *graph.updates.values()]
    while waiting:
        node = waiting.pop()
        if node.id not in needed:
            needed.add(node.id)
            waiting.extend(node.operands)
    leaves = {*graph.inputs.values(), *graph.parameters.values(), *graph.states.values()}
    wanted = needed | {leaf.id for leaf in leaves}
    tidy = graph.toposort()
    assert [node.label for node in tidy.nodes] == [
        node.label for node in graph.nodes if node.id in wanted
    ]
    assert tidy.toposort() == tidy


@several
@given(graphs(), st.data())
def test_rewiring_to_an_equal_type_is_legal_and_can_be_undone(graph, data):
    readers = [node for node in graph.nodes if node.inputs]
    if not readers:
        return
    before = snapshot(graph)
    node = data.draw(st.sampled_from(readers))
    old = node.inputs
    i = data.draw(st.integers(0, len(old) - 1))
    same = [n for n in graph.nodes[: node.id] if n.type == graph.node(old[i]).type]
    new = [*old[:i], data.draw(st.sampled_from(same)).id, *old[i + 1 :]]
    graph.set_inputs(node, new)
    graph.verify()
    assert node.inputs == tuple(new)
    graph.set_inputs(node, old)
    assert snapshot(graph) == before


@several
@given(graphs(), st.data())
def test_rewiring_to_anything_is_legal_or_changes_nothing(graph, data):
    readers = [node for node in graph.nodes if node.inputs]
    if not readers:
        return
    before = snapshot(graph)
    node = data.draw(st.sampled_from(readers))
    ids = st.integers(-1, len(graph))
    new = data.draw(st.lists(ids, min_size=len(node.inputs), max_size=len(node.inputs)))
    try:
        graph.set_inputs(node, new)
    except DarnerError:
        assert snapshot(graph) == before
    graph.verify()


def test_the_strategy_reaches_most_families_of_ops():
    seen = set()

    @settings(several, max_examples=100, database=None, derandomize=True)
    @given(graphs(max_steps=8))
    def collect(graph):
        seen.update(node.op.family for node in graph.nodes)

    collect()
    families = {op.family for op in OPS.values() if op.builtin and op.samples}
    assert len(families & seen) >= 0.6 * len(families)


# --------------------------------------------------------------------------- size

COUNT = 20_000


def long_chain(count=COUNT):
    """A chain far deeper than Python's stack."""
    g = Graph("long")
    x = g.input("x", ("n",))
    with g.scope("body"):
        for i in range(count // 4):
            y = x * 0.5 + 1.0
            x = g.maximum(x, -y, label=f"step{i}")
    g.set_outputs([x])
    return g


@pytest.mark.slow
def test_a_graph_of_many_nodes_meets_no_limit_from_end_to_end():
    g = long_chain()
    assert len(g) > 0.99 * COUNT
    g.verify()
    text, document = g.to_text(), g.to_json()
    assert Graph.from_text(text).to_text() == text
    assert Graph.from_json(document) == g
    assert g.toposort() == g
    bound = g.bind(n=2)
    assert len(darner.expand(bound)) == len(g)
    values = np.float32([1.0, -1.0])
    wanted = values
    for _ in range(COUNT // 4):
        wanted = np.maximum(wanted, -(wanted * np.float32(0.5) + np.float32(1.0)))
    np.testing.assert_array_equal(darner.run(g, {"x": values})[0], wanted)
    assert len(g.inspect().splitlines()) == len(g) + 3


def test_an_edit_at_the_start_reaches_the_end_of_a_long_chain():
    g = long_chain(4000)
    g.node_mut(0).set_attrs(shape=(3, 1))
    assert g.outputs[0].shape == (3, 1)
    g.verify()


@pytest.mark.parametrize("count", [100, 1000])
def test_building_asks_each_shape_rule_a_fixed_number_of_questions(count, monkeypatch):
    asked = []
    for name in ("mul", "maximum"):
        op = OPS[name]
        op._memo.clear()
        infer = op.infer
        monkeypatch.setattr(op, "infer", lambda f=infer, **types: asked.append(1) or f(**types))
    g = Graph()
    x = g.input("x", (7, 11))
    for _ in range(count):
        x = g.maximum(x * 1.5, x)
    g.set_outputs([x])
    g.verify()
    Graph.from_json(g.to_json())
    Graph.from_text(g.to_text())
    g.toposort()
    assert len(asked) == 2
