"""Whatever goes wrong is one line, and an exit code that the documentation lists."""

import io
import json
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest

import darner
from darner import ArgumentError, FormatError, data, load, text, train
from darner.cli import exits, main, streams
from darner.io.atomic import FileError

from .conftest import TEMPLATE
from .test_train import FAST, WORDS, config, corpus  # noqa: F401

DOCS = Path(darner.__file__).parents[1] / "docs" / "cli.md"


@pytest.fixture
def failing(monkeypatch, run):
    """A command that raises an error: its exit code, and what it said."""

    def call(error, *options):
        def raises(given):
            raise error

        monkeypatch.setattr("darner.cli.ops.builtin_items", lambda: raises(None))
        code, out, err = run(*options, "ops")
        assert out == ""
        return code, err

    return call


def usage(capsys, *argv):
    """What is said of a wrong command line, which is one line."""
    with pytest.raises(SystemExit) as found:
        main([str(one) for one in argv])
    assert found.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


# --------------------------------------------------------------------------- the table


def test_the_documentation_lists_the_exit_codes():
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", DOCS.read_text("utf-8"), re.M)
    assert [(int(code), meaning) for code, meaning in rows] == [
        (one.code, one.meaning) for one in exits.EXITS
    ]


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ArgumentError("no such thing", hint="try that"), 1, "no such thing; try that"),
        (FormatError("not JSON"), 1, "not JSON"),
        (FileError("cannot read 'x': gone", "x", 2), 3, "cannot read 'x': gone"),
        (PermissionError(13, "Permission denied", "/x"), 3, "cannot use '/x': Permission denied"),
        (OSError(28, "No space left on device", "y"), 3, "cannot use 'y': No space left on device"),
        (OSError(5, "Input/output error"), 3, "cannot go on: Input/output error"),
        (darner.MissingPackageError("needs it", hint="pip install it"), 4, "pip install it"),
        (ModuleNotFoundError("No module named 'egglog'"), 4, "'darner doctor' says which"),
        (MemoryError(), 5, "there is not enough memory; fewer or shorter texts"),
        (OSError(12, "Cannot allocate memory"), 5, "memory: Cannot allocate memory; fewer"),
        (darner.DeviceMemoryError("the GPU is full"), 5, "the GPU is full"),
        (darner.InternalError("two nodes"), 70, "a fault of darner: two nodes; --traceback"),
        (KeyError("w"), 70, "a fault of darner: KeyError: 'w'; --traceback shows where"),
        (RecursionError("too deep"), 70, "a fault of darner: RecursionError: too deep"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_every_error_is_one_line_and_a_code(failing, error, code, said):
    found, err = failing(error)
    assert found == code
    assert err.startswith("darner ops: ")
    assert said in err
    assert err.count("\n") == 1


def test_several_lines_become_one_that_is_not_endless(failing):
    _, err = failing(ArgumentError("2 do not fit:\n  a  f32[2]\n  b  f32[3]"))
    assert err == "darner ops: 2 do not fit: a f32[2], b f32[3]\n"
    _, err = failing(ArgumentError("x" * 5000))
    assert len(err) < 800
    assert err.endswith("... (--traceback shows all of it)\n")


@pytest.mark.parametrize("options", [["--traceback", "ops"], ["ops", "--traceback"]])
def test_the_traceback_is_shown_on_request_and_the_line_still_comes_last(failing, options, run):
    failing(KeyError("w"))
    code, _, err = run(*options)
    assert code == 70
    assert err.startswith("Traceback (most recent call last)")
    assert "in raises\n    raise error\nKeyError: 'w'\ndarner ops: a fault" in err


def test_a_warning_is_one_line_without_code(run, monkeypatch):
    import warnings

    def warns():
        warnings.simplefilter("always")
        warnings.warn("look\nout", stacklevel=1)
        return []

    monkeypatch.setattr("darner.cli.ops.builtin_items", warns)
    code, _, err = run("ops")
    assert (code, err) == (0, "darner ops: warning: look out\n")


# --------------------------------------------------------------------------- usage


def test_unknown_commands_and_options_are_named_with_what_was_meant(capsys):
    assert "there is no command 'trian'; did you mean 'train'?" in usage(capsys, "trian")
    assert "there is no command 'zzz'; there are train, generate" in usage(capsys, "zzz")
    said = usage(capsys, "generate", "x", "y", "--temprature", "1")
    assert said.startswith("darner generate: error: there is no option '--temprature'; did you")
    assert "too many: 'b'" in usage(capsys, "ops", "a", "b")
    assert "there is no option '--nope'" in usage(capsys, "--nope")
    assert "are required: FOLDER" in usage(capsys, "generate")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--steps", 10**18], "is not a whole number from 1 to 2,147,483,647"),
        (["--steps", 0], "'0' is not a whole number"),
        (["--threads", 10**9], "is not a whole number from 1 to 1,024"),
        (["--rate", "nan"], "'nan' is not a number above 0"),
        (["--seed", 2**64], "is not a whole number from 0"),
        (["--out", ""], "the name of a file or folder is empty"),
        (["--out", "a\0b"], "is no name of a file or folder"),
        (["--device", "cuda"], "there is no option '--device'"),
    ],
)
def test_wrong_values_of_options_are_wrong_usage(capsys, wrong, said):
    assert said in usage(capsys, "train", "--text", "x", *wrong)


