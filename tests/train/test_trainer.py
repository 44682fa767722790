"""The loop: what it runs, in which order, and whom it tells."""

import itertools
import json
import threading

import numpy as np
import pytest

import darner
from darner import optim, train
from tests.train.examples import (
    OPTIMIZER,
    Shuffled,
    classifier,
    everything,
    examples,
    listed,
    trainer,
)


def test_training_is_the_loop_that_one_would_write():
    batches = listed(5)
    with darner.build_session(classifier(), optimizer=OPTIMIZER, threads=1, seed=3) as session:
        losses = [session.run(batches[i % 5])["loss"].item() for i in range(12)]
        wanted = everything(session)
    with trainer(batches, steps=12) as made:
        history = made.train()
        assert list(history.losses) == losses
        assert everything(made.session) == wanted
        assert (made.step, made.epoch, history.steps) == (12, 2, 12)


def test_epochs_have_the_mean_loss_of_their_batches():
    with trainer(listed(4), epochs=3) as made:
        history = made.train()
    losses = np.array(history.losses).reshape(3, 4)
    assert [item.epoch for item in history.epochs] == [0, 1, 2]
    assert [item.steps for item in history.epochs] == [4, 4, 4]
    np.testing.assert_allclose([item.avg_loss for item in history.epochs], losses.mean(1), 1e-12)
    assert history.final_loss() == history.epochs[-1].avg_loss


def test_every_epoch_takes_the_batches_in_the_order_of_their_source():
    source = Shuffled(examples(12))
    seen = []

    class Watched(Shuffled):
        def __iter__(self):
            for batch in super().__iter__():
                seen.append(batch["x"].copy())
                yield batch

    with trainer(Watched(examples(12)), epochs=2) as made:
        made.train()
    wanted = [batch["x"] for _ in range(2) for batch in source]
    assert len(seen) == 6
    assert all(np.array_equal(a, b) for a, b in zip(seen, wanted, strict=True))


def test_callbacks_hear_of_everything_in_order():
    heard = []

    class Ear(train.Callback):
        def on_start(self, trainer):
            heard.append(("start", trainer.step))

        def on_step(self, metrics):
            heard.append(("step", metrics.step, metrics.epoch))

        def on_log(self, record):
            heard.append(("log", record["step"]))

        def on_validation(self, result):
            heard.append(("validation", result.step))

        def on_epoch(self, stats):
            heard.append(("epoch", stats.epoch))

        def on_end(self, history):
            heard.append(("end", history.steps))

        def close(self):
            heard.append(("close",))

    with trainer(
        listed(2), epochs=2, callbacks=[Ear()], validation=listed(1, 5), log_interval=2
    ) as made:
        made.train()
    assert heard == [
        ("start", 0),
        ("step", 1, 0),
        ("epoch", 0),
        ("log", 2),
        ("validation", 2),
        ("step", 2, 0),
        ("step", 3, 1),
        ("epoch", 1),
        ("log", 4),
        ("validation", 4),
        ("step", 4, 1),
        ("end", 4),
        ("close",),
    ]


def test_a_function_is_told_of_every_step_and_loss_history_keeps_them():
    told, kept = [], train.LossHistory()
    with trainer(steps=5, callbacks=[told.append, kept]) as made:
        history = made.train()
    assert [item.step for item in told] == [1, 2, 3, 4, 5]
    assert [item.amount for item in told] == [4, 8, 12, 16, 20]
    assert kept.losses == list(history.losses) == [item.loss for item in told]
    assert all(a.seconds < b.seconds for a, b in itertools.pairwise(told))


def test_a_callback_may_end_training():
    class Enough(train.Callback):
        def on_start(self, trainer):
            self.trainer = trainer

        def on_step(self, metrics):
            if metrics.step == 3:
                self.trainer.stop("enough")

    with trainer(steps=10, callbacks=[Enough()]) as made:
        history = made.train()
        assert (history.steps, history.stopped) == (3, "enough")
        # It goes on where it stood.
        assert trainer_steps(made) == 10


