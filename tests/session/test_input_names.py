"""HuggingFace's names of inputs are taken for those of the models' graphs, at every door."""

from pathlib import Path

import numpy as np
import pytest

import darner
from darner import ArgumentError, Graph, UnknownNameError, models, optim, train
from darner.graph.habits.table import INPUT_HINTS, INPUTS
from darner.models.bert import Bert, BertConfig

from .opening import opened

TOKENS = np.array([[1, 2, 3]], np.int64)
MASK = np.array([[1, 1, 0]], np.int64)


def reader():
    g = Graph("reader")
    tokens, mask = g.input("tokens", (1, 3), "i32"), g.input("mask", (1, 3), "i32")
    table = g.parameter("table", (5, 2))
    rows = g.embedding(tokens, table) * mask.cast("f32").unsqueeze(-1)
    g.set_outputs([rows.square().mean(label="loss")])
    return g


TABLE = {"table": np.arange(10, dtype=np.float32).reshape(5, 2)}
WANTED = np.mean((TABLE["table"][TOKENS] * MASK[..., None]) ** 2)
THEIRS = {"input_ids": TOKENS, "attention_mask": MASK}


def test_a_session_runs_on_the_names_of_a_tokenizer():
    with opened(reader(), params=TABLE, mode="infer", level=0) as session:
        assert session.run(THEIRS)["loss"] == pytest.approx(WANTED)
        session.set_input("input_ids", TOKENS)
        session.set_input("attention_mask", MASK)
        session.step()
        assert session.read_output() == pytest.approx(WANTED)


def test_the_reference_takes_them_too():
    assert darner.run(reader(), THEIRS, TABLE)[0] == pytest.approx(WANTED)


def test_batches_of_a_trainer_may_have_them():
    with opened(reader(), params=TABLE, level=0, optimizer=optim.SGD(0.1)) as session:
        train.Trainer(session, [THEIRS], steps=2, progress=False).train()
        assert session.read_loss() < WANTED


def test_a_graph_that_has_the_name_itself_keeps_its_meaning():
    g = Graph()
    ids, tokens = g.input("input_ids", (1,)), g.input("tokens", (1,))
    g.set_outputs([ids - tokens])
    found = darner.run(g, {"input_ids": [5.0], "tokens": [2.0]})[0]
    assert found == 3
    with opened(g, mode="infer", level=0) as session:
        assert session.run({"input_ids": [5.0], "tokens": [2.0]})["output0"] == 3


def test_an_input_under_both_names_is_refused():
    with (
        opened(reader(), params=TABLE, mode="infer", level=0) as session,
        pytest.raises(ArgumentError, match="'tokens' is given twice, once as 'input_ids'"),
    ):
        session.run({"tokens": TOKENS, **THEIRS})


@pytest.mark.parametrize("name", INPUT_HINTS)
def test_what_a_graph_has_no_use_for_says_why(name):
    g = Graph()
    g.set_outputs([g.input("tokens", (1, 3), "i32") + 1])
    with (
        opened(g, mode="infer", level=0) as session,
        pytest.raises(UnknownNameError, match=f"there is no input '{name}'") as caught,
    ):
        session.run({"input_ids": TOKENS, name: MASK})
    assert INPUT_HINTS[name] in str(caught.value)


def test_every_name_on_the_right_is_an_input_of_some_model():
    folder = Path(models.__file__).parent
    sources = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
    for name in INPUTS.values():
        assert f'"{name}"' in sources
    small = BertConfig(
        vocab_size=30,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
    )
    names = set(Bert(small).inference_graph(length=4).inputs)
    assert {INPUTS[name] for name in ("input_ids", "attention_mask", "token_type_ids")} == names
