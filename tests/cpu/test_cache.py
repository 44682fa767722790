"""The cache of compiled code, as sessions and programs use it."""

import os
import warnings

import numpy as np
import pytest

import darner
from darner import Graph
from darner.backends.base.cache import CacheWarning, CorruptEntryWarning, ObjectCache
from darner.backends.cpu import kernels
from tests.cpu.running import compiled, run_program
from tests.leaks import models


def graph_of(size: int) -> Graph:
    g = Graph()
    x = g.input("x", (size,))
    g.set_outputs([(x * float(size)).exp().sum()])
    return g


def check(size: int, cache: ObjectCache) -> None:
    """Assert that a program with this cache computes what the reference does."""
    graph = graph_of(size)
    given = {"x": np.linspace(-0.1, 0.1, size, dtype=np.float32)}
    program = compiled(graph, threads=2, cache=cache)
    try:
        found = run_program(program, given)
    finally:
        program.close()
    np.testing.assert_allclose(found, darner.run(graph, given, float64=True), rtol=1e-5)


def no_compiler(*args, **options):
    raise AssertionError("it is compiled again")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """What a session learns, and a cache that has its code."""
    folder = tmp_path_factory.mktemp("objects")
    with models.training(cache=folder) as session:
        return models.learned(session, 3), folder


def copied(folder, target) -> list:
    for path in folder.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    return sorted(target.iterdir())


def test_a_second_session_compiles_nothing(trained, monkeypatch):
    wanted, folder = trained
    monkeypatch.setattr(kernels, "compile_modules", no_compiler)
    monkeypatch.setattr(kernels, "emit_module", no_compiler)
    with models.training(cache=folder) as session:
        assert models.same(models.learned(session, 3), wanted)
    with models.training(cache=folder, threads=3) as session:
        assert models.same(models.learned(session, 3), wanted)


@pytest.mark.parametrize(
    "damage",
    [
        "of another key",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("cut", "flip", "empty")),
    ],
)
def test_a_damaged_entry_is_compiled_again_with_one_warning(trained, tmp_path, damage):
    wanted, folder = trained
    (path,) = copied(folder, tmp_path)
    whole = path.read_bytes()
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 8]) + whole[middle + 1 :]
    ObjectCache(tmp_path).put("other", b"other")
    foreign = (tmp_path / "other.object").read_bytes()
    path.write_bytes(
        {"cut": whole[:middle], "flip": flipped, "empty": b"", "of another key": foreign}[damage]
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            with models.training(cache=tmp_path) as session:
                assert models.same(models.learned(session, 3), wanted)
    assert [item.category for item in caught] == [CorruptEntryWarning]
    assert str(path) in str(caught[0].message)
    assert ObjectCache(tmp_path).get(path.stem) is not None


def test_a_folder_that_cannot_be_written_warns_once_in_all_sessions(tmp_path):
    x = np.linspace(-1, 1, 5, dtype=np.float32)
    (tmp_path / "file").write_bytes(b"")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            folder = tmp_path / "file" / "objects"
            with darner.build_inference_session(graph_of(5), cache=folder) as session:
                (found,) = session.run({"x": x}).values()
            np.testing.assert_allclose(found, np.exp(5 * x).sum(), rtol=1e-5)
    assert [item.category for item in caught] == [CacheWarning]
    assert "cannot be cached" in str(caught[0].message)


@pytest.mark.skipif(os.name != "posix", reason="permissions")
def test_a_cache_that_is_shared_read_only_is_used(trained, tmp_path, monkeypatch):
    wanted, folder = trained
    (path,) = copied(folder, tmp_path)

    def refused(*args, **options):
        raise PermissionError(13, "Permission denied")

    # The administrator may write anywhere, so the system's answer to others is put in its place.
    monkeypatch.setattr(os, "utime", refused)
    monkeypatch.setattr(kernels, "compile_modules", no_compiler)
    with models.training(cache=tmp_path) as session:
        assert models.same(models.learned(session, 3), wanted)
    assert list(tmp_path.iterdir()) == [path]


def test_the_folder_never_holds_more_than_its_limit(tmp_path):
    check(1, ObjectCache(tmp_path))
    entry = ObjectCache(tmp_path).size()
    cache = ObjectCache(tmp_path, limit_bytes=int(3.5 * entry))
    for size in (2, 3, 5, 40, 64, 2, 65):
        check(size, cache)
        assert cache.size() <= cache.limit_bytes
    assert len(list(tmp_path.iterdir())) >= 2


def test_a_cache_too_small_for_anything_keeps_nothing_and_harms_nothing(tmp_path):
    check(7, ObjectCache(tmp_path, limit_bytes=10))
    assert list(tmp_path.iterdir()) == []


def test_other_code_of_the_same_shape_has_another_key(tmp_path):
    cache = ObjectCache(tmp_path)
    for size in (8, 9):
        check(size, cache)
    assert len(list(tmp_path.iterdir())) == 2


def test_an_entry_removed_between_sessions_is_made_again(trained, tmp_path):
    wanted, folder = trained
    (path,) = copied(folder, tmp_path)
    ObjectCache(tmp_path).clear()
    assert not path.exists()
    with models.training(cache=tmp_path) as session:
        assert models.same(models.learned(session, 3), wanted)
    assert ObjectCache(tmp_path).get(path.stem) is not None
