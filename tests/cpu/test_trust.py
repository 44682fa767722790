"""Code and plans on disk are believed only where nobody else can have written them."""

import os
import re
import stat
import warnings
from pathlib import Path

import numpy as np
import pytest

import darner
from darner import Graph
from darner.backends.base import trust
from darner.backends.base.cache import CacheWarning, ObjectCache, UntrustedCacheWarning
from darner.backends.base.trust import UntrustedError, opened_folder, read_file
from darner.session.planfile import PlanFileWarning

pytestmark = pytest.mark.skipif(os.name != "posix", reason="owners and modes are POSIX's")
SOMEBODY = 65534


class Changed:
    """The system's answer about a file, with another owner or group."""

    def __init__(self, found, **fields):
        self._found = found
        vars(self).update(fields)

    def __getattr__(self, name):
        return getattr(self._found, name)


@pytest.fixture
def given_away(monkeypatch):
    """A function that makes a file or folder, as far as darner is told, somebody else's: only the administrator can do so in truth."""
    others = {}

    def give(path, **fields):
        found = os.lstat(path)
        others[found.st_dev, found.st_ino] = fields or {"st_uid": SOMEBODY}

    real = os.fstat

    def told(descriptor):
        found = real(descriptor)
        return Changed(found, **others.get((found.st_dev, found.st_ino), {}))

    monkeypatch.setattr(trust, "status", told)
    return give


