"""Importing darner is light: nothing that a graph does not need is loaded."""

import subprocess
import sys

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
