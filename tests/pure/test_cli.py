"""The command ``darner``."""

import io
import json
import subprocess
import sys

import pytest

import darner
from darner.cli import main
from darner.cli.facts import (
    arguments,
    builtin_items,
    element_types,
    has_several_results,
    kind_of,
    summary,
    supports,
)
from darner.graph.attributes import Operand
from darner.graph.op import BUILDERS, OPS, Builder


def run(capsys, *argv):
    code = main(argv)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


class Terminal(io.StringIO):
    def isatty(self):
        return True


# --------------------------------------------------------------------------- the list


def test_ops_lists_every_builtin_op_and_builder_on_one_line_each(capsys):
    code, out, _ = run(capsys, "ops")
    assert code == 0
    head, *lines = out.splitlines()
    assert head.split() == ["op", "arguments", "family", "kind", "supports", "summary"]
    names = [line.split()[0] for line in lines]
    own = {op.name for op in OPS.values() if op.builtin} | set(BUILDERS)
    assert names == sorted(own)


def test_a_line_says_what_an_op_is_and_can(capsys):
    _, out, _ = run(capsys, "ops", "--family", "element-wise")
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert lines["clip"].split("  ")[0] == "clip"
    assert "(x, low=None, high=None)" in lines["clip"]
    assert "composite" in lines["clip"]
    assert "reference expansion" in lines["clip"]
    assert lines["clip"].endswith("x kept between low and high; either may be left out.")
    assert "primitive" in lines["tanh"]
    assert "expansion" not in lines["tanh"]
    assert "builder" in lines["binary"]


def test_output_to_a_pipe_has_no_colour_and_cuts_nothing(capsys):
    _, out, _ = run(capsys, "ops")
    assert "\x1b" not in out
    assert "…" not in out
    for item in builtin_items():
        assert item.signature[len(item.name) :] in out


def test_family_lists_only_that_family(capsys):
    code, out, _ = run(capsys, "ops", "--family", "leaves", "--json")
    assert code == 0
    listed = json.loads(out)
    assert {entry["family"] for entry in listed} == {"leaves"}
    assert {"input", "parameter", "constant", "param"} <= {entry["name"] for entry in listed}


def test_json_has_the_same_ops_with_their_facts(capsys):
    _, out, _ = run(capsys, "ops", "--json")
    listed = {entry["name"]: entry for entry in json.loads(out)}
    assert set(listed) == {item.name for item in builtin_items()}
    assert listed["where"] == {
        "name": "where",
        "signature": "where(condition, a, b)",
        "family": "comparison",
        "kind": "primitive",
        "supports": list(supports(OPS["where"])),
        "summary": "``a`` where the condition holds, else ``b``.",
    }