@pytest.mark.parametrize("where", [["\udcff"], ["x", "--stop", "\udcff"]])
def test_a_text_that_is_not_utf8_is_wrong_usage(capsys, where):
    assert "'\\udcff' is no text in UTF-8" in usage(capsys, "generate", "folder", *where)


def test_arguments_in_utf8_are_read_where_the_locale_is_not(monkeypatch):
    monkeypatch.setattr(streams.os, "fsencode", lambda one: one.encode("ascii", "surrogateescape"))
    assert streams.text_of("h\udcc3\udca9") == "hé"
    assert streams.text_of("hé") == "hé"


# --------------------------------------------------------------------------- folders of models


@pytest.fixture
def changed(llama, tmp_path):
    """A copy of the model's folder with other files in it."""

    def call(**files):
        folder = tmp_path / "changed"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(llama[0], folder)
        for name, content in files.items():
            path = folder / name.replace("__", ".")
            if isinstance(content, dict):
                before = json.loads(path.read_text()) if path.exists() else {}
                content = json.dumps(before | content)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return folder

    return call


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ messages[9].content }}", "chat_template.jinja', line 1: list object has no element 9"),
        ("{{ raise_exception('no system role') }}", "line 1: no system role"),
        ("{% if", "line 1: unexpected 'end of template'"),
        ("{{ 1 / 0 }}", "line 1: division by zero"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "macros are too deep"),
        (b"\xff", "chat_template.jinja' is no text in UTF-8"),
    ],
)
def test_a_chat_template_that_does_not_work_is_told(changed, run, monkeypatch, template, said):
    folder = changed(chat_template__jinja=template)
    monkeypatch.setattr("sys.stdin", io.StringIO("Hi\n"))
    code, out, err = run("chat", folder, "--threads", 1)
    assert (code, out) == (1, "")
    assert said in err
    assert err.count("\n") == 1


