"""Which tensor fills which parameter, and how what does not fit is told."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from darner.graph.errors import DTypeError
from darner.graph.types import TensorType
from darner.load import MismatchError, match
from darner.load.conversions import conversion, converted
from darner.load.listing import aligned, folded


def f32(*shape):
    return TensorType.new(shape)


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


# Names


def test_the_exact_name_wins_over_other_spellings():
    stored = {"model.norm.weight": zeros(2), "norm.weight": zeros(2)}
    wanted = {"model.norm.weight": f32(2)}
    with pytest.raises(MismatchError) as caught:
        match(stored, wanted, prefix="model.")
    assert caught.value.match.sources == {"model.norm.weight": "model.norm.weight"}
    assert caught.value.match.unexpected == ("norm.weight",)


@pytest.mark.parametrize("stored_prefix", ["", "bert."])
@pytest.mark.parametrize("wanted_prefix", ["", "bert."])
def test_a_prefix_may_be_there_or_not_on_either_side(stored_prefix, wanted_prefix):
    stored = {f"{stored_prefix}encoder.0.weight": zeros(3)}
    wanted = {f"{wanted_prefix}encoder.0.weight": f32(3)}
    found = match(stored, wanted, prefix="bert.")
    assert list(found.sources.values()) == list(stored)
    assert found.fits()


def test_one_tensor_never_fills_two_parameters_that_are_not_tied():
    with pytest.raises(MismatchError) as caught:
        match({"weight": zeros(2)}, {"model.weight": f32(2), "weight": f32(2)}, prefix="model.")
    assert caught.value.match.sources == {"weight": "weight"}
    assert caught.value.match.missing == ("model.weight",)


def test_old_spellings_of_layer_norms_are_known():
    stored = {"bert.LayerNorm.gamma": zeros(4), "bert.LayerNorm.beta": zeros(4)}
    wanted = {"LayerNorm.weight": f32(4), "LayerNorm.bias": f32(4)}
    assert match(stored, wanted, prefix="bert.").sources == {
        "LayerNorm.weight": "bert.LayerNorm.gamma",
        "LayerNorm.bias": "bert.LayerNorm.beta",
    }


def test_a_parameter_that_is_called_gamma_is_filled_as_such():
    stored = {"scale.gamma": zeros(4), "scale.weight": zeros(4)}
    wanted = {"scale.weight": f32(4), "scale.gamma": f32(4)}
    assert match(stored, wanted).sources == {name: name for name in wanted}


TIED = {"lm_head.weight": "model.embed.weight"}


@pytest.mark.parametrize(
    "names", [["lm_head.weight"], ["model.embed.weight"], ["lm_head.weight", "embed.weight"]]
)
@pytest.mark.parametrize(
    "wanted", [["lm_head.weight"], ["model.embed.weight"], list(next(iter(TIED.items())))]
)
def test_tied_names_stand_for_each_other(names, wanted):
    stored = {name: np.arange(6, dtype=np.float32).reshape(3, 2) for name in names}
    found = match(stored, {name: f32(3, 2) for name in wanted}, prefix="model.", tied=TIED)
    assert list(found.sources) == wanted
    assert found.fits()
    assert set(found.sources.values()) | set(found.ignored) == set(names)


def test_tied_tensors_of_different_values_are_a_fault():
    stored = {"lm_head.weight": zeros(3, 2), "model.embed.weight": np.ones((3, 2), np.float32)}
    with pytest.raises(
        MismatchError, match=r"1 tied, but of different values:\n  model.embed.weight"
    ):
        match(stored, {"model.embed.weight": f32(3, 2)}, tied=TIED, strict=False)


def test_ignored_tensors_and_counters_are_passed_over():
    stored = {
        "model.0.rotary_emb.inv_freq": zeros(2),
        "bn.num_batches_tracked": np.array(3),
        "w": zeros(1),
    }
    found = match(stored, {"w": f32(1)}, ignored=("*.rotary_emb.inv_freq",))
    assert found.ignored == ("model.0.rotary_emb.inv_freq", "bn.num_batches_tracked")
    assert found.unexpected == ()


def test_optional_parameters_may_be_missing_and_are_filled_if_not():
    wanted = {"q.lora_A.weight": f32(2, 4), "q.weight": f32(4, 4)}
    stored = {"q.weight": zeros(4, 4)}
    assert match(stored, wanted, optional=("*lora_A*",)).kept == ("q.lora_A.weight",)
    stored["q.lora_A.weight"] = zeros(2, 4)
    assert match(stored, wanted, optional=("*lora_A*",)).kept == ()


def test_unless_strict_names_are_reported_and_shapes_still_refused():
    stored = {"a": zeros(2), "c": zeros(2)}
    found = match(stored, {"a": f32(2), "b": f32(2)}, strict=False)
    assert (found.sources, found.missing, found.unexpected) == ({"a": "a"}, ("b",), ("c",))
    with pytest.raises(MismatchError) as caught:
        match(stored, {"a": f32(3), "b": f32(2)}, strict=False)
    assert str(caught.value) == (
        "the weights do not fit:\n1 of another shape:\n  a  needs (3,)  stored (2,)"
    )


def test_a_symbolic_size_accepts_any():
    assert match({"a": zeros(2, 7)}, {"a": TensorType.new((2, "n"))}).fits()


@given(st.data())
def test_every_name_ends_up_in_exactly_one_place(data):
    words = st.lists(
        st.sampled_from(["p", "a", "b", "weight", "gamma", "bias", "0"]), min_size=1, max_size=3
    )
    names = st.lists(words.map(".".join), unique=True, max_size=8)
    wanted, stored = data.draw(names), data.draw(names)
    tied = dict(
        data.draw(st.lists(st.tuples(words.map(".".join), words.map(".".join)), max_size=2))
    )
    patterns = data.draw(st.lists(st.sampled_from(["*a", "p.*", "b"]), max_size=2))
    found = match(
        {name: zeros(2) for name in stored},
        {name: f32(2) for name in wanted},
        prefix="p.",
        tied=tied,
        ignored=patterns,
        optional=patterns,
        strict=False,
    )
    assert sorted([*found.sources, *found.missing, *found.kept]) == sorted(wanted)
    taken = set(found.sources.values())
    assert sorted([*taken, *found.unexpected, *found.ignored]) == sorted(stored)
    assert all(found.sources[name] == name for name in set(wanted) & set(stored))
    if not tied:
        assert len(taken) == len(found.sources)


# The message


def test_everything_is_listed_at_once_folded_and_aligned():
    wanted = {f"model.layers.{i}.self_attn.q_norm.weight": f32(64) for i in range(30)}
    wanted |= {"model.embed.weight": f32(100, 8), "lm_head.weight": f32(100, 8), "x": f32(1)}
    stored = {f"model.layers.{i}.self_attn.q_nrom.weight": zeros(64) for i in range(30)}
    stored |= {
        "model.embed.weight": zeros(99, 8, dtype=np.float16),
        "lm_head.wieght": zeros(100, 8),
        "x": zeros(1, dtype=np.int64),
        "rotary": zeros(dtype=np.float64),
    }
    with pytest.raises(MismatchError) as caught:
        match(stored, wanted)
    assert (
        str(caught.value)
        == """\
