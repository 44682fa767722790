"""What cannot be validated on is told before anything is trained."""

import numpy as np
import pytest

import darner
from darner import data, train
from tests.train.examples import listed, trainer


def changed(**changes):
    """Two batches, the second of which is wrong."""
    good = listed(2)
    return [good[0], {**good[1], **changes}]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"X": np.zeros((4, 2), np.float32)}, "there is no input 'X'; it has x, labels"),
        ({"x": np.zeros((4, 99), np.float32)}, "but it is given the shape (4, 99)"),
        ({"x": np.zeros((4, 2), np.complex64)}, "input 'x' is "),
        ({"labels": np.array(["a", "b", "c", "d"])}, "input 'labels' is "),
    ],
)
def test_a_wrong_batch_of_validation_is_told_when_the_trainer_is_made(change, said):
    with pytest.raises(darner.DarnerError) as found:
        trainer(validation=changed(**change), steps=1)
    assert "batch 1 of validation: " in str(found.value)
    assert said in str(found.value)


def test_an_input_that_validation_lacks_is_told():
    few = [{"x": batch["x"]} for batch in listed(1)]
    with pytest.raises(darner.RunError, match=r"batch 0 of validation: no value.* input 'labels'"):
        trainer(validation=few, steps=1)


class Nothing:
    """Batches, none of them, which have no length either."""

    def __iter__(self):
        return iter(())


@pytest.mark.parametrize("empty", [[], Nothing()])
def test_no_batches_of_validation_are_told(empty):
    with pytest.raises(darner.ArgumentError, match="there are no batches"):
        trainer(validation=empty, steps=1)


def test_a_source_is_looked_at_and_still_hands_out_all_its_batches():
    rows = {name: np.concatenate([one[name] for one in listed(3)]) for name in listed(1)[0]}
    source = data.Arrays(rows, batch=4)
    with trainer(validation=source, steps=1) as made:
        assert source.state()["position"] == 0
        made.train()
        measured = made.history.validations[-1].values["loss"]
        again = made.validate()["loss"]
    assert measured == again
    wrong = data.Arrays({**rows, "x": rows["x"][:, :1]}, batch=4)
    with pytest.raises(darner.ShapeError, match="batch 0 of validation"):
        trainer(validation=wrong, steps=1)


def test_a_metric_that_cannot_be_measured_is_told_before_the_first_step():
    with trainer(validation=listed(1), metrics=[train.accuracy("scores")], steps=3) as made:
        with pytest.raises(darner.UnknownNameError, match="no output 'scores'"):
            made.train()
        assert made.step == 0


def test_a_generator_is_left_as_it_is():
    with trainer(validation=(one for one in listed(2)), steps=1) as made:
        made.train()
        assert len(made.history.validations) == 1
