"""Files that are replaced whole: full disks, several writers, permissions and links."""

import errno
import os
import stat
import threading

import pytest

from darner.io import atomic
from darner.io.atomic import FileError, write_atomically


def test_content_is_replaced_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "file"
    write_atomically(path, [b"first"])
    write_atomically(str(path), [b"", b"sec", memoryview(b"ond")])
    assert path.read_bytes() == b"second"
    assert os.listdir(tmp_path) == ["file"]


def test_a_relative_path_is_in_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_atomically("file", [b"here"])
    assert (tmp_path / "file").read_bytes() == b"here"


def test_a_name_as_long_as_the_system_allows_can_be_written(tmp_path):
    path = tmp_path / ("n" * 255)
    write_atomically(path, [b"long"])
    assert path.read_bytes() == b"long"


def test_writes_that_take_only_a_part_are_continued(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(atomic.os, "write", lambda file, data: write(file, data[:3]))
    write_atomically(tmp_path / "file", [b"0123456789", b"abcd"])
    assert (tmp_path / "file").read_bytes() == b"0123456789abcd"


@pytest.mark.parametrize("room", [0, 1, 5, 9])
@pytest.mark.parametrize("existing", [True, False])
def test_a_full_disk_leaves_the_old_file_and_names_path_and_cause(
    tmp_path, monkeypatch, room, existing
):
    path = tmp_path / "file"
    if existing:
        path.write_bytes(b"old")
    write, left = os.write, room

    def limited(file, data):
        nonlocal left
        if not left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = write(file, data[:left])
        left -= taken
        return taken

    monkeypatch.setattr(atomic.os, "write", limited)
    with pytest.raises(FileError) as raised:
        write_atomically(path, [b"01234", b"56789"])
    hint = "; what was there before is unchanged" if existing else ""
    assert str(raised.value) == f"cannot write '{path}': No space left on device{hint}"
    assert raised.value.errno == errno.ENOSPC
    assert raised.value.filename == str(path)
    assert os.listdir(tmp_path) == (["file"] if existing else [])
    assert not existing or path.read_bytes() == b"old"


@pytest.mark.parametrize("call", ["open", "fsync", "replace"])
def test_a_failure_of_any_call_before_the_rename_leaves_the_old_file(tmp_path, monkeypatch, call):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail(*args):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(atomic.os, call, fail)
        with pytest.raises(FileError, match="Input/output error; what was there before is unch"):
            write_atomically(path, [b"new"])
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_folder_that_cannot_be_made_durable_is_reported_with_the_new_file_in_place(
    tmp_path, monkeypatch
):
    fsync = os.fsync

    def fail_for_folders(file):
        if stat.S_ISDIR(os.fstat(file).st_mode):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(file)

    monkeypatch.setattr(atomic.os, "fsync", fail_for_folders)
    with pytest.raises(FileError, match="Input/output error; the new file is in place"):
        write_atomically(tmp_path / "file", [b"new"])
    assert (tmp_path / "file").read_bytes() == b"new"


def test_content_and_folder_reach_the_disk_around_the_rename(tmp_path, monkeypatch):
    calls = []
    fsync, replace = os.fsync, os.replace

    def watched_fsync(file):
        calls.append("folder" if stat.S_ISDIR(os.fstat(file).st_mode) else "content")
        fsync(file)

    def watched_replace(*args):
        calls.append("rename")
        replace(*args)

    monkeypatch.setattr(atomic.os, "fsync", watched_fsync)
    monkeypatch.setattr(atomic.os, "replace", watched_replace)
    write_atomically(tmp_path / "file", [b"new"])
    assert calls == ["content", "rename", "folder"]


def test_an_error_in_making_the_content_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def chunks():
        yield b"new"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, chunks())
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_no_descriptor_is_left_open(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        write_atomically(tmp_path / "file", [b"new"])
        with pytest.raises(FileError):
            write_atomically(tmp_path, [b"new"])
    assert len(os.listdir("/proc/self/fd")) == before


# Several writers


def abandoned(path) -> os.PathLike:
    """A temporary file such as a writer of the path leaves when it dies."""
    temporary = path.parent / f"{atomic._prefix(os.path.realpath(path))}0123.tmp"
    temporary.write_bytes(b"half of i")
    return temporary


def test_the_temporary_file_of_a_dead_writer_is_removed_by_the_next(tmp_path):
    path = tmp_path / "file"
    mine, other = abandoned(path), abandoned(tmp_path / "other file")
    write_atomically(path, [b"new"])
    assert not mine.exists()
    assert other.exists()  # its own next writer will see to it


def test_a_living_writer_is_left_alone_and_the_last_to_finish_wins(tmp_path):
    path = tmp_path / "file"
    seen = []

    def chunks():
        yield b"outer, "
        write_atomically(path, [b"inner"])
        seen.append(path.read_bytes())
        yield b"whole"

    write_atomically(path, chunks())
    assert seen == [b"inner"]
    assert path.read_bytes() == b"outer, whole"
    assert os.listdir(tmp_path) == ["file"]


def test_a_temporary_file_removed_before_it_was_locked_is_made_again(tmp_path, monkeypatch):
    lock, removed = atomic._lock, []

    def late(descriptor, *, wait):
        if wait and not removed:
            removed.extend(tmp_path.iterdir())
            removed[0].unlink()
        return lock(descriptor, wait=wait)

    monkeypatch.setattr(atomic, "_lock", late)
    write_atomically(tmp_path / "file", [b"new"])
    assert removed
    assert (tmp_path / "file").read_bytes() == b"new"


def test_without_locks_nothing_is_removed_and_writing_works(tmp_path, monkeypatch):
    def unsupported(*args):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    temporary = abandoned(tmp_path / "file")
    monkeypatch.setattr(atomic.fcntl, "flock", unsupported)
    write_atomically(tmp_path / "file", [b"new"])
    assert (tmp_path / "file").read_bytes() == b"new"
    assert temporary.exists()


def test_writers_and_readers_at_once_see_whole_files_only(tmp_path):
    path = tmp_path / "file"
    contents = {bytes([letter]) * 5000 for letter in b"abcd"}
    write_atomically(path, [b"a" * 5000])
    failures = []

    def work(content):
        try:
            for _ in range(40):
                write_atomically(path, [content[:1234], content[1234:]])
                if path.read_bytes() not in contents:
                    failures.append("mixed")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert os.listdir(tmp_path) == ["file"]


# Permissions and links


def test_a_file_keeps_its_mode_and_a_new_one_follows_the_umask(tmp_path):
    path = tmp_path / "file"
    old = os.umask(0o027)
    try:
        write_atomically(path, [b"one"])
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    path.chmod(0o604)
    write_atomically(path, [b"two"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o604


def test_the_content_of_a_private_file_is_never_readable_by_others(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o600)
    modes = []

    def chunks():
        modes.extend(stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir())
        yield b"new"

    write_atomically(path, chunks())
    assert modes == [0o600, 0o600]


@pytest.mark.skipif(os.geteuid() != 0, reason="only the administrator may give a file away")
def test_a_file_keeps_its_owner(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    os.chown(path, 1234, 2345)
    write_atomically(path, [b"new"])
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 2345)


def test_a_read_only_file_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o444)
    # The administrator may write anything, so the system's answer to others is put in its place.
    monkeypatch.setattr(atomic.os, "access", lambda *args: False)
    with pytest.raises(FileError, match="it is read-only"):
        write_atomically(path, [b"new"])
    assert path.read_bytes() == b"old"


def test_a_link_stays_a_link_and_the_file_it_leads_to_is_replaced(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real/file")
    write_atomically(tmp_path / "link", [b"new"])
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "file").read_bytes() == b"new"
    assert os.listdir(tmp_path / "real") == ["file"]


def test_a_link_to_nothing_makes_the_file_it_leads_to(tmp_path):
    (tmp_path / "link").symlink_to("file")
    write_atomically(tmp_path / "link", [b"new"])
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"new"


def test_what_is_not_a_regular_file_is_refused(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    for name in ("loop", "pipe"):
        with pytest.raises(FileError, match=f"cannot write '.*{name}': it is not a regular file"):
            write_atomically(tmp_path / name, [b"new"])
    assert sorted(os.listdir(tmp_path)) == ["loop", "pipe"]