def trainer_steps(made):
    made.callbacks = []
    return made.train().steps


def test_early_stop_waits_and_then_stops():
    stop = train.EarlyStop(patience=2, metric="loss", minimum=100.0)
    with trainer(steps=50, validation=listed(1, 5), validate_every=3, early_stop=stop) as made:
        history = made.train()
    # The first validation is progress, the two that follow are not.
    assert history.steps == 9
    assert history.stopped.startswith("loss was no better than")


def test_early_stop_takes_more_as_better_where_the_metric_says_so():
    stop = train.EarlyStop(patience=1, metric="accuracy")
    with trainer(validation=listed(1, 5), metrics=["accuracy"], early_stop=stop, steps=4) as made:
        made.train()
    assert stop.higher is True


# ------------------------------------------------------------- Meganeura's names


def test_the_rate_of_a_config_is_read():
    batches = [(batch["x"], batch["labels"]) for batch in listed(3)]
    config = train.TrainConfig(learning_rate=0.5)
    with darner.build_session(classifier(dropout=0.0), threads=1, seed=3) as session:
        before = session.parameters()["in.bias"]
        gradients = session.run(listed(3)[0]) and session.gradients()
        made = train.Trainer(session, config)
        stats = made.train_epoch(batches[:1])
        after = session.parameters()["in.bias"]
        np.testing.assert_allclose(after, before - 0.5 * gradients["in.bias"], atol=1e-7)
        assert (stats.epoch, stats.steps) == (0, 1)
        assert isinstance(session.optimizer, optim.SGD)
        history = made.train(batches, epochs=2)
        assert [item.epoch for item in history.epochs] == [0, 1, 2]
        assert made.session is session


def test_a_config_names_the_two_parts_of_a_batch():
    g = darner.Graph("line")
    a, b = g.input("a", (2,)), g.input("b", (2,))
    g.set_outputs([(a * g.parameter("w", ()) - b).square().mean()])
    config = train.TrainConfig(optim.Adam(0.1), data_input="a", label_input="b", log_interval=1)
    pairs = [(np.array([1.0, 2.0]), np.array([2.0, 4.0]))]
    with train.Trainer(g, pairs, config, epochs=200, threads=1) as made:
        assert made.train().final_loss() < 1e-4


# ------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: trainer(steps=0), "steps is a whole number of at least 1, got 0"),
        (lambda: trainer(optimizer=None), "there is no optimizer"),
        (lambda: trainer(batches=[]), "there are no batches"),
        (lambda: trainer(batches={"x": 1}), "batches are iterated over, got dict"),
        (lambda: trainer(metrics=["acuracy"]), "there is no metric 'acuracy'; did you mean"),
        (lambda: trainer(early_stop=train.EarlyStop(2)), "early_stop looks at validation"),
        (lambda: trainer(log=True), "log=True is a file beside the checkpoints"),
        (lambda: trainer(callbacks=[3]), "a callback is a train.Callback or a function"),
        (lambda: trainer(nonsense=1), "nonsense"),
        (lambda: trainer(accumulate=0), "accumulate must be at least 1"),
        (lambda: train.EarlyStop(0), "patience is a whole number"),
        (lambda: trainer(checkpoint_every=0, checkpoint="never made"), "checkpoint_every"),
        (
            lambda: trainer(batches=(b for b in listed(3)), checkpoint="never made"),
            "checkpoints need batches that say where they are, which generator does not",
        ),
    ],
)
def test_mistakes_are_told_when_the_trainer_is_made(make, text):
    with pytest.raises(darner.DarnerError) as error:
        make()
    assert text in str(error.value)


