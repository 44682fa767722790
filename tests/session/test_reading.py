"""Files of others: whatever they are, reading them is bounded, and what is wrong is said."""

import os
import socket
import time

import pytest

from darner import FormatError
from darner.io.atomic import FileError
from darner.io.reading import (
    MOST_DEPTH,
    MOST_JSON,
    RegularFile,
    parse_json,
    read_json,
    read_text,
    shown,
)


def special(folder, kind):
    path = folder / kind
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(os.path.relpath(path))
    elif kind == "loop":
        path.symlink_to(path)
    else:
        path.symlink_to(f"/dev/{kind}")
    return path


@pytest.mark.parametrize("kind", ["pipe", "folder", "socket", "loop", "zero", "null", "none"])
@pytest.mark.parametrize("read", [RegularFile, read_json, read_text])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path, kind, read):
    begun = time.monotonic()
    with pytest.raises(FileError, match=f"cannot read '.*{kind}': ") as caught:
        read(special(tmp_path, kind))
    assert caught.value.errno
    assert time.monotonic() - begun < 5


def test_a_name_with_a_nul_is_no_file():
    with pytest.raises(FileError, match=r"cannot read 'a\\x00b'"):
        RegularFile("a\0b")


def test_a_file_that_is_cut_short_while_it_is_open_is_an_error(tmp_path):
    path = tmp_path / "long"
    path.write_bytes(bytes(range(100)))
    file = RegularFile(path)
    assert file.read(10, 3) == bytes([10, 11, 12])
    os.truncate(path, 30)
    with pytest.raises(
        FormatError,
        match=r"long' was cut short while it was open: the sum takes 50 bytes from byte 20 on, and 10 are there",
    ):
        file.read(20, 50, "the sum")
    with pytest.raises(FormatError, match="had 100 bytes when it was opened, and has 30 now"):
        file.check_unchanged()


def test_a_file_that_is_written_to_is_told_from_one_that_is_not(tmp_path):
    path = tmp_path / "changing"
    path.write_bytes(b"one")
    os.utime(path, ns=(1, 1))
    file = RegularFile(path)
    file.check_unchanged()
    path.write_bytes(b"two")
    with pytest.raises(FormatError, match=r"changing' was written to since it was opened"):
        file.check_unchanged()


def test_an_open_file_stays_what_it_was_when_another_takes_its_name(tmp_path):
    path = tmp_path / "name"
    path.write_bytes(b"old")
    file = RegularFile(path)
    (tmp_path / "new").write_bytes(b"new")
    os.replace(tmp_path / "new", path)
    file.check_unchanged()
    assert file.read(0, 3) == b"old"


def test_files_are_closed_when_nothing_refers_to_them(tmp_path):
    path = tmp_path / "one"
    path.write_bytes(b"1")
    before = len(os.listdir("/proc/self/fd"))
    files = [RegularFile(path) for _ in range(10)]
    assert len(os.listdir("/proc/self/fd")) == before + 10
    del files
    assert len(os.listdir("/proc/self/fd")) == before
    for _ in range(10):
        with pytest.raises(FileError):
            RegularFile(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_huge_file_is_refused_by_its_size(tmp_path):
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.write(b"{")
        file.truncate(10 << 30)  # a hole: it takes no disk
    with pytest.raises(FormatError, match=rf"10,737,418,240 bytes, .* at most {MOST_JSON:,}"):
        read_json(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"\xff", "is no text in UTF-8"),
        (b"", "is not JSON"),
        (b'{"a": 1, "a": 1}', "has 'a' twice"),
        (b'{"x": {"b": 1, "b": 2}}', "has 'b' twice"),
        (b"[" * 100_000, f"more than {MOST_DEPTH} deep"),
        (b'{"a":' * 100_000, f"more than {MOST_DEPTH} deep"),
        (b"[" * 65 + b"]" * 65, f"more than {MOST_DEPTH} deep"),
        (b'["\\"", ' + b"[" * 100, f"more than {MOST_DEPTH} deep"),
        (b"9" * 5000, "is not JSON"),
        (b'"\\ud800"', "is not JSON"),
        (b'{"\\udfff": 1}', "is not JSON"),
        (b"{'a': 1}", "is not JSON"),
    ],
    ids=repr,
)
def test_what_is_no_json_is_said(text, message):
    with pytest.raises(FormatError, match=message) as caught:
        parse_json(text, "'f.json'")
    assert len(str(caught.value)) < 300
    assert "\n" not in str(caught.value)


def test_brackets_in_strings_are_not_depth():
    text = b'["' + b"[{" * 1000 + b'\\"[[", "\\\\", [1]]'
    assert parse_json(text, "it")[2] == [1]
    assert parse_json(b"[" * 64 + b"]" * 64, "it")
    assert parse_json(b"[" + b"[]," * 10_000 + b"1]", "it")[-1] == 1
    assert parse_json(b"\xef\xbb\xbf{}", "with a mark") == {}
    assert parse_json(b'"\\ud83d\\ude00"', "it") == "\N{GRINNING FACE}"


def test_values_are_shown_on_one_short_line():
    for value in ["a\nb" * 5000, "\n" * 50, 10**4000, -(10**4000), [1] * 10_000, {"a": "b" * 200}]:
        assert len(shown(value)) < 100
        assert "\n" not in shown(value)
    assert shown(10**4000) == "a number of 13,288 bits"
    assert (shown(True), shown(3), shown("x")) == ("True", "3", "'x'")
