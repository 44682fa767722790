"""Processes killed while they save or cache, and disks that are full: files are the old or the new ones, entirely."""

import errno
import os
import resource
import warnings

import numpy as np
import pytest
from safetensors.numpy import load_file

from darner.backends.base import cache as cache_module
from darner.backends.base.cache import CacheWarning, ObjectCache
from darner.session.atomic import FileError
from tests.faults.killing import in_child, killed
from tests.leaks import models

pytestmark = pytest.mark.skipif(os.name != "posix", reason="forks")

MANY = [20, pytest.param(100, marks=pytest.mark.slow)]


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    """A folder for compiled code, so that each model is compiled once."""
    return tmp_path_factory.mktemp("objects")


@pytest.fixture
def session(objects):
    with models.training(cache=objects) as made:
        models.learned(made, 1)
        yield made


def tables(session) -> list:
    """Parameters, and of the states those that are not settings of the optimizer, with their names."""
    states = session.state()
    learned = [name for name in states if name.endswith(("/mean", "/variance", "/step"))]
    assert len(learned) == 7
    parameters = session.parameters()
    return [(parameters, name) for name in parameters] + [(states, name) for name in learned]


def fill(session, number: int) -> None:
    """Give every parameter, moment and counter the same number."""
    for leaves, name in tables(session):
        leaves[name] = np.full_like(leaves[name], number)


def number_of(session) -> int:
    """The number that every parameter, moment and counter has."""
    found = {float(x) for leaves, name in tables(session) for x in np.unique(leaves[name])}
    assert len(found) == 1, f"a mixture: {found}"
    return int(found.pop())


@pytest.mark.parametrize("times", MANY)
def test_a_checkpoint_whose_writers_are_killed_always_loads(session, objects, tmp_path, times):
    path = tmp_path / "model.safetensors"
    random = np.random.default_rng(times)
    fill(session, 0)
    session.save_checkpoint(path)
    newest = halves = 0
    with models.training(cache=objects) as reader:
        for _ in range(times):
            base = newest

            def write(number, base=base):
                fill(session, base + number)
                session.save_checkpoint(path)

            done = killed(write, random)
            reader.load_checkpoint(path)
            newest = number_of(reader)
            # What was reported as saved is there; what was being saved may be.
            assert base + done <= newest <= base + done + 1
            halves += len(os.listdir(tmp_path)) - 1
    assert halves > times // 20  # of those killed in the midst of it: a test of the test
    assert load_file(path)["w"].shape == (models.SIZE, models.SIZE)
    fill(session, newest + 1)
    session.save_checkpoint(path)
    assert os.listdir(tmp_path) == [path.name]  # what the dead left is removed by the next writer


@pytest.mark.parametrize("times", MANY)
def test_a_cache_whose_writers_are_killed_has_whole_entries_only(tmp_path, times):
    random = np.random.default_rng(times)
    content = {f"key{i}": bytes([i]) * (20_000 + 40_000 * i) for i in range(8)}
    cache = ObjectCache(tmp_path, limit_bytes=600_000)
    found = 0

    def write(number):
        warnings.simplefilter("error")
        key = f"key{number % 8}"
        cache.put(key, content[key])

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(times):
            killed(write, random)
            for key, code in content.items():
                got = cache.get(key)
                assert got in (None, code)
                found += got is not None
            assert cache.size() <= 600_000 + len(content["key7"]) + 100  # killed before it trimmed
    assert found
    left = [path for path in tmp_path.iterdir() if path.suffix == ".unfinished"]
    assert len(left) <= times
    for path in left:
        os.utime(path, (1000, 1000))
    cache.put("key0", content["key0"])
    assert {path.suffix for path in tmp_path.iterdir()} == {".object"}
    assert cache.size() <= 600_000


def test_a_build_whose_writer_is_killed_loads_or_is_made_again(tmp_path):
    random = np.random.default_rng(4)
    cache = ObjectCache(tmp_path)
    with models.inference(cache=tmp_path) as session:
        wanted = session.run(models.values())
    (path,) = tmp_path.iterdir()
    build = cache.get(path.stem)
    phases = []

    def write(number):
        cache.clear()
        cache.put(path.stem, build)

    for _ in range(8):
        killed(write, random)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with models.inference(cache=tmp_path) as session:
                assert models.same(session.run(models.values()), wanted)
                phases.append(tuple(session.build_seconds))
    assert set(phases) <= {("load",), ("load", "optimize", "lower", "compile")}
    assert cache.get(path.stem) is not None


@pytest.mark.slow
def test_builders_killed_while_they_fill_a_cache_leave_one_that_works(tmp_path, objects):
    random = np.random.default_rng(3)
    with models.inference(cache=objects) as session:
        wanted = session.run(models.values())

    def build(number):
        with models.inference(cache=tmp_path, threads=1) as session:
            session.run(models.values())
        ObjectCache(tmp_path).clear()  # so that the next one compiles and writes again

    for _ in range(12):
        killed(build, random)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with models.inference(cache=tmp_path) as session:
                assert models.same(session.run(models.values()), wanted)


# Full disks


def limit(nbytes: int) -> None:
    """No file of this process grows past a size from now on, as on a disk that is full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, nbytes))


@pytest.mark.parametrize("room", [0, 1000, 50_000])
@pytest.mark.parametrize("existing", [True, False])
def test_a_full_disk_is_an_error_and_changes_nothing(session, tmp_path, room, existing):
    path = tmp_path / "model.safetensors"
    if existing:
        session.save_checkpoint(path)
    before = path.read_bytes() if existing else None

    def work():
        wanted = dict(session.parameters())
        limit(room)
        with pytest.raises(FileError, match="File too large") as caught:
            session.save_checkpoint(path)
        assert caught.value.errno == errno.EFBIG
        assert models.same(dict(session.parameters()), wanted)
        session.step()  # and it goes on
        assert not models.same(dict(session.parameters()), wanted)

    in_child(work)
    assert os.listdir(tmp_path) == ([path.name] if existing else [])
    assert not existing or path.read_bytes() == before
    session.save_checkpoint(path)
    session.load_checkpoint(path)


@pytest.mark.slow
def test_a_full_disk_costs_the_cache_and_nothing_else(objects, tmp_path):
    with models.inference(cache=objects) as session:
        wanted = session.run(models.values())

    def work():
        limit(1000)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                with models.inference(cache=tmp_path) as session:
                    assert models.same(session.run(models.values()), wanted)
        assert [item.category for item in caught] == [CacheWarning]
        assert "File too large" in str(caught[0].message)

    in_child(work)
    assert os.listdir(tmp_path) == []


def test_a_checkpoint_to_a_device_that_is_always_full_is_refused(session):
    with pytest.raises(FileError, match="not a regular file"):
        session.save_checkpoint("/dev/full")
    session.step()


def test_every_cut_of_a_cache_entry_is_noticed(tmp_path):
    cache = ObjectCache(tmp_path)
    cache.put("key", b"native code")
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.warns(cache_module.CorruptEntryWarning):
            assert cache.get("key") is None
    path.write_bytes(whole)
    assert cache.get("key") == b"native code"
