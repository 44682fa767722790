"""Every row: the error that it must be, in words, and nothing changed."""

import os

import pytest

from darner import DarnerError, InternalError
from tests.hostile import (
    rows_commands,
    rows_config,
    rows_data,
    rows_files,
    rows_graph,
    rows_options,
    rows_session,
    rows_signals,
    rows_training,
)
from tests.hostile.subjects import SUBJECTS

MODULES = (
    *(rows_graph, rows_session, rows_options, rows_files, rows_config),
    *(rows_data, rows_training, rows_commands, rows_signals),
)
ROWS = [row for module in MODULES for row in module.ROWS]


@pytest.fixture(scope="module")
def subjects(tmp_path_factory):
    """Subjects by name: made when first asked for, and again where one was changed."""
    made = {}

    def get(name, *, anew=False):
        if anew and name in made:
            made.pop(name).close()
        elif name not in made:
            made[name] = SUBJECTS[name](tmp_path_factory.mktemp(name))
        return made.get(name)

    yield get
    for subject in made.values():
        subject.close()


@pytest.mark.parametrize("row", ROWS, ids=[f"{row.subject}-{row.name}" for row in ROWS])
def test_what_is_bad_is_refused_and_changes_nothing(row, subjects, tmp_path, monkeypatch):
    subject = subjects(row.subject)
    monkeypatch.chdir(tmp_path)
    before = subject.held()
    try:
        with pytest.raises(row.error) as caught:
            row.action(subject.thing)
        assert subject.held() == before
    except BaseException:
        subjects(row.subject, anew=True)
        raise
    text = str(caught.value)
    assert row.phrase in text
    assert not isinstance(caught.value, InternalError)
    if isinstance(caught.value, DarnerError):
        assert "\n\n" not in text
        assert len(text) < 3000
    assert os.listdir(tmp_path) == []


def test_there_are_enough_rows_and_each_is_its_own():
    names = [(row.subject, row.name) for row in ROWS]
    assert len(set(names)) == len(names) >= 400
    assert all(row.phrase or row.error is KeyboardInterrupt for row in ROWS)
