"""Scopes that are recomputed in the backward pass: the same gradients, less memory; and how memory is counted."""

import json

import numpy as np
import pytest

import darner
from darner import ArgumentError, FormatError, Graph, RematPolicy, UnknownNameError
from darner.graph.regions import region_lines
from darner.transforms.expand import expansion

LAYERS, ROWS, WIDTH = 16, 512, 8
RNG = np.random.default_rng(2)


def block(g, x, depth=6):
    """Activations one after another, all but the last of which the backward pass reads."""
    h = x @ g.parameter("w", (WIDTH, WIDTH), "f64")
    for _ in range(depth):
        h = h.tanh()
    return x + h


def stack(layers=LAYERS, rows=ROWS, *, remat=False, policy=None, build=block):
    g = Graph("stack")
    x = g.input("x", (rows, WIDTH), "f64")
    for i in range(layers):
        with g.remat(f"layers.{i}", policy) if remat else g.scope(f"layers.{i}"):
            x = build(g, x)
    g.set_outputs([x.square().sum()])
    return g


def values(graph, rows):
    return (
        {"x": RNG.normal(size=(rows, WIDTH))},
        {name: RNG.normal(size=node.shape) * 0.3 for name, node in graph.parameters.items()},
    )


def counts(graph):
    names = [node.op.name for node in graph.nodes]
    return {name: names.count(name) for name in set(names)}


def assert_same_gradients(one, other, *given):
    first, second = (darner.run(darner.value_and_grad(g), *given) for g in (one, other))
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


# --------------------------------------------------------------------------- the gradients


POLICIES = [
    None,
    "tanh",
    ["matmul", "add"],
    4 * WIDTH * 8,
    10**9,
    RematPolicy(keep=("matmul",), larger_than=100),
]


@pytest.mark.parametrize("policy", POLICIES)
def test_gradients_are_the_same_bit_for_bit_under_every_policy(policy):
    plain, again = stack(3, 4), stack(3, 4, remat=True, policy=policy)
    assert_same_gradients(plain, again, *values(plain, 4))


def rich_block(g, x):
    """Composites, several results, a value used twice, a mask of constants, a cast."""
    normed = x.layer_norm(
        g.parameter("scale", (WIDTH,), "f64"), g.parameter("shift", (WIDTH,), "f64")
    )
    scores = normed @ normed.T
    rows = scores.shape[0]
    mask = g.ones((rows, rows), "f64").tril() > 0.5
    h = mask.where(scores, -1e9).softmax(-1) @ normed
    best, _ = h.top_k(3)
    h = h.gelu() * best.mean(-1, keepdims=True) + h.cast("f32").cast("f64")
    return x + h @ g.parameter("w", (WIDTH, WIDTH), "f64")


@pytest.mark.parametrize("policy", [None, ["softmax", "top_k"], 64, "gelu"])
def test_gradients_through_composites_and_several_results(policy):
    plain = stack(2, 5, build=rich_block)
    again = stack(2, 5, build=rich_block, remat=True, policy=policy)
    assert_same_gradients(plain, again, *values(plain, 5))


def test_dropout_draws_the_same_numbers_again():
    def dropped(g, x):
        return x + (x @ g.parameter("w", (WIDTH, WIDTH), "f64")).tanh().dropout(0.5).exp()

    plain, again = (stack(2, 4, build=dropped, remat=remat) for remat in (False, True))
    assert counts(darner.grad(again))["dropout"] > counts(darner.grad(plain))["dropout"]
    inputs, params = values(plain, 4)
    first, second = (darner.run(darner.grad(g), inputs, params, state={}) for g in (plain, again))
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


def test_second_derivatives_are_the_same():
    plain, again = stack(2, 2), stack(2, 2, remat=True)
    inputs, params = values(plain, 2)
    name = "layers.0.w"
    direction = {f"tangent_{name}": RNG.normal(size=(WIDTH, WIDTH))}
    one, other = (
        darner.run(darner.hvp(g, name), {**inputs, **direction}, params)[0] for g in (plain, again)
    )
    np.testing.assert_array_equal(one, other)
    twice = []
    for graph in (plain, again):
        first = darner.grad(graph, name)
        first.set_outputs([first.outputs[0].square().sum()])
        twice.append(darner.run(darner.grad(first, name), inputs, params)[0])
    np.testing.assert_allclose(*twice, rtol=1e-12)


