"""Runs that share an update: the mean of their gradients, and no more work than that takes."""

import numpy as np
import pytest

import darner
from darner import optim
from tests.train.examples import classifier, everything, listed, trainer

OPTIMIZERS = {
    "sgd": optim.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adamw": optim.AdamW(0.02, clip_norm=0.1, schedule=optim.warmup(2), weight_decay=0.1),
    "lion": optim.Lion(0.01, clip_value=0.05, weight_decay=0.1),
    "adafactor": optim.Adafactor(0.05),
    "frozen": optim.Adam(0.02, multipliers={"in": 0.0}, clip_norm=0.2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_of_small_batches_is_a_step_of_one_large_batch(name):
    batches = listed(12)
    large = [
        {key: np.concatenate([item[key] for item in batches[i : i + 3]]) for key in batches[0]}
        for i in range(0, 12, 3)
    ]
    chosen = {"optimizer": OPTIMIZERS[name], "steps": 4}
    with trainer(large, graph=classifier(12, dropout=0.0), **chosen) as made:
        whole = made.train()
        wanted = dict(made.session.parameters())
    with trainer(batches, graph=classifier(4, dropout=0.0), accumulate=3, **chosen) as made:
        history = made.train()
        found = dict(made.session.parameters())
        assert int(made.session.state()["optimizer/step"]) == 4
    np.testing.assert_allclose(history.losses, whole.losses, rtol=2e-5)
    for key, value in wanted.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-3, atol=2e-5, err_msg=key)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_session_agrees_with_the_graph_that_decides_in_every_run(name):
    optimizer = OPTIMIZERS[name]
    optimizer = type(optimizer)(**{**vars(optimizer), "accumulate": 3})
    graph, batches = classifier(dropout=0.0), listed(7)
    step = optim.training_step(graph, optimizer)
    with darner.build_session(graph, optimizer=optimizer, threads=1, seed=3) as session:
        start = dict(session.parameters())
        state = {**start, **session.state()}
        for batch in batches:
            found = session.run(batch)["loss"]
            (wanted, *_) = darner.run(step, batch, start, state=state)
            np.testing.assert_allclose(found, wanted, rtol=1e-5)
        for key, value in {**session.parameters(), **session.state()}.items():
            np.testing.assert_allclose(value, state[key], rtol=1e-3, atol=1e-5, err_msg=key)
        assert int(session.state()["optimizer/accumulated"]) == 1


def test_runs_without_an_update_touch_neither_parameters_nor_moments():
    optimizer = optim.AdamW(0.02, accumulate=2, clip_norm=1.0)
    with darner.build_session(classifier(), optimizer=optimizer, threads=1, seed=3) as session:
        session.run(listed(1)[0])
        summing, whole = session._runner.last.plans.step, session.plan()
        names = set(summing.leaves("state"))
        assert names == {
            "optimizer/accumulated",
            "random_step",
            *(f"{name}/gradient_sum" for name in session.parameters()),
        }
        changed = {summing.buffers[leaf].place for leaf, _ in summing.updates}
        assert changed == {"state"}
        assert len(summing.kernels) < len(whole.kernels)


def test_both_programs_use_one_arena():
    optimizer = optim.AdamW(0.02, accumulate=2, clip_norm=1.0)
    with darner.build_session(classifier(), optimizer=optimizer, threads=1, seed=3) as session:
        session.run(listed(1)[0])
        first = session._runner.last.program.arena
        session.run(listed(1)[0])
        second = session._runner.last.program.arena
        assert first.ctypes.data == second.ctypes.data


def test_changing_numbers_or_the_optimizer_in_the_middle_of_a_step_is_no_fault():
    batches = listed(6)
    with darner.build_session(
        classifier(dropout=0.0), optimizer=optim.Adam(0.02, accumulate=2), threads=1, seed=3
    ) as session:
        session.run(batches[0])
        session.set_learning_rate(0.5)  # a number: the sums go on
        assert int(session.state()["optimizer/accumulated"]) == 1
        before = session.parameters()["in.bias"]
        session.run(batches[1])
        assert np.abs(session.parameters()["in.bias"] - before).max() > 0.1
        session.run(batches[2])
        loss = session.read_loss()
        session.set_optimizer(optim.SGD(0.1))
        assert session.read_loss() == loss  # what the last run made can still be read
        session.run(batches[3])
        assert "optimizer/accumulated" not in session.state()


def test_sizes_that_are_not_known_accumulate_too():
    batches = [*listed(2, batch=4), *listed(2, batch=6)]
    optimizer = optim.SGD(0.1, accumulate=2)
    with trainer(batches, graph=classifier("n", dropout=0.0), optimizer=optimizer, steps=2) as made:
        losses = list(made.train().losses)
        found = dict(made.session.parameters())
    expected = []
    with darner.build_session(classifier("n", dropout=0.0), threads=1, seed=3) as session:
        for pair in (batches[:2], batches[2:]):
            runs = [(session.run(b)["loss"].item(), session.gradients()) for b in pair]
            expected.append(sum(loss for loss, _ in runs) / 2)
            for key in session.parameters():
                mean = (runs[0][1][key] + runs[1][1][key]) / 2
                session.parameters()[key] = session.parameters()[key] - np.float32(0.1) * mean
        np.testing.assert_allclose(losses, expected, rtol=1e-5)
        for key, value in session.parameters().items():
            np.testing.assert_allclose(found[key], value, rtol=1e-4, atol=1e-6)


def test_the_plans_of_both_are_kept_in_files(tmp_path):
    optimizer = optim.AdamW(0.02, accumulate=2)
    path = tmp_path / "model.plan"
    results = []
    for _ in range(2):
        with darner.build_session_cached(
            classifier(), path, optimizer=optimizer, threads=1, seed=3
        ) as session:
            for batch in listed(4):
                session.run(batch)
            results.append(everything(session))
    assert results[0] == results[1]
    assert {item.name for item in tmp_path.iterdir()} >= {"model.adamw.plan", "model.summing.plan"}


def test_profiling_is_turned_off_for_both():
    with darner.build_session(
        classifier(), optimizer=optim.AdamW(0.02, accumulate=2), threads=1
    ) as session:
        session.set_profiling(True)
        session.run(listed(1)[0])
        assert session._runner.last.loaded.recorder is not None
        session.set_profiling(False)
        session.run(listed(1)[0])
        session.run(listed(1)[0])
        with pytest.raises(darner.ArgumentError, match="profiling was off"):
            session.profile()
