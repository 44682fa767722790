"""darner: a graph compiler for neural networks.

>>> import numpy as np
>>> import darner
>>> g = darner.Graph("mlp")
>>> x = g.input("x", (2, 3))
>>> w = g.parameter("w", (3, 2))
>>> g.set_outputs([(x @ w).relu()])
>>> darner.run(g, {"x": np.ones((2, 3))}, {"w": np.ones((3, 2))})
[array([[3., 3.],
       [3., 3.]], dtype=float32)]
"""

from . import _start as _start  # isort: skip

import importlib
from typing import TYPE_CHECKING, Any

from ._version import __version__ as __version__
from .graph.binding import DimBinding
from .graph.dims import symbol
from .graph.dtypes import DType, promote
from .graph.errors import (
    ArgumentError,
    CallError,
    DarnerError,
    DeviceLostError,
    DeviceMemoryError,
    DTypeError,
    ForkError,
    FormatError,
    InternalError,
    LowerError,
    MissingNameError,
    MissingPackageError,
    NameTakenError,
    OutOfMemoryError,
    RunError,
    ShapeError,
    UnknownNameError,
    UnsupportedError,
    VerifyError,
)
from .graph.graph import Graph
from .graph.habits.hints import missing
from .graph.node import Node
from .graph.op import Cost, Op, builder, composite, primitive
from .graph.regions import RematPolicy
from .graph.stages.module import GraphModule, HirModule, MirModule
from .graph.types import TensorType
from .graph.types import TensorType as Shape

if TYPE_CHECKING:
    from . import compat as compat
    from . import data as data
    from . import interpreter as interpreter
    from . import load as load
    from . import models as models
    from . import nn as nn
    from . import ops as ops
    from . import optim as optim
    from . import optimizer as optimizer
    from . import text as text
    from . import train as train
    from . import transforms as transforms
    from .backends.base.backend import DeviceInfo
    from .backends.base.devices import devices
    from .compat.attention import AttentionBwdWrt
    from .compat.fusions import apply_group_norm_silu_fusions, apply_rms_norm_matmul_fusions
    from .compat.gradients import differentiate
    from .compat.kinds import Activation, BinaryOp, CompareOp, FftNorm, ReduceOp
    from .interpreter import run
    from .lower.plan import ExecutionPlan, Plan
    from .ops.attention.attention import MaskKind, SlidingWindow
    from .ops.custom.functions import MultiOutputHandle
    from .ops.custom.registered import lookup_op, register_op
    from .ops.declare import binary, unary
    from .ops.quantised.quantiser import QuantizedWeights, quantize_weights
    from .ops.quantised.scheme import QuantScheme
    from .ops.splats.records import (
        GaussianSplatBackwardParams,
        GaussianSplatInputs,
        GaussianSplatRenderParams,
    )
    from .optimizer import (
        DerivedParam,
        OptimizeReport,
        RuleError,
        Target,
        optimize,
        optimize_inference,
        optimize_training,
    )
    from .session import (
        CompilePipeline,
        LirModule,
        MemorySummary,
        Session,
        SessionConfig,
        build,
        build_inference_session,
        build_session,
        build_session_cached,
        build_session_unoptimized,
        build_session_with_report,
        function,
    )
    from .transforms.batch import vmap
    from .transforms.cost import cost, graph_cost
    from .transforms.custom_gradient import custom_gradient
    from .transforms.expand import expand, in_float64
    from .transforms.gradients import grad, hvp, jvp, value_and_grad, vjp
    from .transforms.jacobians import hessian, jacfwd, jacrev
    from .transforms.linearize import linearize
    from .transforms.memory import leaf_bytes, live_bytes, peak_live_bytes
    from .transforms.precision import with_precision
    from .transforms.remat import remat
    from .transforms.substitute import substitute