def test_a_template_may_refuse_messages_in_its_own_words(changed):
    made = text.Tokenizer.from_folder(changed(chat_template__jinja=TEMPLATE))
    refusing = text.Tokenizer(made.inner, template="{{ raise_exception('roles alternate') }}")
    with pytest.raises(text.ChatTemplateError, match="line 1: roles alternate"):
        refusing.chat([{"role": "user", "content": "x"}])
    with pytest.raises(text.ChatTemplateError, match="line 1: 'x' is undefined"):
        text.Tokenizer(made.inner, template="{{ x.y }}").chat([])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            {"hidden_size": "32"},
            "config.json': hidden_size is a whole number from 1 to 16,777,216, got '32'",
        ),
        ({"hidden_size": None}, "hidden_size is a whole number from 1 to 16,777,216, got None"),
        (
            {"max_position_embeddings": "x"},
            "max_position_embeddings is a whole number from 1 to 2,147,483,647, got 'x'",
        ),
        ({"hidden_act": 3}, "hidden_act is a text, got 3"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is true or false, got 'yes'"),
        ({"rms_norm_eps": "tiny"}, "rms_norm_eps is a number from 0 to 1, got 'tiny'"),
        (
            {"num_key_value_heads": 1.5},
            "num_key_value_heads is a whole number from 1 to 65,536 or null",
        ),
        ({"rope_parameters": 5}, "rope_parameters is a table, got 5"),
        (
            {"rope_parameters": {"rope_theta": "big"}},
            "rope_theta of rope_type 'default' is a number above 0",
        ),
        ({"rope_parameters": {"rope_type": "linear"}}, "rope_type 'linear' needs factor"),
        ({"rope_parameters": {"rope_type": 7}}, "there is no rope_type 7; there are default"),
        ({"model_type": "zork"}, "no architecture 'zork'; there are BertForMaskedLM"),
    ],
)
def test_a_configuration_of_wrong_types_is_told(changed, run, wrong, said):
    code, _, err = run("inspect", changed(config__json=wrong))
    assert code == 1
    assert said in err
    assert err.count("\n") == 1


def test_a_list_of_names_is_shown_once_and_shortened(changed, run):
    _, _, err = run("inspect", changed(config__json={"model_type": "zork"}))
    assert err.count("BertForMaskedLM") == 1
    assert "gpt2 and 11 more" in err


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"do_sample": True, "temperature": "hot"}, "temperature is at least 0, got 'hot'"),
        ({"do_sample": True, "top_p": 3}, "top_p is above 0 and at most 1, got 3"),
        ({"do_sample": "yes"}, "do_sample is true or false, got 'yes'"),
        ({"do_sample": False, "repetition_penalty": 0}, "repetition_penalty is above 0, got 0"),
        ({"eos_token_id": [1, [2]]}, "has the eos_token_id [1, [2]]"),
    ],
)
def test_a_wrong_generation_config_is_named_and_is_no_wrong_usage(changed, run, wrong, said):
    folder = changed(generation_config__json=wrong)
    code, _, err = run("generate", folder, "x", "--threads", 1)
    assert code == 1
    assert "generation_config.json' has " in err
    assert said in err
    assert err.count("\n") == 1


def test_a_tokenizer_names_what_is_no_text(changed):
    made = text.Tokenizer.from_folder(changed())
    with pytest.raises(ArgumentError, match="not valid Unicode"):
        made.encode("a\udcff")
    with pytest.raises(ArgumentError, match="a tokenizer encodes a text, got 7"):
        made.encode(7)


# --------------------------------------------------------------------------- training


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, "is not what darner train writes"),
        ({"steps": "two"}, "steps is a whole number from 1 to"),
        ({"batch": -4}, "batch is a whole number from 1 to"),
        ({"threads": 1.5}, "threads is a whole number from 1 to 2,147,483,647 or null, got 1.5"),
    ],
)
def test_a_training_whose_settings_were_changed_is_told(run, tmp_path, change, said):
    texts = {"text": "t", "digest": "", "tokenizer": "", "finetune": ""}
    numbers = {"lora": 0, "steps": 2, "batch": 4, "length": 8, "rate": 0.1, "validate_every": 1}
    whole = texts | numbers | {"model": {}, "held_out": 0.1, "seed": 0, "threads": 1}
    (tmp_path / "train.json").write_text(json.dumps(whole | change if change else {}))
    code, _, err = run("train", "--resume", tmp_path)
    assert code == 1
    assert said in err
    assert err.count("\n") == 1


