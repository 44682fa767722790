"""Leaves of a plan that hold several parameters or states side by side: what is legal, and how they are known."""

import json
from dataclasses import replace

import numpy as np
import pytest

from darner import FormatError, Graph, VerifyError
from darner.graph.parts import Parts
from darner.lower.lower import lower
from darner.lower.plan import Plan
from darner.lower.plan_json import signed

BOTH = Parts(1, (("a", 3), ("b", 2)))


def plan(parts=BOTH):
    g = Graph("joined")
    x = g.input("x", (4, 6))
    g.set_outputs([x @ g.parameter("a+b", (6, 5)) + g.parameter("c", (5,))])
    return lower(g, target="cpu", stored={"a+b": parts})


def test_parts_are_known_by_their_own_names_and_types():
    found = plan().stored("parameter")
    assert {name: str(buffer.type) for name, buffer in found.items()} == {
        "a": "f32[6, 3]",
        "b": "f32[6, 2]",
        "c": "f32[5]",
    }
    assert all(buffer.parts is None for buffer in found.values())
    assert list(plan().leaves("parameter")) == ["a+b", "c"]


def test_parts_are_part_of_a_digest_and_of_what_is_written():
    made, other = plan(), plan(Parts(1, (("b", 3), ("a", 2))))
    assert made.digest() != other.digest()
    assert Plan.from_json(made.to_json()).digest() == made.digest()
    assert "'a+b'  side by side along axis 1" in str(made)


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        (Parts(2, BOTH.sources), "its parts stand along axis 2"),
        (Parts(1, (("a", 3), ("b", 3))), "its parts have 6 of f32"),
        (Parts(1, (("a", 5), ("b", 0))), "its parts have 5 of f32"),
        (Parts(1, (("a", 5),)), "its parts are 'a'"),
        (Parts(1, (("a", 3), ("a", 2))), "its parts are 'a', 'a'"),
        (Parts(1, (("a", 3), ("a+b", 2))), "its parts are 'a', 'a[+]b'"),
        (Parts(1, (("a", 3), ("c", 2))), "another leaf is called 'c' too"),
    ],
)
def test_parts_that_do_not_fill_a_leaf_or_have_names_of_others_are_refused(parts, says):
    with pytest.raises(VerifyError, match=says):
        plan(parts)


def test_an_input_has_no_parts():
    made = plan()
    buffers = [
        replace(b, parts=Parts(1, (("p", 2), ("q", 4)))) if b.place == "input" else b
        for b in made.buffers
    ]
    with pytest.raises(VerifyError, match="a leaf of input has no parts"):
        replace(made, buffers=tuple(buffers)).verify()


@pytest.mark.parametrize(
    "parts", [3, [1], [1, 2], [1, [["a"]]], [1, [[3, "a"]]], ["1", []], [1, [["a", "b"]]]]
)
def test_parts_of_another_form_are_no_plan(parts):
    document = json.loads(plan().to_json())["plan"]
    record = next(b for b in document["buffers"] if "parts" in b)
    record["parts"] = parts
    with pytest.raises(FormatError):
        Plan.from_json(signed(document))


def test_a_part_is_a_view_of_the_whole():
    whole = np.arange(30.0).reshape(6, 5)
    BOTH.view(whole, "b")[...] = 7.0
    assert (whole[:, 3:] == 7.0).all()
    np.testing.assert_array_equal(BOTH.join(BOTH.split(whole)), whole)
    assert BOTH.with_suffix("/mean").places == {"a/mean": (0, 3), "b/mean": (3, 5)}
    assert BOTH.bounds("b", whole.shape) == ([0, 3], [6, 5])