@pytest.fixture
def warned():
    """All warnings of a test."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught


def graph():
    g = Graph("trusted")
    g.set_outputs([(g.input("x", (7,)) * 3.0).tanh().sum()])
    return g


def check(folder):
    """Assert that a session with this cache computes what it should."""
    x = np.linspace(-1, 1, 7, dtype=np.float32)
    with darner.build_inference_session(graph(), cache=folder, threads=1) as session:
        (found,) = session.run({"x": x}).values()
    np.testing.assert_allclose(found, np.tanh(3 * x).sum(), atol=1e-5)


@pytest.fixture
def kept(tmp_path):
    """A folder with the build of the graph, and its one entry."""
    folder = tmp_path / "objects"
    check(folder)
    (entry,) = folder.iterdir()
    return folder, entry


# --------------------------------------------------------------------------- folders


def test_what_is_made_is_the_users_alone_whatever_the_mask(tmp_path):
    before = os.umask(0)
    try:
        ObjectCache(tmp_path / "a" / "b").put("key", b"code")
    finally:
        os.umask(before)
    for folder in (tmp_path / "a", tmp_path / "a" / "b"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (entry,) = (tmp_path / "a" / "b").iterdir()
    assert stat.S_IMODE(entry.stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770, 0o702])
def test_a_folder_that_others_may_write_is_not_used_with_one_warning(kept, warned, mode):
    folder, entry = kept
    content = entry.read_bytes()
    folder.chmod(mode)
    for _ in range(2):
        check(folder)
    assert [item.category for item in warned] == [UntrustedCacheWarning]
    text = str(warned[0].message)
    assert f"'{folder}' may be written by others (mode {mode:04o})" in text
    assert "chmod go-w" in text
    assert list(folder.iterdir()) == [entry]
    assert entry.read_bytes() == content


def test_a_folder_that_somebody_else_owns_is_not_used(kept, warned, given_away):
    folder, _ = kept
    given_away(folder)
    for _ in range(2):
        check(folder)
    assert [item.category for item in warned] == [UntrustedCacheWarning]
    assert f"belongs to somebody else (user {SOMEBODY})" in str(warned[0].message)


@pytest.mark.skipif(os.name == "posix" and os.geteuid() != 0, reason="only root gives files away")
def test_a_folder_that_was_given_away_in_truth_is_not_used(kept, warned):
    folder, entry = kept
    os.chown(folder, SOMEBODY, SOMEBODY)
    check(folder)
    os.chown(folder, 0, 0)
    os.chown(entry, SOMEBODY, SOMEBODY)
    check(folder)
    assert [item.category for item in warned] == [UntrustedCacheWarning] * 2


def test_a_folder_above_that_others_may_write_is_no_place_for_a_cache(kept, warned):
    folder, _ = kept
    folder.parent.chmod(0o777)
    check(folder)
    assert f"'{folder.parent}' may be written by others" in str(warned[0].message)


def test_a_folder_above_of_somebody_else_is_no_place_for_a_cache(kept, warned, given_away):
    folder, _ = kept
    given_away(folder.parent)
    check(folder)
    assert f"'{folder.parent}' belongs to somebody else" in str(warned[0].message)


def test_a_sticky_folder_above_and_a_group_of_ones_own_are_no_reason(kept, warned, monkeypatch):
    folder, entry = kept
    monkeypatch.setattr("darner.backends.cpu.kernels.compile_modules", None)
    folder.parent.chmod(0o1777)
    check(folder)
    folder.parent.chmod(0o770)
    monkeypatch.setattr(trust, "_is_alone", lambda group, user: True)
    check(folder)
    assert warned == []
    monkeypatch.setattr(trust, "_is_alone", lambda group, user: False)
    assert ObjectCache(folder).get(entry.stem) is None
    assert [item.category for item in warned] == [UntrustedCacheWarning]


def test_the_system_is_believed_as_the_user_is(kept, warned, given_away, monkeypatch):
    folder, entry = kept
    monkeypatch.setattr("darner.backends.cpu.kernels.compile_modules", None)
    given_away(folder, st_uid=0)
    given_away(entry, st_uid=0)
    check(folder)
    assert warned == []


def test_a_group_is_ones_own_if_nobody_else_is_in_it(monkeypatch):
    import grp
    import pwd

    def people(name, members):
        user = pwd.struct_passwd(("ada", "x", 1000, 1000, "", "/", "/bin/sh"))
        monkeypatch.setattr(pwd, "getpwuid", lambda number: user)
        monkeypatch.setattr(grp, "getgrgid", lambda n: grp.struct_group((name, "x", n, members)))
        trust._is_alone.cache_clear()
        return trust._is_alone(1000, 1000)

    try:
        assert people("ada", [])
        assert people("ada", ["ada"])
        assert not people("ada", ["ada", "eve"])
        assert not people("staff", [])
        assert not trust._is_alone(50, 1000)
    finally:
        trust._is_alone.cache_clear()


def test_links_among_folders_are_followed_if_they_are_the_users(
    kept, tmp_path, warned, monkeypatch
):
    folder, _ = kept
    monkeypatch.setattr("darner.backends.cpu.kernels.compile_modules", None)
    for name, target in (("whole", folder), ("part", "objects"), ("up", "../" + tmp_path.name)):
        (tmp_path / name).symlink_to(target)
    for path in ("whole", "part", "up/objects", "objects/../objects/."):
        check(tmp_path / path)
    assert warned == []
    (tmp_path / "circle").symlink_to("circle")
    assert ObjectCache(tmp_path / "circle").get("key") is None


def test_a_link_of_somebody_else_is_not_followed(kept, tmp_path, warned, monkeypatch):
    folder, _ = kept
    link = tmp_path / "link"
    link.symlink_to(folder)
    real = os.stat

    def told(path, **options):
        found = real(path, **options)
        return Changed(found, st_uid=SOMEBODY) if path == "link" else found

    monkeypatch.setattr(os, "stat", told)
    assert ObjectCache(link).size() == 0
    assert "link' belongs to somebody else" in str(warned[0].message)


def test_what_was_opened_is_what_is_read(tmp_path):
    folder, other = tmp_path / "folder", tmp_path / "other"
    ObjectCache(folder).put("key", b"mine")
    ObjectCache(other).put("key", b"planted")
    with opened_folder(folder) as opened:
        folder.rename(tmp_path / "away")
        folder.symlink_to(other)
        assert opened.read("key.object").endswith(b"mine")


def test_a_folder_that_cannot_be_read_can_be_passed_through(tmp_path):
    above = tmp_path / "above"
    ObjectCache(above / "objects").put("key", b"code")
    above.chmod(0o100)
    try:
        assert ObjectCache(above / "objects").get("key") == b"code"
    finally:
        above.chmod(0o700)


# --------------------------------------------------------------------------- entries


def replaced_by(entry, how, tmp_path):
    """Put something in an entry's place, or change it, as somebody else could."""
    if how == "writable by a group":
        entry.chmod(0o660)
    elif how == "writable by all":
        entry.chmod(0o606)
    elif how == "a second name":
        os.link(entry, tmp_path / "name")
    elif how == "too large":
        os.truncate(entry, 1 << 40)
    else:
        content = entry.read_bytes()
        entry.unlink()
        if how == "a link":
            (tmp_path / "outside").write_bytes(content)
            entry.symlink_to(tmp_path / "outside")
        elif how == "a device":
            entry.symlink_to("/dev/zero")
        elif how == "a pipe":
            os.mkfifo(entry)


WAYS = {
    "writable by a group": "may be written by others",
    "writable by all": "may be written by others",
    "a second name": "has 2 names",
    "too large": "more than",
    "a link": "is not a plain file",
    "a device": "is not a plain file",
    "a pipe": "is not a plain file",
}


