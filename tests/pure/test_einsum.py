"""einsum against NumPy's, what it expands to, and its errors."""

import string

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import darner
from darner import ArgumentError, Graph, ShapeError
from darner.ops.linalg.einsum import einsum


def evaluate(equation, *arrays):
    g = Graph()
    nodes = [g.input(f"x{i}", array.shape, array.dtype) for i, array in enumerate(arrays)]
    g.set_outputs([g.einsum(equation, *nodes)])
    g.verify()
    return darner.run(g, {f"x{i}": array for i, array in enumerate(arrays)})[0], g


def compute_ops(graph):
    return [n.op.name for n in darner.expand(graph).nodes if "leaf" not in n.op.traits]


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


# --------------------------------------------------------------------------- values


@st.composite
def equations(draw):
    """An equation with shapes that fit it: repeats, ellipses, sizes of 1, missing outputs."""
    sizes = {letter: draw(st.integers(0, 3)) for letter in "abcdAZ"}
    spread = draw(st.lists(st.integers(1, 3), max_size=2))
    terms, shapes = [], []
    for _ in range(draw(st.integers(1, 4))):
        letters = draw(st.text("abcdAZ", max_size=3))
        narrow = {letter: draw(st.booleans()) and letters.count(letter) == 1 for letter in letters}
        shape = [1 if narrow[letter] else sizes[letter] for letter in letters]
        term = letters
        if draw(st.booleans()):
            at = draw(st.integers(0, len(letters)))
            kept = spread[draw(st.integers(0, len(spread))) :]
            axes = [draw(st.sampled_from([size, 1])) for size in kept]
            term = f"{letters[:at]}...{letters[at:]}"
            shape[at:at] = axes
        terms.append(term)
        shapes.append(tuple(shape))
    equation = ",".join(terms)
    if draw(st.booleans()):
        used = sorted(set(equation) & set(string.ascii_letters))
        result = draw(st.permutations(used))[: draw(st.integers(0, len(used)))]
        if "..." in equation:
            result.insert(draw(st.integers(0, len(result))), "...")
        equation += "->" + "".join(result)
    return equation, shapes


@pytest.mark.slow
@settings(deadline=None, max_examples=400)
@given(equations(), st.integers(0, 99))
def test_any_equation_agrees_with_numpy(case, seed):
    equation, shapes = case
    arrays = [normal(*shape, seed=seed + i) for i, shape in enumerate(shapes)]
    wanted = np.einsum(equation, *arrays)
    found, _ = evaluate(equation, *arrays)
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(3, 4), (4, 5)]),
        ("ij,jk", [(3, 4), (4, 5)]),
        ("ba", [(3, 4)]),
        (" b i j , b j k -> b i k ", [(2, 3, 4), (2, 4, 5)]),
        ("ii", [(4, 4)]),
        ("ii->i", [(4, 4)]),
        ("iii->i", [(3, 3, 3)]),
        ("iijj->ij", [(3, 3, 2, 2)]),
        ("ij->", [(3, 4)]),
        ("->", [()]),
        (",ij->ij", [(), (3, 4)]),
        ("i,i->", [(3,), (1,)]),
        ("i,i,i->", [(1,), (1,), (3,)]),
        ("...ij,...jk->...ik", [(2, 1, 3, 4), (5, 4, 2)]),
        ("i...->...", [(3, 2, 2)]),
        ("i...,i...->i...", [(3, 2), (3,)]),
        ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("ij,kl,jk,lm->im", [(3, 9), (2, 8), (9, 2), (8, 3)]),
        ("ij,j,k->i", [(3, 4), (4,), (5,)]),
        ("aB,Ba->aB", [(2, 3), (3, 2)]),
    ],
)
def test_known_equations(equation, shapes):
    arrays = [normal(*shape, seed=i) for i, shape in enumerate(shapes)]
    found, _ = evaluate(equation, *arrays)
    np.testing.assert_allclose(found, np.einsum(equation, *arrays), rtol=1e-12)


