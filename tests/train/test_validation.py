"""Validation: other data, the same parameters, means that count every example alike."""

import math

import numpy as np
import pytest

import darner
from darner import optim, train
from darner.train.metrics import Means
from tests.train.examples import Shuffled, classifier, everything, examples, listed, trainer


def scores(session, batch):
    """The logits without dropout, in NumPy."""
    p = session.parameters()
    return np.tanh(batch["x"] @ p["in.weight"] + p["in.bias"]) @ p["out.weight"]


def losses(logits, labels):
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    return -np.log(
        (exponentials / exponentials.sum(-1, keepdims=True))[np.arange(len(labels)), labels]
    )


def test_metrics_are_those_of_the_trained_parameters_without_dropout():
    batches = listed(3, 5)
    with trainer(validation=batches, metrics=["accuracy", "perplexity"], steps=6) as made:
        (found,) = made.train().validations[-1:]
        logits = np.concatenate([scores(made.session, batch) for batch in batches])
    labels = np.concatenate([batch["labels"] for batch in batches])
    wanted = losses(logits, labels).mean()
    assert found.step == 6
    assert found.values["loss"] == pytest.approx(wanted, rel=1e-5)
    assert found.values["perplexity"] == pytest.approx(math.exp(wanted), rel=1e-5)
    assert found.values["accuracy"] == (logits.argmax(-1) == labels).mean()


def test_validation_does_not_disturb_training():
    with trainer(steps=6) as made:
        made.train()
        wanted = everything(made.session)
    with trainer(steps=6, validation=Shuffled(examples(8)), validate_every=1) as made:
        assert len(made.train().validations) == 6
        assert everything(made.session) == wanted


def test_batches_count_by_their_size():
    def graph(size):
        return classifier(size, dropout=0.0)

    data = examples(10, 5)
    parts = [{k: v[:8] for k, v in data.items()}, {k: v[8:] for k, v in data.items()}]
    symbolic = graph("n")
    with trainer(graph=graph(4), validation=parts, validation_graph=symbolic, steps=1) as made:
        found = made.train().validations[-1].values["loss"]
        wanted = losses(scores(made.session, data), data["labels"]).mean()
    assert found == pytest.approx(wanted, rel=1e-5)


def test_labels_that_count_for_nothing_do_not_weigh():
    batch = {
        "tokens": np.zeros((2, 3), np.int32),
        "labels": np.array([[1, -100, 2], [-100, -100, 0]]),
    }
    other = {"tokens": np.zeros((2, 3), np.int32), "labels": np.array([[1, 1, 1], [1, 1, 1]])}
    means = Means([train.loss()])
    means.add({"loss": np.array(2.0)}, batch)
    means.add({"loss": np.array(1.0)}, other)
    assert means.values() == {"loss": pytest.approx((3 * 2.0 + 6 * 1.0) / 9)}


def test_accuracy_takes_rows_with_a_one_and_several_positions():
    logits = np.array([[[0.1, 0.9], [0.8, 0.2]], [[0.3, 0.7], [0.6, 0.4]]])
    measure = train.accuracy().measure
    assert measure({"logits": logits}, {"labels": np.array([[1, 0], [0, -100]])}) == (2, 3)
    assert measure({"logits": logits[0]}, {"labels": np.array([[0.0, 1.0], [0.0, 1.0]])}) == (1, 2)


def test_a_metric_of_ones_own_is_a_function_with_a_name():
    def largest(outputs, batch):
        return float(outputs["logits"].max())

    with trainer(validation=listed(1, 5), metrics={"largest": largest}, steps=2) as made:
        made.train()
        found = made.history.validations[-1].values
        wanted = scores(made.session, listed(1, 5)[0]).max()
    assert list(found) == ["loss", "largest"]
    assert found["largest"] == pytest.approx(wanted, rel=1e-5)


def test_a_session_of_ones_own_may_validate():
    with trainer(steps=2) as first:
        with (
            darner.build_inference_session(classifier(), share=first.session, threads=1) as session,
            train.Trainer(
                first.session, listed(7), steps=2, validation=listed(1), validation_graph=session
            ) as made,
        ):
            made.train()
            assert made.history.validations[0].step == 2
        assert session.closed
        assert not first.session.closed


def test_a_graph_that_counts_while_it_runs_is_not_validated_with():
    g = darner.Graph("running mean")
    x = g.input("x", (3,))
    seen = g.state("seen", ())
    g.set_update(seen, seen + x.mean())
    g.set_outputs([(x * g.parameter("w", ())).square().mean()])
    rows = [{"x": np.ones(3, np.float32)}]
    with pytest.raises(darner.ArgumentError) as error:
        train.Trainer(g, rows, optimizer=optim.SGD(0.1), steps=1, threads=1, validation=rows)
    assert "changes its states seen" in str(error.value)
    assert "validation_graph=" in str(error.value)


@pytest.mark.parametrize(
    ("metrics", "text"),
    [
        ([train.accuracy("scores")], "the graph has no output 'scores'; it has loss, logits"),
        ([train.accuracy(labels="label")], "batches have no 'label'; did you mean 'labels'"),
        ([train.loss("logits")], "the loss is one number, but output 'logits' is (4, 3)"),
    ],
)
def test_metrics_name_what_is_missing(metrics, text):
    with (
        trainer(validation=listed(1), metrics=metrics, steps=1) as made,
        pytest.raises(darner.DarnerError) as error,
    ):
        made.train()
    assert text in str(error.value)


def test_two_metrics_of_one_name_are_refused():
    with pytest.raises(darner.ArgumentError, match="two metrics 'accuracy'"):
        trainer(metrics=["accuracy", train.accuracy("other")])
