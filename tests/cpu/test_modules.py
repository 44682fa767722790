"""Modules in parts: what they are together, and code that calls from one into another."""

import ctypes
import re

import pytest

from darner.backends.cpu.runtime.jit import compile_module, compile_modules, load_object
from darner.backends.cpu.runtime.modules import Parts
from darner.graph.errors import InternalError

TEXT = """
; ModuleID = "test"
target triple = "unknown-unknown-unknown"
@"table" = internal constant [2 x i64] [i64 10, i64 20]
@"count" = internal global i64 0

define i64 @"first"(i64 %".1") nounwind
{
entry:
  %".2" = call i64 @"tile"(i64 %".1")
  %".3" = call i64 @"twice"(i64 %".2")
  ret i64 %".3"
}

define internal i64 @"tile"(i64 %".1") noinline nounwind
{
entry:
  %".2" = getelementptr [2 x i64], ptr @"table", i64 0, i64 %".1"
  %".3" = load i64, ptr %".2"
  ret i64 %".3"
}

define internal i64 @"twice"(i64 %".1") alwaysinline nounwind
{
entry:
  %".2" = call i64 @"plus"(i64 %".1", i64 %".1")
  ret i64 %".2"
}

define internal i64 @"plus"(i64 %".1", i64 %".2") alwaysinline nounwind
{
entry:
  %".3" = add i64 %".1", %".2"
  ret i64 %".3"
}

define i64 @"second"(i64 %".1") nounwind
{
entry:
  %".2" = call i64 @"twice"(i64 %".1")
  %".3" = call i64 @"tile"(i64 1)
  %".4" = icmp ult i64 %".1", 5
  br i1 %".4", label %"small", label %"large", !prof !0
small:
  %".5" = add i64 %".2", %".3"
  ret i64 %".5"
large:
  ret i64 %".2"
}

define i64 @"up"() nounwind
{
entry:
  %".1" = load i64, ptr @"count"
  %".2" = add i64 %".1", 1
  store i64 %".2", ptr @"count"
  ret i64 %".2"
}

define i64 @"down"() nounwind
{
entry:
  %".1" = load i64, ptr @"count"
  %".2" = sub i64 %".1", 1
  store i64 %".2", ptr @"count"
  ret i64 %".2"
}

!0 = !{ !"branch_weights", i32 1, i32 99 }
"""


def called(program, name, *arguments):
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * len(arguments))
    return kind(program.address(name))(*arguments)


def defined(text):
    return set(re.findall(r'^define .*@"(\w+)"', text, re.MULTILINE))


def pieces(text=TEXT):
    """The functions and variables of a module one by one, each with what it needs."""
    return [piece + "\n" for piece in re.split(r"\n(?=define |@|!)", text)]


def cut(optimised, every=1):
    """Modules of the text, taken whenever so many pieces were added; whoever shares a variable stands side by side."""
    order = ["plus", "twice", "tile", "first", "second", "up", "down"]
    parts, made = Parts(optimised), []
    found = [piece for piece in pieces() if piece[0] in "@!"]
    found += [next(p for p in pieces() if re.match(f'define .*@"{name}"', p)) for name in order]
    for number, piece in enumerate(found, 1):
        parts.add(piece)
        if number % every == 0 and '"up"' not in piece.split("\n")[0]:
            made += parts.taken()
    return made + parts.taken()


@pytest.mark.parametrize("optimised", [[], ["second"], ["first", "second", "up", "down"]])
@pytest.mark.parametrize("every", [1, 3, 100])
def test_parts_compute_what_the_whole_does(optimised, every):
    made = cut(optimised, every)
    for program in (load_object(*compile_modules(made)), load_object(compile_module(TEXT))):
        assert [called(program, "first", i) for i in (0, 1)] == [20, 40]
        assert [called(program, "second", i) for i in (3, 7)] == [26, 14]
        assert [called(program, name) for name in ("up", "up", "down", "up")] == [1, 2, 1, 2]


def test_tiles_are_compiled_once_and_variables_stay_in_one_part():
    made = cut([])
    assert len(made) > 1
    homes = [defined(text) for text, _ in made]
    assert sum("tile" in names for names in homes) == 1
    assert [{"up", "down"} & names for names in homes if {"up", "down"} & names] == [{"up", "down"}]
    inlining = [names for names in homes if names & {"first", "second"}]
    assert all({"twice", "plus"} <= names for names in inlining)


def test_a_variable_of_a_part_that_was_taken_cannot_be_shared():
    parts = Parts([])
    shared, *_ = [piece for piece in pieces() if piece.startswith('@"count"')]
    up, down = (next(p for p in pieces() if f'@"{name}"()' in p) for name in ("up", "down"))
    parts.add(shared + up)
    assert len(parts.taken()) == 1
    parts.add(down)
    with pytest.raises(InternalError, match="share count"):
        parts.taken()


def test_what_only_optimised_functions_call_is_optimised_with_them():
    made = {passes: defined(text) for text, passes in cut(["second"], 100)}
    assert made[True] == {"second", "twice", "plus"}
    assert "tile" in made[False]  # the first, which is not, calls it too
    both = {passes: defined(text) for text, passes in cut(["first", "second"], 100)}
    assert "tile" in both[True]


def test_functions_that_are_vectors_throughout_are_not_optimised():
    text = TEXT.replace('"tile"', '"darner.tile.1"')
    parts = Parts(["first", "second", "up", "down"])
    parts.add(text)
    made = {passes: part for part, passes in parts.taken()}
    assert '@"darner.tile.1"' in made[False].split("{")[0]
    assert 'declare i64 @"darner.tile.1"' in made[True]


def test_equal_functions_are_compiled_once():
    counting = """
define void @"{name}"(ptr %".1") nounwind
{{
entry:
  %".2" = load i64, ptr %".1"
  %".3" = add i64 %".2", {step}
  store i64 %".3", ptr %".1"
  ret void
}}
"""
    parts, made = Parts([]), []
    for name, step in (("a", 1), ("b", 1), ("c", 2)):
        parts.add(counting.format(name=name, step=step))
        made += parts.taken()
    assert [text.count("add i64") for text, _ in made] == [1, 0, 1]
    program = load_object(*compile_modules(made))
    number = ctypes.c_int64(0)
    for name, expected in (("a", 1), ("b", 2), ("c", 4)):
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(program.address(name))(ctypes.addressof(number))
        assert number.value == expected


def test_what_was_not_taken_yet_is_counted():
    parts = Parts([])
    assert parts.waiting == 0
    parts.add(TEXT)
    assert 500 < parts.waiting < len(TEXT)
    parts.taken()
    assert parts.waiting == 0
    assert parts.taken() == []