def test_small_integers_give_i32_whether_summed_or_not():
    a = np.full((3, 200), 100, np.int8)
    for equation in ("ij,kj->ik", "ij,ij->ij", "ij,kj->ikj"):
        found, _ = evaluate(equation, a, a)
        assert found.dtype == np.int32
        np.testing.assert_array_equal(found, np.einsum(equation, a.astype("i4"), a.astype("i4")))
    assert evaluate("ij->i", a)[0].tolist() == [20000] * 3
    assert evaluate("ij->ji", a)[0].dtype == np.int8


def test_element_types_are_promoted():
    found, graph = evaluate("ij,j->i", np.ones((2, 3), np.float16), np.ones(3, np.float32))
    assert found.dtype == np.float32
    assert graph.outputs[0].dtype.name == "f32"


# --------------------------------------------------------------------------- what it becomes


@pytest.mark.parametrize(
    ("equation", "shapes", "wanted"),
    [
        ("ij,jk->ik", [(3, 4), (4, 5)], ["dot_general"]),
        ("bij,jk->bik", [(2, 3, 4), (4, 5)], ["dot_general"]),
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)], ["dot_general"]),
        ("ij,jk->ki", [(3, 4), (4, 5)], ["dot_general", "transpose"]),
        ("ij,ij->ij", [(3, 4), (3, 4)], ["mul"]),
        ("i,j->ij", [(3,), (4,)], ["reshape", "mul"]),
        ("j,i->ij", [(3,), (4,)], ["reshape", "mul"]),
        ("ij,kj->ikj", [(3, 4), (5, 4)], ["reshape", "mul"]),
        ("ij,jk->i", [(3, 4), (4, 5)], ["sum", "dot_general"]),
        ("ij->ji", [(3, 4)], ["transpose"]),
        ("ij->i", [(3, 4)], ["sum"]),
        ("ij->ij", [(3, 4)], []),
        ("...i,i->...i", [(2, 3, 4), (4,)], ["mul"]),
    ],
)
def test_equations_become_the_fewest_ops(equation, shapes, wanted):
    _, graph = evaluate(equation, *(normal(*shape) for shape in shapes))
    assert compute_ops(graph) == wanted


def test_chains_are_contracted_cheapest_first():
    _, graph = evaluate("ij,jk,kl->il", normal(2, 50), normal(50, 50), normal(50, 50))
    sizes = [node.size for node in graph.nodes if node.op.name == "dot_general"]
    assert sizes == [100, 100]
    _, graph = evaluate("ij,jk,kl->il", normal(50, 50), normal(50, 50), normal(50, 2))
    sizes = [node.size for node in graph.nodes if node.op.name == "dot_general"]
    assert sizes == [100, 100]


def test_symbolic_sizes_are_contracted_left_to_right():
    g = Graph()
    x = g.input("x", ("batch", "seq", 4))
    result = g.einsum("bsd,de,btd->bste", x, g.input("w", (4, 2)), x)
    assert str(result.type) == "f32[batch, seq, seq, 2]"
    g.set_outputs([result])
    values = {"x": normal(2, 3, 4).astype("f4"), "w": normal(4, 2).astype("f4")}
    wanted = np.einsum("bsd,de,btd->bste", values["x"], values["w"], values["x"])
    np.testing.assert_allclose(darner.run(g, values)[0], wanted, rtol=1e-5, atol=1e-5)


def test_operands_may_be_ids_arrays_or_one_list():
    g = Graph()
    a, b = g.input("a", (3, 4), "f64"), g.input("b", (4, 5), "f64")
    weights = normal(4, 5, seed=1)
    g.set_outputs(
        [
            g.einsum("ij,jk->ik", a.id, b.id),
            g.einsum("ij,jk->ik", [a, b]),
            g.einsum("ij,jk->ik", a, weights),
            einsum("ij,jk->ik", a, b),
        ]
    )
    values = normal(3, 4)
    for found in darner.run(g, {"a": values, "b": weights}):
        np.testing.assert_allclose(found, values @ weights)