# Whoever builds a graph does without these, and without the time to load them.
_LATER = {
    name: module
    for module, names in {
        "backends.base.backend": "DeviceInfo",
        "backends.base.devices": "devices",
        "compat": "compat",
        "compat.attention": "AttentionBwdWrt",
        "compat.fusions": "apply_group_norm_silu_fusions apply_rms_norm_matmul_fusions",
        "compat.gradients": "differentiate",
        "compat.kinds": "Activation BinaryOp CompareOp FftNorm ReduceOp",
        "data": "data",
        "interpreter": "interpreter run",
        "load": "load",
        "lower.plan": "ExecutionPlan Plan",
        "models": "models",
        "nn": "nn",
        "ops": "ops",
        "ops.attention.attention": "MaskKind SlidingWindow",
        "ops.custom.functions": "MultiOutputHandle",
        "ops.custom.registered": "lookup_op register_op",
        "ops.declare": "binary unary",
        "ops.quantised.quantiser": "quantize_weights QuantizedWeights",
        "ops.quantised.scheme": "QuantScheme",
        "ops.splats.records": "GaussianSplatBackwardParams GaussianSplatInputs GaussianSplatRenderParams",
        "optim": "optim",
        "optimizer": "optimizer DerivedParam optimize optimize_inference optimize_training OptimizeReport RuleError Target",
        "session": "build build_inference_session build_session build_session_cached build_session_unoptimized"
        " build_session_with_report CompilePipeline function LirModule MemorySummary Session SessionConfig",
        "text": "text",
        "train": "train",
        "transforms": "transforms",
        "transforms.batch": "vmap",
        "transforms.cost": "cost graph_cost",
        "transforms.custom_gradient": "custom_gradient",
        "transforms.expand": "expand in_float64",
        "transforms.gradients": "grad hvp jvp value_and_grad vjp",
        "transforms.jacobians": "hessian jacfwd jacrev",
        "transforms.linearize": "linearize",
        "transforms.memory": "leaf_bytes live_bytes peak_live_bytes",
        "transforms.precision": "with_precision",
        "transforms.remat": "remat",
        "transforms.substitute": "substitute",
    }.items()
    for name in names.split()
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        module = importlib.import_module(f".{_LATER[name]}", __name__)
        found = globals()[name] = module if name == _LATER[name] else getattr(module, name)
        return found
    if name.startswith("_"):
        raise AttributeError(name)
    raise missing("darner", "darner has no", name, __all__)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})


__all__ = [
    "Activation",
    "ArgumentError",
    "AttentionBwdWrt",
    "BinaryOp",
    "CallError",
    "CompareOp",
    "CompilePipeline",
    "Cost",
    "DType",
    "DTypeError",
    "DarnerError",
    "DerivedParam",
    "DeviceInfo",
    "DeviceLostError",
    "DeviceMemoryError",
    "DimBinding",
    "ExecutionPlan",
    "FftNorm",
    "ForkError",
    "FormatError",
    "GaussianSplatBackwardParams",
    "GaussianSplatInputs",
    "GaussianSplatRenderParams",
    "Graph",
    "GraphModule",
    "HirModule",
    "InternalError",
    "LirModule",
    "LowerError",
    "MaskKind",
    "MemorySummary",
    "MirModule",
    "MissingNameError",
    "MissingPackageError",
    "MultiOutputHandle",
    "NameTakenError",
    "Node",
    "Op",
    "OptimizeReport",
    "OutOfMemoryError",
    "Plan",
    "QuantScheme",
    "QuantizedWeights",
    "ReduceOp",
    "RematPolicy",
    "RuleError",
    "RunError",
    "Session",
    "SessionConfig",
    "Shape",
    "ShapeError",
    "SlidingWindow",
    "Target",
    "TensorType",
    "UnknownNameError",
    "UnsupportedError",
    "VerifyError",
    "apply_group_norm_silu_fusions",
    "apply_rms_norm_matmul_fusions",
    "binary",
    "build",
    "build_inference_session",
    "build_session",
    "build_session_cached",
    "build_session_unoptimized",
    "build_session_with_report",
    "builder",
    "composite",
    "cost",
    "custom_gradient",
    "data",
    "devices",
    "differentiate",
    "expand",
    "function",
    "grad",
    "graph_cost",
    "hessian",
    "hvp",
    "in_float64",
    "jacfwd",
    "jacrev",
    "jvp",
    "leaf_bytes",
    "linearize",
    "live_bytes",
    "load",
    "lookup_op",
    "models",
    "nn",
    "optim",
    "optimize",
    "optimize_inference",
    "optimize_training",
    "peak_live_bytes",
    "primitive",
    "promote",
    "quantize_weights",
    "register_op",
    "remat",
    "run",
    "substitute",
    "symbol",
    "text",
    "train",
    "unary",
    "value_and_grad",
    "vjp",
    "vmap",
    "with_precision",
]
