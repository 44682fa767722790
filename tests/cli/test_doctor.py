"""darner doctor, darner bench, and the command line as a whole."""

import json
import subprocess
import sys

import pytest

import darner
from darner.cli import COMMANDS, bench, doctor, main


def test_doctor_finds_what_darner_needs_and_that_it_works(run, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code, out, _ = run("doctor", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["problems"] == []
    assert found["darner"] == darner.__version__
    assert found["python"].split(".") == [str(part) for part in sys.version_info[:3]]
    assert found["devices"] == {"cpu": "works", "reference": "works"}
    assert found["processor"]["cores"] >= 1
    assert found["packages"]["numpy"]["extra"] is None
    assert found["packages"]["numpy"]["version"].count(".") == 2
    assert found["packages"]["tokenizers"]["extra"] == "text"
    assert found["cache"] == {
        "folder": str(tmp_path / "darner" / "objects"),
        "bytes": 0,
        "limit_bytes": 512 * 2**20,
        "writable": True,
        "refused": "",
    }
    code, out, _ = run("doctor")
    assert code == 0
    assert out.splitlines()[-1] == "all is well"
    assert "512.0 MiB" in out


def test_doctor_names_a_missing_package_and_the_fix(run, monkeypatch):
    monkeypatch.setattr(doctor, "_requirements", lambda: ["numpy>=2", "no-such-package>=3"])
    code, out, _ = run("doctor")
    assert code == 1
    assert "problem: the package no-such-package is not installed" in out
    assert "fix:     pip install 'no-such-package>=3'" in out


def test_doctor_finds_a_device_that_fails_or_computes_something_else(run, monkeypatch):
    from darner import session

    def broken(graph, **options):
        if options["device"] == "cpu":
            raise RuntimeError("no such instruction")
        return build(graph, **options)

    build = session.build_inference_session
    monkeypatch.setattr(session, "build_inference_session", broken)
    code, out, _ = run("doctor", "--json")
    assert code == 1
    assert json.loads(out)["devices"]["cpu"] == "RuntimeError: no such instruction"
    monkeypatch.setattr(session, "build_inference_session", build)
    monkeypatch.setattr(doctor, "TOLERANCE", -1.0)
    assert doctor.examination()["devices"]["cpu"].startswith("results differ from the reference by")


def test_a_cache_that_cannot_be_written_is_told(run, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    found = doctor._cache()
    assert not found["writable"]


def test_a_cache_that_others_may_write_is_told(run, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "darner" / "objects").mkdir(parents=True)
    (tmp_path / "darner" / "objects").chmod(0o777)
    found = doctor._cache()
    assert "may be written by others (mode 0777)" in found["refused"]
    assert found["bytes"] == 0


def test_bench_passes_its_arguments_on_in_a_checkout(run, monkeypatch):
    called = []

    def finished(command, **options):
        called.append((command, options["cwd"]))
        return subprocess.CompletedProcess(command, 3)

    monkeypatch.setattr(bench.subprocess, "run", finished)
    code, _, _ = run("bench", "--quick", "mlp", "--batch", "1", "4")
    assert code == 3
    wanted = ["-m", "bench.peers", "--quick", "mlp", "--batch", "1", "4"]
    assert called == [([sys.executable, *wanted], bench.ROOT)]


def test_bench_outside_a_checkout_says_so(run, monkeypatch, tmp_path):
    monkeypatch.setattr(bench, "ROOT", tmp_path)
    code, out, err = run("bench")
    assert (code, out) == (1, "")
    assert "the benches are in a checkout of the project" in err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(name, capsys):
    name = {"write": "generate"}.get(name, name)
    with pytest.raises(SystemExit) as found:
        main([name, "--help"])
    assert found.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: darner {name} ")
    assert f"example:\n  darner {name} " in out
    assert "--traceback" in out


def test_help_loads_nothing_that_computes():
    program = "import sys, darner.cli as c\nc.make_parser()\nprint(*sys.modules, sep='\\n')"
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    loaded = set(found.stdout.decode().split())
    heavy = {"llvmlite", "egglog", "highspy", "rich", "darner.session", "darner.text"}
    assert loaded & heavy == set()