def test_batches_and_forward_mode_pass_through():
    again = stack(2, 3, remat=True)
    inputs, params = values(again, 3)
    name = "layers.1.w"
    weights = np.stack([params[name], 2 * params[name]])
    found = darner.run(
        darner.vmap(darner.grad(again, name), [name], 2), inputs, {**params, name: weights}
    )
    wanted = [
        darner.run(darner.grad(stack(2, 3), name), inputs, {**params, name: w})[0] for w in weights
    ]
    np.testing.assert_allclose(found[0], np.stack(wanted), rtol=1e-12)
    batch = darner.vmap(again, ["x"], 2)
    assert batch._remat == again._remat
    batch.set_outputs([batch.outputs[0].sum()])
    assert counts(darner.grad(batch))["recompute_barrier"] == 2


def test_scopes_within_scopes():
    def nested(remat):
        g = Graph()
        x = g.input("x", (4, WIDTH), "f64")
        for i in range(2):
            with g.remat(f"stage{i}") if remat else g.scope(f"stage{i}"):
                for j in range(2):
                    with g.remat(f"block{j}", "exp") if remat else g.scope(f"block{j}"):
                        x = block(g, x, 2).exp() * 0.1
                x = x.sin()
        g.set_outputs([x.square().sum()])
        return g

    plain, again = nested(False), nested(True)
    assert_same_gradients(plain, again, *values(plain, 4))
    graph = darner.grad(again)
    # Each block runs forward, then with its stage, then for its own backward pass.
    assert counts(graph)["matmul"] == 2 * 2 * 3
    assert counts(darner.grad(plain))["matmul"] == 2 * 2


# --------------------------------------------------------------------------- what is built


def test_only_what_the_backward_pass_reads_is_computed_again():
    graph = darner.grad(stack(4, 4, remat=True))
    found = counts(graph)
    assert found["tanh"] == 2 * 4 * 6
    assert found["matmul"] == 2 * 4
    assert "recompute_barrier" in found
    used = {i for node in graph.nodes for i in node.inputs} | {node.id for node in graph.outputs}
    assert all(node.id in used for node in graph.nodes if node.name is None)


def test_kept_ops_are_not_computed_again():
    assert counts(darner.grad(stack(4, 4, remat=True, policy="matmul")))["matmul"] == 4
    everything = darner.grad(stack(4, 4, remat=True, policy=10**9))
    assert everything == _without_regions(darner.grad(stack(4, 4)), everything)


def _without_regions(plain, like):
    """The plain gradient with the other's record, which is part of a graph's identity."""
    plain._remat = dict(like._remat)
    return plain


def test_a_composite_that_is_written_out_is_still_recognised_by_a_policy():
    def normalised(g, x):
        return x + x.clip(-0.5, 0.5).tanh()

    def held(policy):
        graph = darner.grad(stack(1, 4, build=normalised, remat=True, policy=policy), "x")
        assert "clip" not in counts(graph)  # its derivative comes from its parts
        return {node.operands[0].op.name for node in graph.nodes if "barrier" in node.op.traits}

    g = Graph()
    last = expansion(g.input("x", (2,)).clip(-0.5, 0.5)).outputs[0].op.name
    assert last not in held(None)
    assert last in held("clip")


def merged(graph):
    """Equal nodes made one, as any optimizer would."""
    result, known, mapped = Graph(graph.name), {}, {}
    for node in graph.nodes:
        operands = [mapped[i] for i in node.inputs]
        key = (node.op.name, tuple(o.id for o in operands), str(node.attrs), str(node.type))
        if key not in known:
            known[key] = result.insert(node.op, operands, node.slots, node.attrs)
        mapped[node.id] = known[key]
    result.set_outputs([mapped[node.id] for node in graph.outputs])
    return result


def test_merging_equal_nodes_does_not_undo_it():
    graph = darner.grad(stack(4, 4, remat=True))
    assert counts(merged(graph))["tanh"] == counts(graph)["tanh"] == 2 * 4 * 6


def test_each_barrier_waits_for_a_cotangent_of_its_scope():
    graph = darner.grad(stack(4, 4, remat=True))
    barriers = [node for node in graph.nodes if node.op.name == "recompute_barrier"]
    assert [node.scope for node in barriers] == [f"layers.{i}" for i in (3, 2, 1, 0)]
    for node in barriers:
        boundary, cotangent = node.operands
        assert boundary.id < cotangent.id < node.id
        again = [n for n in graph.nodes if n.op.name == "tanh" and n.scope == node.scope]
        assert [n.id > cotangent.id for n in again] == [False] * 6 + [True] * 6


