"""How many files it takes to add something: each test adds one to a copy of the package, counts the files, and runs it.

CONTRIBUTING.md names these files. Generated ones (``make docs``) are not counted.
"""

import pytest

from tests.gpu import REASON
from tests.house.copies import Copy

pytestmark = pytest.mark.slow


@pytest.fixture
def copy(tmp_path):
    return Copy.into(tmp_path)


def test_a_composite_op_is_one_file(copy):
    copy.append(
        "darner/ops/elementwise/activations.py",
        """
soft_step = _activation(
    "soft_step",
    "x / (1 + x * x).",
    lambda x: x / (1.0 + x * x),
)
""",
    )
    assert copy.touched == {"darner/ops/elementwise/activations.py"}
    printed = copy.run(
        """
import numpy as np
g = darner.Graph("added")
w = g.parameter("w", (5,))
g.set_outputs([(w.soft_step() * 3.0).sum()])
assert "soft_step" in str(g)
x = np.array([-2, -1, 0, 0.5, 3], np.float32)
slope = 3 * (1 - x * x) / (1 + x * x) ** 2
(found,) = darner.run(darner.grad(g), {}, {"w": x})
np.testing.assert_allclose(found, slope, rtol=1e-5, atol=1e-6)
for device in ("reference", "cpu"):
    h = darner.Graph("added")
    h.set_outputs([h.input("x", (5,)).soft_step()])
    with darner.build_inference_session(h, device=device) as session:
        np.testing.assert_allclose(next(iter(session.run({"x": x}).values())), x / (1 + x * x), rtol=1e-6)
    print(device)
"""
    )
    assert printed.split() == ["reference", "cpu"]


def test_an_element_wise_primitive_is_one_file(copy):
    copy.append(
        "darner/ops/elementwise/functions.py",
        """
cubed_sine = unary(
    "cubed_sine",
    "sin(x) to the power 3.",
    lambda x: np.sin(x) ** 3,
    kind=Float,
    vjp=lambda g, x, y: g * (3.0 * x.sin().square() * x.cos()),
    emit=lambda x: x.sin() * x.sin() * x.sin(),
    facts=Facts(effort="much"),
)
""",
    )
    assert copy.touched == {"darner/ops/elementwise/functions.py"}
    devices = ["reference", "cpu", *([] if REASON else ["gpu"])]
    printed = copy.run(
        f"""
import numpy as np
x = np.array([-2, -1, 0, 0.5, 3], np.float32)
for device in {devices}:
    g = darner.Graph("added")
    g.set_outputs([((g.parameter("w", (5,)) + g.input("x", (5,))).cubed_sine() * 3.0).sum()])
    with darner.build_session(g, device=device) as session:
        session.set_parameter("w", x)
        (found,) = session.run({{"x": 0 * x}}).values()
        np.testing.assert_allclose(found, 3 * (np.sin(x) ** 3).sum(), rtol=1e-5)
        slope = 9 * np.sin(x) ** 2 * np.cos(x)
        np.testing.assert_allclose(session.gradients()["w"], slope, rtol=1e-5, atol=1e-6)
        assert "host" not in [spec.kind for spec in session.plan().specs.values()]
    print(device)
"""
    )
    assert printed.split() == devices


def test_a_rule_is_one_file(copy):
    copy.append(
        "darner/optimizer/rules/strength.py",
        '\nrule("sin(x) / cos(x)", T.sin(x) / T.cos(x), T.tan(x), when=is_float(x))\n',
    )
    assert copy.touched == {"darner/optimizer/rules/strength.py"}
    printed = copy.run(
        """
import numpy as np
g = darner.Graph("added")
x = g.input("x", (4,))
g.set_outputs([x.sin() / x.cos()])
found, report = darner.optimize_inference(g)
print(" ".join(node.op.name for node in found.nodes if node.op.name != "input"))
x = np.array([-1, 0, 0.5, 1], np.float32)
np.testing.assert_allclose(darner.run(found, {"x": x})[0], np.tan(x), rtol=1e-6)
"""
    )
    assert printed.split() == ["tan"]


MODEL = '''"""Two layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from .. import nn
from ..graph.graph import Graph
from .base import Config, Model


@dataclass(frozen=True, kw_only=True)
class TwoLayersConfig(Config):
    """Its sizes."""

    model_type: ClassVar[str] = "two_layers"
    architecture: ClassVar[str] = "TwoLayers"

    width: int = 8


@dataclass(frozen=True)
class TwoLayers(Model):
    """A hidden layer and a head."""

    config: TwoLayersConfig

    @classmethod
    def from_config(cls, found: Mapping[str, Any], **options: Any) -> Self:
        """The model of a configuration."""
        return cls(TwoLayersConfig.from_hf(found), **options)

    def inference_graph(self, batch: int = 1) -> Graph:
        """From ``x`` to the results."""
        g = Graph("two layers")
        width = self.config.width
        hidden = nn.Linear("hidden", 3, width)(g.input("x", (batch, 3))).tanh()
        g.set_outputs([nn.Linear("head", width, 2)(hidden)])
        return g

    def training_graph(self, batch: int = 1) -> Graph:
        """The mean square of the results."""
        g = self.inference_graph(batch)
        g.set_outputs([g.outputs[0].square().mean()])
        return g
'''


