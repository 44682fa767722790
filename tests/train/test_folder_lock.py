"""A training folder is one trainer's at a time, however that ends."""

import errno
import gc
import json
import os
import subprocess
import sys

import pytest

from darner import ArgumentError, RunError, train
from darner.io.atomic import FileError
from darner.train import folder_lock
from darner.train.folder_lock import LOCK, FolderLock
from tests.train.examples import Shuffled, examples, trainer

SOURCE = (
    "import sys\n"
    "from darner.train.folder_lock import FolderLock\n"
    "lock = FolderLock(sys.argv[1], 'checkpoint=')\n"
    "lock.hold()\n"
    "print('has it', flush=True)\n"
    "sys.stdin.read()\n"
)


def made(folder, before=None, **options):
    source = Shuffled(examples(12), seed=1, ahead=0, before=before)
    return trainer(source, checkpoint=folder, steps=4, **options)


@pytest.fixture
def other(tmp_path):
    """Another process that has the folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", SOURCE, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"has it\n"
    yield process
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


def test_a_second_process_is_told_who_has_the_folder_and_may_have_it_when_that_is_killed(
    other, tmp_path
):
    with pytest.raises(train.FolderInUseError) as found:
        made(tmp_path)
    said = str(found.value)
    assert f"is in use by process {other.pid} on " in said
    assert "FolderLock" in said
    assert "; wait for it or end it, or name another folder: checkpoint=" in said
    assert found.value.owner["pid"] == other.pid
    assert (tmp_path / LOCK).exists()
    other.kill()
    other.wait()
    with made(tmp_path) as second:
        second.train()
    assert not (tmp_path / LOCK).exists()


def test_a_second_trainer_of_the_process_is_told(tmp_path):
    folder = tmp_path / "run"
    with made(folder) as first:
        with pytest.raises(train.FolderInUseError, match=r"another trainer of this process.*close"):
            made(folder)
        first.train()
        with pytest.raises(train.FolderInUseError):
            made(folder, resume=True)
    with made(folder, resume=True) as second:
        assert second.step == 4


def test_a_trainer_that_nobody_has_any_more_leaves_its_folder(tmp_path):
    first = made(tmp_path)
    session = first.session
    del first
    with made(tmp_path):
        assert (tmp_path / LOCK).exists()
    session.close()


def test_a_training_that_failed_leaves_its_folder_and_takes_it_back(tmp_path):
    calls = []

    def fails():
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("no more")

    first = made(tmp_path, before=fails, checkpoint_every=1)
    with pytest.raises(RuntimeError, match="no more"):
        first.train()
    assert not (tmp_path / LOCK).exists()
    with made(tmp_path, resume=True, checkpoint_every=1) as second:
        assert second.step == 2
        with pytest.raises(train.FolderInUseError):
            first.train()
        second.train()
    with pytest.raises(RunError, match=r"another training went on in .*; Trainer\(\.\.\., resume"):
        first.train()
    first.close()


def test_a_trainer_that_cannot_be_made_leaves_nothing(tmp_path):
    with pytest.raises(ArgumentError, match="there is no checkpoint"):
        made(tmp_path / "a" / "b", resume=tmp_path / "none.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_told_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="cannot make the folder"):
        made(tmp_path / "file" / "run")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_neither_keeps_the_lock_nor_gives_it_away(tmp_path):
    lock = FolderLock(tmp_path, "checkpoint=")
    lock.hold()
    reading, writing = os.pipe()
    go, going = os.pipe()
    child = os.fork()
    if child == 0:
        answers = ["kept" if lock.held else "dropped"]
        lock.release()
        try:
            FolderLock(tmp_path, "checkpoint=").hold()
        except train.FolderInUseError as error:
            answers.append("told" if error.owner["pid"] == os.getppid() else "wrong")
        os.write(writing, " ".join(answers).encode())
        os.read(go, 1)
        os._exit(0)
    try:
        assert os.read(reading, 100) == b"dropped told"
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()
        lock.release()
        again = FolderLock(tmp_path, "checkpoint=")
        again.hold()  # while the child lives
        again.release()
    finally:
        os.write(going, b"x")
        os.waitpid(child, 0)
        for one in (reading, writing, go, going):
            os.close(one)


@pytest.mark.skipif(sys.platform == "win32", reason="locks of Unix")
def test_a_file_system_without_locks_is_told_of_once(tmp_path, monkeypatch):
    def refused(descriptor, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(folder_lock.fcntl, "flock", refused)
    with pytest.warns(RuntimeWarning, match="has no locks") as found, made(tmp_path) as first:
        first.train()
    assert len(found) == 1


def test_a_file_that_was_left_behind_is_no_lock(tmp_path):
    (tmp_path / LOCK).write_text("not even JSON")
    lock = FolderLock(tmp_path, "checkpoint=")
    lock.hold()
    assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()
    lock.release()
    gc.collect()
    assert list(tmp_path.iterdir()) == []