def test_where_a_model_cannot_go_is_told_before_anything_is_made(corpus, run, tmp_path):  # noqa: F811
    (tmp_path / "file").write_text("x")
    code, _, err = run("train", "--text", corpus, "--out", tmp_path / "file")
    assert (code, err.count("\n")) == (1, 1)
    assert "file' is a file, and the model goes to a folder; name another one: --out" in err
    code, _, err = run("train", "--text", corpus, "--out", tmp_path / "file" / "under")
    assert (code, err.count("\n")) == (3, 1)
    assert "Not a directory" in err
    code, _, err = run("train", "--text", corpus, "--out", tmp_path / "o", "--batch", 5000)
    assert (code, err.count("\n")) == (1, 1)
    assert "a batch of 5,000 texts of 128 tokens is more than" in err
    (tmp_path / "empty.txt").write_text("")
    code, _, err = run("train", "--text", tmp_path / "empty.txt", "--out", tmp_path / "o")
    assert (code, err.count("\n")) == (1, 1)
    assert "empty.txt' is empty; --text is what to learn" in err
    assert not (tmp_path / "o").exists()
    code, _, err = run("train", "--resume", tmp_path / "file")
    assert code == 3
    assert "--resume takes the folder that was --out" in err


def test_a_text_whose_name_is_not_utf8_is_trained_on_and_resumed(config, run, tmp_path):  # noqa: F811
    path, out = tmp_path / "w\udcff.txt", tmp_path / "out"
    try:
        path.write_text(WORDS * 40)
    except OSError:
        pytest.skip("file names are UTF-8 here")
    asked = ("--text", path, "--model", config, "--out", out, "--steps", 1, "--sample", 0)
    assert run("train", *asked, *FAST, "--quiet")[0] == 0
    assert run("train", "--resume", out, "--steps", 2, "--sample", 0, "--quiet")[0] == 0


def test_sigterm_saves_training_as_an_interrupt_does(corpus, config, run, tmp_path, monkeypatch):  # noqa: F811
    whole = data.TokenWindows.batch_at

    calls = []

    def told_to_end(self, epoch, position):
        calls.append(position)
        if len(calls) == 5:
            signal.raise_signal(signal.SIGTERM)
        return whole(self, epoch, position)

    monkeypatch.setattr(data.TokenWindows, "batch_at", told_to_end)
    asked = ("--text", corpus, "--model", config, "--steps", 20, "--held-out", 0, *FAST)
    code, out, err = run("train", *asked, "--out", tmp_path / "out", "--quiet")
    assert (code, out) == (143, "")
    assert f"and saved; to go on: darner train --resume {tmp_path / 'out'}" in err
    assert train.latest(tmp_path / "out" / "checkpoints") is not None
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_sigterm_is_left_to_a_program_that_handles_it():
    from darner.train.interrupts import Interrupts

    heard = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        with Interrupts() as interrupts:
            signal.raise_signal(signal.SIGTERM)
        assert (heard, interrupts.pending) == ([signal.SIGTERM], None)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_full_disk_while_saving_is_told(corpus, config, run, tmp_path, monkeypatch):  # noqa: F811
    def full(*given, **options):
        raise FileError.of("write", tmp_path / "m", OSError(28, "No space left on device"))

    monkeypatch.setattr(load, "save", full)
    asked = ("--text", corpus, "--model", config, "--steps", 1, "--out", tmp_path / "out", *FAST)
    code, _, err = run("train", *asked, "--quiet")
    assert (code, err.count("\n")) == (3, 1)
    assert "No space left on device" in err


@pytest.mark.parametrize(
    ("package", "argv"),
    [
        ("tokenizers", ["generate", "FOLDER", "x"]),
        ("jinja2", ["chat", "FOLDER"]),
        ("huggingface_hub", ["generate", "some/model", "x"]),
        ("wgpu", ["generate", "FOLDER", "x", "--device", "gpu"]),
    ],
)
def test_a_package_that_is_not_installed_is_named_with_how_to_get_it(
    llama, run, monkeypatch, package, argv
):
    for name in [one for one in sys.modules if one.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr("sys.stdin", io.StringIO("Hi\n"))
    code, _, err = run(*[str(llama[0]) if one == "FOLDER" else one for one in argv])
    assert (code, err.count("\n")) == (4, 1)
    assert "pip install 'darner[" in err


def test_codes_of_signals_are_those_of_shells():
    assert exits.STOPPED.code == 128 + signal.SIGINT
    assert exits.TERMINATED.code == 128 + signal.SIGTERM