def test_the_gradient_may_choose_scopes_by_pattern():
    plain = stack(3, 4)
    wanted = counts(darner.grad(stack(3, 4, remat=True)))
    for chosen in ("layers.*", [f"layers.{i}" for i in range(3)], {"layers.*": None}):
        assert counts(darner.grad(plain, remat=chosen)) == wanted
        assert counts(darner.value_and_grad(plain, remat=chosen))["tanh"] == wanted["tanh"]
    assert counts(darner.grad(plain, remat={"layers.*": "tanh"}))["tanh"] == 3 * 6
    assert counts(darner.grad(plain, remat="layers.1"))["tanh"] == 4 * 6
    one = darner.grad(plain, remat="layers")
    assert counts(one)["recompute_barrier"] == 1
    with pytest.raises(UnknownNameError, match=r"has no scope 'layer.1'; did you mean 'layers.1'"):
        darner.grad(plain, remat="layer.1")


def test_a_function_can_be_recomputed():
    make = darner.remat(lambda g, x: block(g, x, 2), name="make", policy="matmul")

    @darner.remat
    def named(x):
        """Twice."""
        return x.tanh().tanh()

    assert (named.__name__, named.__doc__) == ("named", "Twice.")
    g = Graph()
    x = g.input("x", (4, WIDTH), "f64")
    for _ in range(2):
        x = named(make(g, x))
    g.set_outputs([x.sum()])
    assert list(g._remat) == ["make_0", "named_0", "make_1", "named_1"]
    assert list(g.parameters) == ["make_0.w", "make_1.w"]
    assert counts(darner.grad(g))["tanh"] > counts(g)["tanh"]
    with pytest.raises(ArgumentError, match="remat: no argument is a node or a graph"):
        named(3)


# --------------------------------------------------------------------------- the record


def recorded():
    g = Graph("recorded")
    x = g.input("x", (2, WIDTH), "f64")
    with g.remat("a", ["matmul"]):
        x = block(g, x, 1)
        with g.scope("part"):
            x = x.exp()
        with g.remat("inner", 100):
            x = x.sin()
    with g.remat("b"):
        x = x.cos()
    g.set_outputs([x.sum()])
    return g


def test_the_record_prints():
    lines = str(recorded()).splitlines()
    assert [line.strip() for line in lines if "remat" in line] == [
        'remat "a" {"keep": ["matmul"]} %2-%5',
        'remat "a.inner" {"larger_than": 100} %6',
        'remat "b" %7',
    ]


def test_the_record_survives_text_json_copies_and_other_passes():
    g = recorded()
    text, document = g.to_text(), g.to_json()
    for again in (Graph.from_text(text), Graph.from_json(document), g.copy(), g.toposort()):
        assert again.verify() == g
        assert again._remat == g._remat
        assert list(region_lines(again)) == list(region_lines(g))
        assert again.to_text() == text
        assert darner.grad(again) == darner.grad(g)
    assert Graph.from_json(document).to_json() == document
    for again in (darner.expand(g), darner.in_float64(g), darner.linearize(g, "x")[0]):
        assert again._remat == g._remat


def test_the_record_is_part_of_what_a_graph_is():
    g, other = recorded(), recorded()
    assert g == other
    other._remat.pop("b")
    assert g != other
    assert json.loads(g.to_json())["remat"] == {
        "a": {"keep": ["matmul"]},
        "a.inner": {"larger_than": 100},
        "b": {},
    }
    assert "remat" not in json.loads(stack(1, 2).to_json())


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ('remat "a"', "expected 'remat"),
        ('remat "a" %1-%2,', "expected 'remat"),
        ('remat "a" {"keep": ["matmull"]} %1', "no op is called 'matmull'; did you mean 'matmul'"),
        ('remat "a" {"size": 3} %1', "expected a policy with keep and larger_than"),
        ('remat "a" %99', "has no node 99"),
    ],
)
def test_a_damaged_record_is_an_error_with_its_line(line, fault):
    g = Graph("g")
    g.set_outputs([g.input("x", (2,)).exp()])
    text = str(g).replace("  return", f"  {line}\n  return")
    with pytest.raises(FormatError, match=r"line 4.*") as caught:
        Graph.from_text(text)
    assert fault in str(caught.value)