def test_a_model_is_two_files(copy):
    copy.create("darner/models/two_layers.py", MODEL)
    copy.add_behind(
        "darner/models/__init__.py",
        "ARCHITECTURES: dict[str, str] = {",
        '    "two_layers": "two_layers:TwoLayers",\n',
    )
    assert copy.touched == {"darner/models/__init__.py", "darner/models/two_layers.py"}
    printed = copy.run(
        """
import numpy as np
from darner import models, optim
model = models.from_config({"model_type": "two_layers", "width": 5})
with darner.build_inference_session(model.inference_graph(batch=2)) as session:
    x = np.ones((2, 3), np.float32)
    session.initialize(seed=1)
    p = {name: session.get_parameter(name) for name in session.param_names()}
    want = np.tanh(x @ p["hidden.weight"].T + p["hidden.bias"]) @ p["head.weight"].T + p["head.bias"]
    np.testing.assert_allclose(next(iter(session.run({"x": x}).values())), want, rtol=1e-4, atol=1e-6)
print(*sorted(p), model.training_graph(4).outputs[0].shape)
"""
    )
    assert printed == "head.bias head.weight hidden.bias hidden.weight ()\n"


FAMILY = '''"""Cubes: products of a value with its square, element by element. ``CUBES`` is the one form."""

from __future__ import annotations

from typing import Any

from ....codegen.ir.emit import loop
from ....codegen.ir.index import i64
from ....lower.plan import Spec
from ..emit.template import Code, Template


def _fits(spec: Spec) -> bool:
    return [n.op.name for n in spec.body.nodes] == ["input", "square", "mul"] and (
        spec.body.outputs[0].dtype.name == "f32"
    )


def _emit(code: Code) -> None:
    from llvmlite import ir

    b, kind = code.builder, ir.FloatType()

    def emit_element(i: Any) -> None:
        x = b.load(b.gep(code.operands[0], [i], source_etype=kind), typ=kind)
        b.store(b.fmul(x, b.fmul(x, x)), b.gep(code.results[0], [i], source_etype=kind))

    code.each(code.body.outputs[0].type.size, emit_element)


CUBES = Template("cubes", _fits, _emit)
'''


def test_a_kernel_family_is_one_folder_and_one_row(copy):
    copy.create("darner/backends/cpu/cubes/__init__.py", FAMILY)
    kernels = "darner/backends/cpu/kernels.py"
    copy.add_behind(kernels, "from .complex.template import COMPLEX", "from .cubes import CUBES\n")
    copy.add_behind(kernels, "TEMPLATES: tuple[Template, ...] = (", "    CUBES,\n")
    assert copy.touched == {"darner/backends/cpu/cubes/__init__.py", kernels}
    printed = copy.run(
        """
import numpy as np
from darner.backends.cpu import kernels
g = darner.Graph("added")
x = g.input("x", (1003,))
g.set_outputs([x * x.square()])
with darner.build_inference_session(g) as session:
    x = np.linspace(-2, 2, 1003, dtype=np.float32)
    np.testing.assert_allclose(next(iter(session.run({"x": x}).values())), x**3, rtol=1e-6)
    (spec,) = session.plan().specs.values()
    print(kernels.template_of(spec).name)
"""
    )
    assert printed == "cubes\n"


BACKEND = '''"""The oracle by another name: the shortest backend there is."""

from ..reference.backend import ReferenceBackend


class ToyBackend(ReferenceBackend):
    """A device that runs everything, slowly."""

    name = "toy"
    target = "toy"
    spelling = "toy"


BACKEND = ToyBackend()
'''


def test_a_backend_is_one_folder_and_one_row(copy):
    registry = "darner/backends/base/registry.py"
    copy.create("darner/backends/toy/__init__.py", '"""A backend that was added."""\n')
    copy.create("darner/backends/toy/backend.py", BACKEND)
    copy.replace(registry, '"cuda": "cuda"}', '"cuda": "cuda", "toy": "toy"}')
    folder = "darner/backends/toy"
    assert copy.touched == {registry, f"{folder}/__init__.py", f"{folder}/backend.py"}
    printed = copy.run(
        """
import numpy as np

def trained(device):
    g = darner.Graph("model")
    x, w = g.input("x", (3, 5)), g.parameter("w", (5, 7), init="kaiming")
    g.set_outputs([((x @ w).relu() ** 2).mean()])
    with darner.build(g, device=device, optimizer=darner.optim.Adam(0.1)) as session:
        session.set_input("x", np.linspace(-1, 1, 15, dtype=np.float32).reshape(3, 5))
        for _ in range(3):
            session.step()
        return np.array(session.get_parameter("w"))

np.testing.assert_array_equal(trained("toy"), trained("reference"))
try:
    darner.build(darner.Graph("none"), device="toyy")
except darner.ArgumentError as error:
    print("toy" in str(error))
print([d.name for d in darner.devices() if d.name == "toy"])
"""
    )
    assert printed.split() == ["True", "['toy']"]