@pytest.mark.parametrize("how", WAYS)
def test_an_entry_that_others_could_have_written_is_made_again_with_one_warning(
    kept, tmp_path, warned, how
):
    folder, entry = kept
    replaced_by(entry, how, tmp_path)
    for _ in range(2):
        check(folder)
    assert [item.category for item in warned] == [UntrustedCacheWarning]
    text = str(warned[0].message)
    assert WAYS[how] in text
    assert str(entry) in text
    about = entry.lstat()
    assert stat.S_ISREG(about.st_mode)
    assert (stat.S_IMODE(about.st_mode), about.st_nlink) == (0o600, 1)


def test_an_entry_of_somebody_else_is_not_loaded(kept, warned, given_away):
    folder, entry = kept
    given_away(entry)
    assert ObjectCache(folder).get(entry.stem) is None
    assert f"'{entry}' belongs to somebody else" in str(warned[0].message)


def test_a_folder_in_the_place_of_an_entry_is_told_of_and_does_no_harm(kept, warned):
    folder, entry = kept
    entry.unlink()
    entry.mkdir()
    check(folder)
    assert [item.category for item in warned] == [UntrustedCacheWarning, CacheWarning]
    assert ObjectCache(folder).size() == 0
    ObjectCache(folder).clear()
    assert entry.is_dir()


def test_trimming_and_clearing_follow_no_links(tmp_path):
    outside = tmp_path / "outside"
    outside.write_bytes(bytes(1000))
    cache = ObjectCache(tmp_path / "objects", limit_bytes=300)
    cache.put("a", bytes(100))
    (tmp_path / "objects" / "link.object").symlink_to(outside)
    cache.put("b", bytes(100))
    cache.put("c", bytes(100))
    assert cache.size() <= 300
    cache.clear()
    assert outside.read_bytes() == bytes(1000)


def test_systems_without_owners_keep_and_find_entries(tmp_path, monkeypatch):
    monkeypatch.setattr(trust, "POSIX", False)
    cache = ObjectCache(tmp_path / "a" / "b")
    assert cache.get("key") is None
    cache.put("key", b"code")
    assert cache.get("key") == b"code"
    assert cache.size() > 0
    cache.clear()
    assert cache.get("key") is None


def test_a_user_without_a_home_has_no_cache_of_their_own(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert ObjectCache().folder is None
    ObjectCache().put("key", b"code")


# --------------------------------------------------------------------------- plans


def opened_with(path):
    return darner.build(graph(), mode="infer", device="reference", plan_file=path, cache=None)


@pytest.mark.parametrize("how", ["writable by a group", "a second name", "a link", "a pipe"])
def test_a_plan_that_others_could_have_written_is_made_again(tmp_path, warned, how):
    path = tmp_path / "plans" / "model.plan"
    path.parent.mkdir(0o700)
    opened_with(path).plan()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    replaced_by(path, how, tmp_path)
    opened_with(path).plan()
    assert [item.category for item in warned] == [PlanFileWarning]
    assert f"is not used, and is made again: '{path}' {WAYS[how]}" in str(warned[0].message)
    opened_with(path).plan()
    assert len(warned) == 1


def test_a_plan_in_a_folder_of_others_is_not_used(tmp_path, warned):
    path = tmp_path / "model.plan"
    opened_with(path).plan()
    tmp_path.chmod(0o777)
    opened_with(path).plan()
    assert f"'{tmp_path}' may be written by others" in str(warned[0].message)


def test_a_file_that_is_believed_is_read_whole(tmp_path):
    (tmp_path / "file").write_bytes(bytes(100_000))
    assert read_file(tmp_path / "file") == bytes(100_000)
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "missing")
    with pytest.raises(NotADirectoryError):
        read_file(tmp_path / "file" / "inside")
    (tmp_path / "file").chmod(0o666)
    with pytest.raises(UntrustedError, match="mode 0666"):
        read_file(tmp_path / "file")


# --------------------------------------------------------------------------- what could run code


UNSAFE = re.compile(
    r"^\s*(?:import|from) (?:pickle|marshal|shelve|dill|cloudpickle|joblib)\b"
    r"|allow_pickle=(?!False)|torch\.load\((?!')|\bexec\(",
    re.MULTILINE,
)


MAKES_FUNCTIONS = {"compat/forms.py"}
"""Modules that make functions of the package's own text, as dataclasses do: no file and no user's text reaches them."""


def test_nothing_is_unpickled():
    """A pickle can run any code when it is read."""
    package = Path(darner.__file__).parent
    for path in package.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        unsafe = {found[0] for found in UNSAFE.finditer(text)}
        if path.relative_to(package).as_posix() in MAKES_FUNCTIONS:
            assert unsafe == {"exec("}, path
        else:
            assert not unsafe, path
        assert text.count("np.load(") == text.count("allow_pickle=False"), path