def test_wrong_policies_are_refused_when_the_scope_opens():
    g = Graph()
    with (
        pytest.raises(UnknownNameError, match=r"remat: no op is called 'matmull'"),
        g.remat("a", "matmull"),
    ):
        pass
    with (
        pytest.raises(ArgumentError, match=r"larger_than is a number of bytes, not -1"),
        g.remat("a", -1),
    ):
        pass
    with g.remat("a"):
        pass
    with g.remat("a"):  # the same scope again, under the same policy
        pass
    with (
        pytest.raises(ArgumentError, match="'a' is already recomputed under another policy"),
        g.remat("a", 3),
    ):
        pass
    assert list(g._remat) == ["a"]
    assert g.current_scope == ""


# --------------------------------------------------------------------------- memory

BYTES = ROWS * WIDTH * 8
"""One activation of the stack."""


def test_peak_falls_by_the_factor_that_theory_gives():
    """Without: every block keeps its boundary and its 6 activations. With: the boundaries, and one block's.

    Beside them stand, at the peak, a few cotangents and the small gradients of the weights.
    """
    depth, slack = 6, 2 * BYTES
    plain = darner.peak_live_bytes(darner.grad(stack()))
    again = darner.peak_live_bytes(darner.grad(stack(remat=True)))
    theory_plain = LAYERS * (1 + depth) * BYTES
    theory_again = (LAYERS + depth) * BYTES
    assert theory_plain <= plain + slack
    assert plain <= theory_plain + slack
    assert theory_again <= again + slack
    assert again <= theory_again + slack
    assert plain / again == pytest.approx(theory_plain / theory_again, rel=0.05)


def test_a_policy_by_op_keeps_what_it_says_and_no_more():
    again = darner.peak_live_bytes(darner.grad(stack(remat=True)))
    kept = darner.peak_live_bytes(darner.grad(stack(remat=True, policy="matmul")))
    assert kept - again == pytest.approx(LAYERS * BYTES, rel=0.1)
    whole = darner.peak_live_bytes(darner.grad(stack(remat=True, policy=BYTES)))
    assert whole == darner.peak_live_bytes(darner.grad(stack()))


def test_live_bytes_follow_each_value_from_its_node_to_its_last_use():
    g = Graph()
    x = g.input("x", (10,))
    a = x.exp()  # 40
    b = a.reshape((5, 2))  # a view
    c = b + 1.0  # a is read here for the last time
    g.set_outputs([c.sum()])
    at = dict(zip([node.op.name for node in g.nodes], darner.live_bytes(g), strict=True))
    assert at == {
        "input": 0,
        "exp": 40,
        "reshape": 40,
        "constant": 40,
        "add": 80,
        "sum": 44,
    }
    assert darner.peak_live_bytes(g) == 80
    assert darner.leaf_bytes(g) == 44
    assert darner.peak_live_bytes(Graph()) == 0


def test_outputs_and_updates_live_to_the_end():
    g = Graph()
    x, s = g.input("x", (10,)), g.state("s", (10,))
    g.set_update(s, x.exp())
    g.set_outputs([x.sin(), x.cos().sum()])
    assert darner.live_bytes(g)[-1] == 40 + 40 + 40 + 4


def test_a_result_that_nobody_reads_lives_only_at_its_node():
    g = Graph()
    x = g.input("x", (100,))
    best, _ = x.top_k(50)
    g.set_outputs([best.exp()])
    live = darner.live_bytes(g)
    made = next(node.id for node in g.nodes if node.op.name == "top_k")
    assert live[made] == 400
    assert live[made + 1] == 200
    assert live[-1] == 400


def test_memory_of_symbolic_sizes_must_be_bound_first():
    g = Graph()
    g.set_outputs([g.input("x", ("n",)).exp()])
    with pytest.raises(darner.ShapeError, match=r"peak_live_bytes: .*not bound; bind them first"):
        darner.peak_live_bytes(g)
    assert darner.peak_live_bytes(g.bind(n=3)) == 12


def test_symbolic_sizes_count_as_large_for_a_policy():
    g = Graph()
    x = g.input("x", ("n",), "f64")
    with g.remat("block", 10**9):
        x = x.tanh().tanh()
    g.set_outputs([x.exp().sum()])
    assert counts(darner.grad(g, "x"))["tanh"] == 3