the weights do not fit:
31 missing (no tensor for the parameter):
  model.layers.{0..29}.self_attn.q_norm.weight (30)  f32[64]      did you mean 'model.layers.{0..29}.self_attn.q_nrom.weight (30)'?
  lm_head.weight                                     f32[100, 8]  did you mean 'lm_head.wieght'?
32 unexpected (no parameter for the tensor):
  model.layers.{0..29}.self_attn.q_nrom.weight (30)  f32[64]
  lm_head.wieght                                     f32[100, 8]
  rotary                                             f64[]
1 of another shape:
  model.embed.weight  needs (100, 8)  stored (99, 8)
1 of another element type:
  x  needs f32  stored i64, which is not made float32"""
    )


def test_rounding_is_asked_for_with_the_way_to_allow_it():
    wanted = {f"h.{i}.w": TensorType.new((2,), "bf16") for i in range(3)}
    stored = {name: zeros(2) for name in wanted}
    with pytest.raises(MismatchError) as caught:
        match(stored, wanted)
    assert str(caught.value).splitlines()[1:] == [
        "3 of another element type (allow_rounding=True rounds):",
        "  h.{0..2}.w (3)  needs bf16  stored f32, which bfloat16 cannot hold without rounding",
    ]
    assert match(stored, wanted, allow_rounding=True).fits()


def test_the_source_of_another_name_is_shown_and_folded():
    wanted = {f"model.h.{i}.w": f32(2) for i in range(12)}
    stored = {f"h.{i}.w": zeros(3) for i in range(12)}
    with pytest.raises(
        MismatchError, match=r"  model.h.\{0..11\}.w \(from h.\{0..11\}.w\) \(12\)  needs"
    ):
        match(stored, wanted, prefix="model.")


# Lists


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a.0.b"], ["a.0.b"]),
        (["a.0.b", "a.1.b"], ["a.{0,1}.b (2)"]),
        ([f"{i}" for i in (3, 4, 5, 9, 10)], ["{3..5,9,10} (5)"]),
        ([f"l.{i}.e.{j}.w" for i in range(3) for j in range(4)], ["l.{0..2}.e.{0..3}.w (12)"]),
        (["l.0.e.0", "l.0.e.1", "l.1.e.1"], ["l.0.e.{0,1} (2)", "l.1.e.1"]),
        (["a.00", "a.0", "a.1"], ["a.00", "a.{0,1} (2)"]),
        (["a.{}.0", "a.{}.1"], ["a.{}.0", "a.{}.1"]),
        (["a.²", "a.1"], ["a.²", "a.1"]),
    ],
)
def test_names_are_folded_by_their_numbers(names, expected):
    assert [row[0] for row in folded((name,) for name in names)] == expected


@given(st.lists(st.lists(st.sampled_from(["a", "b", "0", "1", "2", "10"]), min_size=1, max_size=4)))
def test_folding_keeps_the_number_of_names(words):
    names = list(dict.fromkeys(".".join(parts) for parts in words))
    rows = folded((name, "x") for name in names)
    counts = [int(row[0].rpartition("(")[2][:-1]) if "(" in row[0] else 1 for row in rows]
    assert sum(counts) == len(names)
    plain = {row[0] for row in rows if "(" not in row[0]}
    assert plain <= set(names)


def test_long_lists_are_cut():
    lines = aligned([(f"name{i}", "x") for i in range(50)], most=3)
    assert lines == ["  name0  x", "  name1  x", "  name2  x", "  and 47 more"]


# Element types


@pytest.mark.parametrize(
    ("found", "wanted", "how"),
    [
        ("f16", "f32", "exact"),
        ("bf16", "f32", "exact"),
        ("f32", "f64", "exact"),
        ("f32", "f32", "exact"),
        ("f32", "bf16", "rounds"),
        ("f64", "f32", "rounds"),
        ("f16", "bf16", "rounds"),
        ("bf16", "f16", "rounds"),
        ("u8", "i32", "exact"),
        ("i64", "i32", "fits"),
        ("i32", "f32", "refused"),
        ("bf16", "i32", "refused"),
        ("bool", "i32", "refused"),
        ("bf16", "c64", "refused"),
    ],
)
def test_what_becomes_of_element_types(found, wanted, how):
    types = [TensorType.new((), name).dtype.numpy for name in (found, wanted)]
    assert conversion(*types) == how


def test_numbers_that_become_infinite_are_refused_even_when_rounding():
    half = np.dtype(np.float16)
    assert converted("w", np.float32([1.1, np.inf, np.nan]), half, allow_rounding=True)[0] == (
        np.float16(1.1)
    )
    with pytest.raises(DTypeError, match="'w' is float32, with numbers too large for float16"):
        converted("w", np.float32([1e6, np.inf]), half, allow_rounding=True)


def test_integers_fit_or_are_refused():
    narrow = np.dtype(np.int8)
    assert converted("n", np.array([-128, 127]), narrow).dtype == narrow
    assert converted("n", np.array([], np.int64), narrow).size == 0
    with pytest.raises(DTypeError, match="'n' is int64, with values outside -128 to 127"):
        converted("n", np.array([128]), narrow)


def test_names_of_any_kind_are_told_on_short_lines_and_soon():
    strange = ["a." * 2000 + "w", "x" * 100_000, "line\nbreak", "9" * 5000, "a." + "8" * 5000]
    strange += [".".join(["1"] * i + ["2"] * (1200 - i)) for i in range(1100)]
    strange += [f"{'ab' * 50}{i}" for i in range(3000)]
    weights = dict.fromkeys(strange, np.ones(1, np.float32))
    wanted = {f"{'ba' * 50}{i}": TensorType.new((1,)) for i in range(50)}
    begun = time.process_time()
    with pytest.raises(MismatchError, match=r"4105 unexpected") as caught:
        match(weights, wanted)
    assert time.process_time() - begun < 10
    assert max(map(len, str(caught.value).splitlines())) < 400
    assert "'line\\nbreak'" in str(caught.value)