def test_a_label_goes_to_the_result_but_never_to_an_operand():
    g = Graph()
    x = g.input("x", (3, 4))
    assert g.einsum("ij->ji", x, label="turned").label == "turned"
    assert g.einsum("ij->ij", x, label="same") is x
    assert x.label is None


# --------------------------------------------------------------------------- errors


ERRORS = [
    ("ij,jk->ik", [(3, 4), (5, 6)], "'j' has size 4 in operand 0 but 5 in operand 1"),
    ("ij,jk,jl", [(3, 4), (1, 6), (5, 2)], "'j' has size 4 in operand 0 but 5 in operand 2"),
    ("ii", [(3, 4)], "'i' has sizes 3 and 4 in operand 0"),
    ("ii", [(1, 4)], "'i' has sizes 1 and 4 in operand 0"),
    ("...i,...i", [(3, 4), (2, 4)], "an axis of '...' has size 3 in operand 0 but 2 in operand 1"),
    ("ijk", [(3, 4)], "'ijk' has 3 letters, but operand 0 has rank 2"),
    ("i,...jk", [(3,), (4,)], "'...jk' has 2 letters, but operand 1 has rank 1"),
    (
        "i",
        [(3, 4)],
        "'i' has 1 letter, but operand 0 has rank 2; '...' stands for any further axes",
    ),
]
MALFORMED = [
    ("ij,jk->il", [(3, 4), (4, 6)], "'l' of the result is in no operand of 'ij,jk->il'"),
    ("ij->ii", [(3, 4)], "'i' is twice in the result of 'ij->ii'"),
    ("ij->i......", [(3, 4)], "'i......' in 'ij->i......' has more than one '...'"),
    ("...i...", [(3, 4)], "has more than one '...'"),
    ("ij,jk", [(3, 4)], "'ij,jk' is for 2 operands, but 1 came with it"),
    ("ij", [(3, 4), (4, 5)], "'ij' is for 1 operand, but 2 came with it"),
    ("...i->i", [(3, 4)], "'...' stands for 1 axis that the result of '...i->i' lacks"),
    ("...i->i", [(2, 3, 4)], "'...' stands for 2 axes that the result of '...i->i' lacks"),
    ("i..j", [(3, 4)], "'.' in 'i..j' is neither a letter nor part of '...'"),
    ("i1", [(3, 4)], "'1' in 'i1' is neither a letter nor part of '...'"),
    ("iµ", [(3, 4)], "'µ' in 'iµ' is neither"),
    ("i->j->k", [(3,)], "'-' in 'i->j->k' is neither"),
    (5, [(3,)], "the equation must be text, got int"),
]


@pytest.mark.parametrize(
    ("kind", "equation", "shapes", "text"),
    [(ShapeError, *row) for row in ERRORS] + [(ArgumentError, *row) for row in MALFORMED],
)
def test_wrong_equations_are_refused(kind, equation, shapes, text):
    g = Graph()
    nodes = [g.input(f"x{i}", shape) for i, shape in enumerate(shapes)]
    with pytest.raises(kind) as caught:
        g.einsum(equation, *nodes, label="scores")
    assert str(caught.value).startswith("einsum 'scores': ")
    assert text in str(caught.value)
    assert len(g) == len(nodes)


def test_operands_that_are_no_nodes_are_refused():
    g, other = Graph("main"), Graph("other")
    with pytest.raises(ArgumentError, match="operand 0 must be a node or an array, got float"):
        g.einsum("i", 2.5)
    with pytest.raises(ArgumentError, match="'i' is for 1 operand, but 0 came with it"):
        g.einsum("i")
    with pytest.raises(ArgumentError, match="is a node of graph 'other', not of 'main'"):
        g.einsum("i", other.input("x", (3,)))


def test_a_stated_shape_is_checked():
    g = Graph()
    x = g.input("x", (3, 4))
    assert g.einsum("ij->ji", x, shape=(4, 3)).shape == (4, 3)
    with pytest.raises(ShapeError, match=r"the result is \(4, 3\), but \(3, 4\) was stated"):
        g.einsum("ij->ji", x, shape=(3, 4))
