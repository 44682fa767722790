"""The command as a process: closed and full streams, encodings, interrupts. Each start takes some tenths of a second, so there are few."""

import os
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="streams and signals of Unix")

PROGRAM = f"{sys.executable} -m darner"


def shell(line, **options):
    """What a line of shell gives: its exit code, output and errors; ``darner`` is the command."""
    environment = {**os.environ, **options.pop("env", {})}
    found = subprocess.run(
        ["bash", "-c", f'darner() {{ {PROGRAM} "$@"; }}; {line}'],
        env=environment,
        capture_output=True,
        timeout=120,
        **options,
    )
    return found.returncode, found.stdout, found.stderr


FULL = "cannot write standard output: No space left on device"
CLOSED = "cannot write standard output: Bad file descriptor"


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("darner ops > /dev/full", 3, f"darner ops: {FULL}\n"),
        ("darner --help > /dev/full", 3, f"darner: {FULL}\n"),
        ("darner --version >&-", 3, f"darner: {CLOSED}\n"),
        ("darner ops tanhh 2> /dev/full", 2, ""),
        ("darner ops tanhh <&- >&- 2>&-", 2, ""),
        ("darner embed x - <&-", 3, "cannot read 'standard input': Bad file descriptor\n"),
        (r"printf 'a\xff' | darner embed x -", 1, "standard input is no text in utf-8: "),
        (r"darner generate x $'a\xff'", 2, r"'a\udcff' is no text in UTF-8"),
    ],
)
def test_streams_that_do_not_work_are_one_line(line, code, said):
    if "/dev/full" in line and not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full")
    found, out, err = shell(line)
    assert (found, out) == (code, b"")
    assert said in err.decode()
    assert err.count(b"\n") == (1 if said else 0)


def test_a_terminal_that_lacks_characters_gets_question_marks(llama):
    line = f"darner generate {llama[0]} 'é☃' --max-new-tokens 2 --threads 1"
    plain = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    code, out, err = shell(line, env=plain)
    assert code == 0
    assert out.startswith(b"??")
    assert err.startswith(b"prompt: 2 tokens")


def test_a_reader_that_stops_early_ends_it_quietly():
    code, out, err = shell("darner ops --json | head -1; exit ${PIPESTATUS[0]}")
    assert (code, out, err) == (0, b"[\n", b"")


@pytest.mark.parametrize("module", ["darner.graph.node", "darner.cli.train"])
def test_an_interrupt_while_it_starts_is_one_line(module, tmp_path):
    # A module of the same name as one that is imported on the way interrupts the process when that is looked for.
    finder = tmp_path / "sitecustomize.py"
    finder.write_text(
        "import signal, sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        "            signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupting())\n"
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])
    code, out, err = shell("darner --version", env={"PYTHONPATH": path})
    assert (code, out) == (128 + signal.SIGINT, b"")
    assert err == b"darner: interrupted\n"
