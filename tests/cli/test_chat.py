"""Conversations, a line a message."""

import io
import json

import pytest

from darner.text import Generator

from .conftest import continued, tokenizer_of


@pytest.fixture
def talk(llama, run, monkeypatch):
    def call(lines, *options):
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        return run("chat", llama[0], "--max-new-tokens", 8, "--threads", 1, *options)

    return call


def test_an_answer_follows_all_that_was_said(llama, talk):
    _, peer = llama
    code, out, _ = talk(["Hi", "Why"])
    first = continued(peer, "u:Hi;a:", 8)
    second = continued(peer, f"u:Hi;a:{first};u:Why;a:", 8)
    assert code == 0
    assert out == f"{first}\n{second}\n"


def test_reset_forgets_all_but_what_the_model_is_told_first(llama, talk):
    _, peer = llama
    _, out, _ = talk(["Hi", "/reset", "Hi", "/quit", "never"], "--system", "X")
    answer = continued(peer, "s:X;u:Hi;a:", 8)
    assert out == f"{answer}\n{answer}\n"


def test_save_writes_the_conversation(llama, talk, tmp_path):
    _, peer = llama
    code, _, err = talk(["Hi", f"/save {tmp_path / 'talk.json'}", f"/save {tmp_path}/no/where"])
    assert code == 0
    assert "saved 2 messages" in err
    assert "no/where" in err
    answer = continued(peer, "u:Hi;a:", 8)
    wanted = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": answer}]
    assert json.loads((tmp_path / "talk.json").read_text()) == wanted


def test_save_replaces_no_file_unless_it_is_told_to(talk, tmp_path):
    path = tmp_path / "talk.json"
    path.write_text("mine")
    code, _, err = talk([f"/save {path}", "/save a\0b"])
    assert code == 0
    assert f"'{path}' is there already; to replace it: /save! {path}\n" in err
    assert "/save takes a file" in err
    assert path.read_text() == "mine"
    _, _, err = talk(["Hi", f"/save! {path}"])
    assert "saved 2 messages" in err
    assert len(json.loads(path.read_text())) == 2


@pytest.mark.parametrize(
    ("answer", "said"), [("y", "saved 0 messages"), ("", "nothing is saved"), (None, "nothing")]
)
def test_a_terminal_is_asked_before_a_file_is_replaced(
    llama, run, monkeypatch, tmp_path, answer, said
):
    path = tmp_path / "talk.json"
    path.write_text("mine")
    typed = [f"/save {path}", answer, "/quit"]
    asked = []

    def read(prompt):
        asked.append(prompt)
        line = typed.pop(0)
        if line is None:
            raise EOFError
        return line

    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("builtins.input", read)
    code, _, err = run("chat", llama[0], "--threads", 1)
    assert code == 0
    assert asked[1] == f"'{path}' is there already; replace it? [y/N] "
    assert said in err
    assert (path.read_text() == "mine") == (answer != "y")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_an_unknown_command_is_no_message(talk):
    code, out, err = talk(["/forget", ""])
    assert (code, out) == (0, "")
    assert "there is no /forget" in err


def test_an_interrupt_stops_the_answer_and_keeps_what_there_is(llama, talk, monkeypatch):
    _, peer = llama
    whole = Generator.stream
    asked = []

    def interrupted(self, tokens, **options):
        asked.append(list(tokens))
        for count, piece in enumerate(whole(self, tokens, **options)):
            if len(asked) == 1 and count == 2:
                raise KeyboardInterrupt
            yield piece

    monkeypatch.setattr(Generator, "stream", interrupted)
    code, out, err = talk(["Hi", "Go"])
    part = continued(peer, "u:Hi;a:", 8)[:2]
    assert code == 0
    assert "[stopped]" in err
    assert out == f"{part}\n{continued(peer, f'u:Hi;a:{part};u:Go;a:', 8)}\n"


def test_a_terminal_is_asked_and_ends_with_the_input(llama, run, monkeypatch):
    typed = iter(["", "/quit"])

    def read(prompt):
        assert prompt == "> "
        line = next(typed, None)
        if line is None:
            raise EOFError
        return line

    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("builtins.input", read)
    code, out, err = run("chat", llama[0], "--threads", 1)
    assert (code, out) == (0, "")
    assert "/reset begins anew" in err
    assert next(typed, None) is None
    code, _, _ = run("chat", llama[0], "--threads", 1)
    assert code == 0


def test_a_model_without_a_template_is_named(llama, run, tmp_path):
    _, peer = llama
    tokenizer_of(tmp_path)
    peer.save_pretrained(tmp_path)
    code, _, err = run("chat", tmp_path)
    assert code == 1
    assert err.endswith(
        "has no chat template; such a model continues texts: darner generate does that\n"
    )


def test_a_message_that_does_not_fit_is_not_kept(llama, talk):
    _, peer = llama
    code, out, err = talk(["x" * 140, "Hi"])
    assert code == 0
    assert "has 145 tokens, and the model takes 128 with the answer; /reset begins anew" in err
    assert out == f"{continued(peer, 'u:Hi;a:', 8)}\n"