def test_a_terminal_gets_a_table_by_family(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    assert main(["ops", "--family", "leaves"]) == 0
    text = screen.getvalue()
    assert "leaves" in text
    for name in ("parameter_f16", "constant", "project"):
        assert name in text


# --------------------------------------------------------------------------- one op


def test_one_op_is_explained_in_full(capsys):
    code, out, _ = run(capsys, "ops", "cast")
    assert code == 0
    assert out.startswith("cast(x, to)\n")
    assert "NaN gives 0" in out
    rows = [line.split() for line in out.splitlines()]
    assert ["family", "element-wise"] in rows
    assert ["kind", "primitive"] in rows
    assert ["x", "node", "required", "any"] in rows
    assert ["to", "element", "type", "required"] in rows


def test_one_builder_is_explained(capsys):
    _, out, _ = run(capsys, "ops", "param")
    assert out.startswith("param(name, shape, dtype=None)\n")
    assert "builder" in out


def test_one_op_as_json_has_documentation_and_arguments(capsys):
    _, out, _ = run(capsys, "ops", "clip", "--json")
    entry = json.loads(out)
    assert entry["doc"] == OPS["clip"].doc
    low = entry["arguments"][1]
    assert low == {
        "name": "low",
        "kind": "node or None",
        "accepts": "integers and floats",
        "default": "None",
    }


# --------------------------------------------------------------------------- mistakes and the rest


def test_unknown_op_exits_with_2_and_a_suggestion(capsys):
    code, out, err = run(capsys, "ops", "tanhh")
    assert (code, out) == (2, "")
    assert err == "darner ops: no op is called 'tanhh'; did you mean 'tanh'?\n"


def test_unknown_op_like_nothing_else_points_to_the_list(capsys):
    code, _, err = run(capsys, "ops", "qqqqqqqq")
    assert code == 2
    assert err == "darner ops: no op is called 'qqqqqqqq'; 'darner ops' lists them\n"


def test_unknown_family_exits_with_2_and_names_them(capsys):
    code, _, err = run(capsys, "ops", "--family", "zzzzzz")
    assert code == 2
    assert "no family is called 'zzzzzz'; the families are " in err
    assert "leaves" in err


def test_an_op_and_a_family_together_exit_with_2(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["ops", "tanh", "--family", "leaves"])
    assert stopped.value.code == 2
    assert "either" in capsys.readouterr().err


def test_version(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"darner {darner.__version__}\n"


def test_without_a_command_the_commands_are_named_and_the_exit_is_2(capsys):
    with pytest.raises(SystemExit) as stopped:
        main([])
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert "which command? there are train, generate, chat" in said
    assert said.count("\n") == 1


def test_the_module_runs_as_a_program():
    finished = subprocess.run(
        [sys.executable, "-m", "darner.cli", "ops", "nosuchop"], capture_output=True, text=True
    )
    assert finished.returncode == 2
    assert finished.stdout == ""


def test_a_reader_that_stops_early_is_no_error():
    program = subprocess.Popen(
        [sys.executable, "-m", "darner.cli", "ops", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    program.stdout.readline()
    program.stdout.close()
    errors = program.stderr.read()
    program.stderr.close()
    assert (program.wait(), errors) == (0, b"")


# --------------------------------------------------------------------------- facts


def test_kind_and_support_follow_the_rules_an_op_has():
    op = darner.unary("cli_probe", "Probe. Second sentence.", lambda x: x)
    try:
        assert kind_of(op) == "primitive"
        assert supports(op) == ("reference",)
        op.vjp(lambda *args: None)
        assert supports(op) == ("reference", "vjp")
        op.expand(lambda x: x)
        assert kind_of(op) == "composite"
        assert supports(op) == ("reference", "expansion", "vjp")
        assert op not in builtin_items()
    finally:
        from darner.graph.op import unregister

        unregister("cli_probe")
    assert supports(OPS["input"]) == ("reference",)
    assert supports(BUILDERS["param"]) == ()


@pytest.mark.parametrize(
    ("doc", "expected"),
    [
        ("One. Two.", "One."),
        ("A value of 0.5 is kept. More.", "A value of 0.5 is kept."),
        ("Ends on\nthe next line. More.", "Ends on the next line."),
        ("No full stop\n\nSecond paragraph.", "No full stop"),
        ("See e.g. the other. More.", "See e.g. the other."),
        ("A sum. bool widens.", "A sum."),
        ("0, 1, 2, ... in order. More.", "0, 1, 2, ... in order."),
    ],
)
def test_summary_is_the_first_sentence(doc, expected):
    assert summary(Builder("b", "f", doc, lambda graph: None, False)) == expected


@pytest.mark.parametrize(
    ("operand", "expected"),
    [
        (Operand("t"), "any"),
        (Operand("t", lowest="int"), "numbers"),
        (Operand("t", allows_complex=False), "any but complex"),
        (Operand("t", lowest="float"), "floats and complex; integers and bool become f32"),
        (
            Operand("t", lowest="float", allows_complex=False),
            "floats; integers and bool become f32",
        ),
        (Operand("t", promotes=False), "any, kept as it is"),
        (Operand("t", promotes=False, exact="int"), "integers"),
    ],
)
def test_element_types_in_words(operand, expected):
    assert element_types(operand) == expected


def test_several_results_are_seen_in_the_shape_rule_or_a_sample():
    assert has_several_results(OPS["top_k"])
    assert not has_several_results(OPS["tanh"])
    assert not has_several_results(OPS["reshape"])
    assert has_several_results(OPS["scaled_dot_attention_backward"])  # annotated Resolved


def test_arguments_carry_kind_and_default():
    rows = {row.name: row for row in arguments(OPS["parameter"])}
    assert rows["shape"].default is None
    assert rows["dtype"].default == "f32"
    assert rows["storage"].kind == "'dense' or 'q4' or 'q8'"
