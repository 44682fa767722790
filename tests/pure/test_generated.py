"""The files made from the registry are up to date, and say what is true."""

import ast
import subprocess
import sys

import pytest

from darner.cli import generate
from darner.cli.facts import builtin_items, has_several_results
from darner.cli.pages import fill_blocks, ops_page, promotion_table
from darner.cli.stubs import stub_text
from darner.graph.dtypes import ALL, promote
from darner.graph.methods import takes_node_first
from darner.graph.op import OPS
from darner.graph.types import TupleType
from darner.testing import make_case

METHODS = {
    node.name: {item.name: item for item in node.body if isinstance(item, ast.FunctionDef)}
    for node in ast.parse(stub_text()).body
    if isinstance(node, ast.ClassDef)
}


@pytest.mark.parametrize("name", generate.FILES)
def test_generated_file_is_up_to_date(name):
    assert name not in generate.stale_files(generate.ROOT), (
        f"{name} is not what the registry says; mend it with: {generate.COMMAND}"
    )


@pytest.mark.slow
def test_check_names_a_stale_file_and_the_command_that_mends_it(tmp_path, capsys):
    for name in generate.FILES:
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text((generate.ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
    generate.main([], tmp_path)
    capsys.readouterr()
    assert generate.main(["--check"], tmp_path) == 0
    page = tmp_path / "docs/ops.md"
    right = page.read_text(encoding="utf-8")
    page.write_text(right + "edited\n", encoding="utf-8")
    assert generate.main(["--check"], tmp_path) == 1
    said = capsys.readouterr().out
    assert "docs/ops.md is out of date; run python -m darner.cli.generate\n" in said
    assert generate.main([], tmp_path) == 0
    assert page.read_text(encoding="utf-8") == right


def test_generating_twice_gives_the_same_text():
    assert ops_page() == ops_page()
    assert stub_text() == stub_text()


# --------------------------------------------------------------------------- the stub


def test_stub_has_a_method_for_every_op_and_builder():
    items = builtin_items()
    assert {item.name for item in items} <= set(METHODS["GraphMethods"])
    first = {item.name for item in items if takes_node_first(item)}
    assert set(METHODS["NodeMethods"]) == first | {"__getattr__"}


def test_stub_drops_the_first_operand_on_nodes():
    on_graph, on_node = METHODS["GraphMethods"]["where"], METHODS["NodeMethods"]["where"]
    assert [a.arg for a in on_graph.args.args] == ["self", "condition", "a", "b", "shape"]
    assert [a.arg for a in on_node.args.args] == ["self", "a", "b", "shape"]
    assert [a.arg for a in on_node.args.kwonlyargs] == ["label"]


def test_stub_has_no_second_shape_where_the_op_has_its_own():
    names = [a.arg for a in METHODS["GraphMethods"]["reshape"].args.args]
    assert names.count("shape") == 1


def test_stub_qualifies_builtins_that_a_method_hides():
    text = stub_text()
    hidden = {"all", "any", "max", "min", "sum", "abs", "round", "slice"} & set(
        METHODS["GraphMethods"]
    )
    assert hidden
    for method in METHODS["GraphMethods"].values():
        annotations = [a.annotation for a in method.args.args + method.args.kwonlyargs]
        for annotation in [item for item in annotations if item is not None]:
            used = {n.id for n in ast.walk(annotation) if isinstance(n, ast.Name)}
            assert not used & set(METHODS["GraphMethods"]), method.name
    assert "def __getattr__(self, name: str) -> Callable[..., Any]: ..." in text


@pytest.mark.parametrize(
    "op", [pytest.param(op, id=op.name) for op in OPS.values() if op.builtin and op.samples]
)
def test_stated_number_of_results_is_the_real_one(op):
    nodes = [node for node in make_case(op, 0).graph.nodes if node.op is op]
    assert isinstance(nodes[-1].type, TupleType) == has_several_results(op)


@pytest.mark.slow
def test_type_checker_knows_the_methods(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import darner\n"
        "g = darner.Graph()\n"
        "x = g.input('x', (2, 3))\n"
        "reveal_type(g.tanh(x))\n"
        "reveal_type(x.top_k(2))\n"
        "reveal_type(g.my_own_op(x))\n"
        "x.tanh(label=1)\n"
    )
    finished = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", f"--cache-dir={tmp_path}/cache", str(program)],
        capture_output=True,
        text=True,
        cwd=generate.ROOT,
    )
    found = [line.partition(": ")[2] for line in finished.stdout.splitlines()]
    assert found[0] == 'note: Revealed type is "darner.graph.node.Node"'
    assert "tuple[darner.graph.node.Node, ...]" in found[1]
    assert found[2] == 'note: Revealed type is "Any"'
    assert 'incompatible type "int"; expected "str | None"' in found[3]


# --------------------------------------------------------------------------- the pages


def test_page_has_a_heading_for_every_op_and_links_to_it():
    page = ops_page()
    for item in builtin_items():
        assert f"\n### {item.name}\n\n```python\n{item.signature}\n```\n" in page
        assert f"[{item.name}](#{item.name})" in page


def test_promotion_table_has_every_pair():
    rows = [
        [cell.strip().strip("*") for cell in line.strip("|").split("|")]
        for line in promotion_table().splitlines()
    ]
    assert rows[0][1:] == [kind.name for kind in ALL]
    table = {row[0]: dict(zip(rows[0][1:], row[1:], strict=True)) for row in rows[2:]}
    assert table["f16"]["bf16"] == "f32"
    assert table["u8"]["i8"] == "i16"
    assert table["f64"]["c64"] == "-"
    assert table["i64"]["f16"] == str(promote(*(k for k in ALL if k.name in ("i64", "f16"))))


def test_generating_outside_a_checkout_exits_with_2(tmp_path, capsys):
    assert generate.main([], tmp_path) == 2
    assert "is not a checkout of darner" in capsys.readouterr().err


def test_a_page_without_its_block_is_an_error():
    with pytest.raises(ValueError, match="no block 'types'"):
        fill_blocks("# nothing here\n")
