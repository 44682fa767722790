"""Importing darner is light: nothing that a graph does not need is loaded."""

import json
import subprocess
import sys
from dataclasses import fields

import pytest

from darner import transforms as transforms
from darner._homes import HOMES
from darner.graph.op import BUILDERS, OPS
from darner.interpreter import run as run
from darner.transforms import cost as cost

HEAVY = ("llvmlite", "egglog", "egglog.bindings", "highspy", "wgpu", "torch", "scipy", "rich")


def modules_loaded_by(statement):
    program = f"{statement}\nimport sys\nprint(*sorted(sys.modules), sep='\\n')"
    finished = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    return set(finished.stdout.split())


def test_import_loads_no_heavy_module():
    loaded = modules_loaded_by("import darner")
    assert "darner.graph.graph" in loaded
    assert sorted(loaded & set(HEAVY)) == []


def test_building_and_running_a_graph_loads_no_heavy_module():
    program = (
        "import darner\n"
        "g = darner.Graph()\n"
        "g.set_outputs([g.constant([1.0]) + 1.0])\n"
        "assert darner.run(g)[0][0] == 2.0\n"
        "g.from_json(g.to_json()).inspect()"
    )
    assert sorted(modules_loaded_by(program) & set(HEAVY)) == []


def test_the_command_line_loads_no_tables_until_they_are_drawn():
    assert "rich" not in modules_loaded_by("import darner.cli\ndarner.cli.make_parser()")


def test_import_loads_no_op_and_a_name_loads_its_room():
    rooms = {name for name in modules_loaded_by("import darner") if name.startswith("darner.ops.")}
    assert rooms == set()
    asked = "import darner\ng = darner.Graph()\ng.input('x', (2, 3)).tanh()"
    loaded = modules_loaded_by(asked)
    assert "darner.ops.elementwise.functions" in loaded
    assert not any(name.startswith(("darner.ops.splats", "darner.ops.linalg")) for name in loaded)


def records(statement):
    """The rules that each op has and what each builder calls, after a statement: in a fresh process."""
    program = f"""
import json, darner
from dataclasses import fields
from darner.graph.op import BUILDERS, OPS, Op
{statement}
def rules(op):
    return sorted(f.name for f in fields(op.rules) if getattr(op.rules, f.name) is not None)
declared = {{**OPS.declared, **BUILDERS.declared}}
print(json.dumps({{n: rules(i) if isinstance(i, Op) else [] for n, i in declared.items()}}))
"""
    finished = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    return json.loads(finished.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("names", HOMES.values(), ids=list(HOMES))
def test_an_op_that_is_the_first_to_be_asked_for_has_all_its_rules(names):
    expected = {
        op.name: sorted(f.name for f in fields(op.rules) if getattr(op.rules, f.name) is not None)
        for op in OPS.values()
    }
    found = records(f"for name in {names.split()!r}: darner.graph.op.op_or_builder(name)")
    for name in names.split():
        assert found[name] == expected.get(name, []), name


def test_a_name_that_no_list_has_is_found_where_it_is_declared():
    statement = "registry._WAITING.pop('fft')\nassert darner.graph.op.get_op('fft').name == 'fft'"
    found = records(f"from darner.graph import registry\n{statement}")
    assert {"fft", "selective_scan"} <= found.keys()


def test_an_op_of_darner_is_taken_before_its_room_is_loaded():
    statement = """
try:
    darner.unary("fft", "Another.", abs)
except darner.NameTakenError as error:
    assert str(error) == "an op called 'fft' is already declared"
else:
    raise AssertionError("two ops have one name")
"""
    assert "fft" in records(statement)


def test_tables_list_ops_in_one_order_whatever_was_asked_for_first():
    one_by_one = f"for name in {sorted(OPS, reverse=True)!r}: OPS[name]\n"
    lists = "from darner.graph.op import BUILDERS, OPS\n{}print(*OPS, *BUILDERS)"
    orders = [
        subprocess.check_output([sys.executable, "-c", lists.format(asked)], text=True)
        for asked in ("", one_by_one)
    ]
    assert orders[0] == orders[1]
    assert set(orders[0].split()) == {*OPS, *BUILDERS}


def test_threads_that_ask_for_all_ops_at_once_get_them():
    program = """
import threading
from darner._homes import HOMES
from darner.graph.op import op_or_builder
names = [name for names in HOMES.values() for name in names.split()]
found, together = [], threading.Barrier(8)
def ask(first):
    together.wait()
    found.extend(op_or_builder(name).name for name in names[first::8] + names[::-1] + names)
threads = [threading.Thread(target=ask, args=(first,)) for first in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(found) - 17 * len(names))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("0\n", "")