def test_a_trainer_without_an_end_says_so():
    with darner.build_session(classifier(), optimizer=OPTIMIZER, threads=1) as session:
        made = train.Trainer(session, listed(2))
        with pytest.raises(darner.ArgumentError, match="there is no end; steps=, or epochs="):
            made.train()
        with pytest.raises(darner.ArgumentError, match="there are no batches"):
            train.Trainer(session, steps=3).train()
        with pytest.raises(darner.ArgumentError, match="has no option 'thread'"):
            train.Trainer(session, listed(2), thread=3)


def test_batches_that_come_to_an_end_say_so():
    with trainer((batch for batch in listed(3)), steps=5) as made:
        with pytest.raises(darner.RunError, match=r"exhausted after 1 epochs; .* a generator"):
            made.train()
        assert made.step == 3


def test_a_source_with_more_batches_than_it_says_is_an_error():
    class Wrong(list):
        def __len__(self):
            return 2

        def state(self):
            return {}

        def restore(self, state):
            pass

    with (
        trainer(Wrong(listed(3)), steps=5) as made,
        pytest.raises(darner.RunError, match="an epoch has 2 batches by its length"),
    ):
        made.train()


def test_records_can_be_written_as_json():
    records = []

    class Ear(train.Callback):
        def on_log(self, record):
            records.append(json.loads(json.dumps(record)))

    with trainer(steps=6, callbacks=[Ear()], log_interval=3) as made:
        history = made.train()
    assert [item["step"] for item in records] == [3, 6]
    assert records[1]["loss"] == pytest.approx(np.mean(history.losses[3:]))
    # The third update counts two before it: two thirds of the warm-up.
    assert records[0]["learning_rate"] == pytest.approx(0.02 * 2 / 3)
    assert 0.0 < records[0]["gradient_norm"] < 10.0
    assert records[0]["samples_per_second"] > 0.0


def test_another_thread_may_train():
    losses = []
    with trainer(steps=4) as made:
        worker = threading.Thread(target=lambda: losses.extend(made.train().losses))
        worker.start()
        worker.join()
    with trainer(steps=4) as made:
        assert list(made.train().losses) == losses


def test_the_reference_trains_the_same():
    found = {}
    for device in ("cpu", "reference"):
        with trainer(steps=5, accumulate=2, device=device, validation=listed(2, 5)) as made:
            history = made.train()
            found[device] = [*history.losses, history.validations[-1].values["loss"]]
    np.testing.assert_allclose(found["cpu"], found["reference"], rtol=1e-4)


def test_tokens_are_counted_where_there_are_tokens():
    g = darner.Graph("words")
    tokens, labels = g.input("tokens", (2, 6), "i32"), g.input("labels", (2, 6), "i32")
    table = g.parameter("table", (9, 9), init="normal(0.1)")
    g.set_outputs([g.cross_entropy_loss(g.embedding(tokens, table), labels, label="loss")])
    rows = [{"tokens": np.ones((2, 6), np.int32), "labels": np.full((2, 6), 3, np.int32)}]
    records = []

    class Ear(train.Callback):
        def on_log(self, record):
            records.append(record)

    with train.Trainer(
        g, rows, optimizer=optim.SGD(0.1), steps=3, threads=1, log_interval=3, callbacks=[Ear()]
    ) as made:
        made.train()
        assert (made.unit, made.progress.amount) == ("tokens", 36)
    assert records[0]["tokens_per_second"] == pytest.approx(36 / records[0]["seconds"])


def test_a_history_is_printed_in_a_few_lines():
    with trainer(validation=listed(1, 5), steps=300) as made:
        history = made.train()
    lines = str(history).splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("300 steps, ")
    assert lines[0].endswith(" s")
    assert lines[1].startswith(f"loss: first {history.losses[0]:.4g}, last ")
    assert f"lowest {min(history.losses):.4g} (step " in lines[1]
    assert lines[2].startswith("validation: ")
    assert len(repr(history)) < 80
    assert len(str(history)) < 400
    assert str(train.TrainHistory()) == "0 steps"
