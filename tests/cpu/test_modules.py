"""Modules in parts: what they are together, and code that calls from one into another."""

import ctypes
import re

import pytest

from darner.backends.cpu.jit import compile_module, compile_modules, load_object
from darner.backends.cpu.modules import PART, parts

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


@pytest.mark.parametrize("optimised", [[], ["second"], ["first", "second", "up", "down"]])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_parts_compute_what_the_whole_does(monkeypatch, optimised, count):
    monkeypatch.setattr("darner.backends.cpu.modules.PART", 200)
    made = parts(TEXT, optimised, count)
    assert len(made) <= 2 * count
    for program in (load_object(*compile_modules(made)), load_object(compile_module(TEXT))):
        assert [called(program, "first", i) for i in (0, 1)] == [20, 40]
        assert [called(program, "second", i) for i in (3, 7)] == [26, 14]
        assert [called(program, name) for name in ("up", "up", "down", "up")] == [1, 2, 1, 2]


def test_tiles_are_compiled_once_and_variables_stay_in_one_part(monkeypatch):
    monkeypatch.setattr("darner.backends.cpu.modules.PART", 200)
    made = parts(TEXT, [], 4)
    assert len(made) > 1
    homes = [defined(text) for text, _ in made]
    assert sum("tile" in names for names in homes) == 1
    assert [{"up", "down"} & names for names in homes if {"up", "down"} & names] == [{"up", "down"}]
    inlining = [names for names in homes if names & {"first", "second"}]
    assert all({"twice", "plus"} <= names for names in inlining)


def test_what_only_optimised_functions_call_is_optimised_with_them():
    made = {passes: defined(text) for text, passes in parts(TEXT, ["second"], 1)}
    assert made[True] == {"second", "twice", "plus"}
    assert "tile" in made[False]  # the first, which is not, calls it too
    both = {passes: defined(text) for text, passes in parts(TEXT, ["first", "second"], 1)}
    assert "tile" in both[True]


def test_short_modules_are_not_cut():
    assert len(TEXT) < PART
    assert len(parts(TEXT, [], 8)) == 1
    assert len(parts(TEXT, ["first", "second", "up", "down"], 8)) == 1
