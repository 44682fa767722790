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

from . import compat as compat
from . import ops as ops
from ._version import __version__ as __version__
from .compat.attention import AttentionBwdWrt
from .compat.gradients import differentiate
from .compat.kinds import Activation, BinaryOp, CompareOp, FftNorm, ReduceOp
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
from .graph.habits import missing
from .graph.module import GraphModule, HirModule, MirModule
from .graph.node import Node
from .graph.op import Cost, Op, builder, composite, primitive
from .graph.regions import RematPolicy
from .graph.types import TensorType
from .graph.types import TensorType as Shape
from .interpreter import run
from .ops.attention import MaskKind, SlidingWindow
from .ops.custom import MultiOutputHandle
from .ops.declare import binary, unary
from .ops.quant_scheme import QuantScheme
from .ops.quantiser import QuantizedWeights, quantize_weights
from .ops.registered import lookup_op, register_op
from .ops.splat_records import (
    GaussianSplatBackwardParams,
    GaussianSplatInputs,
    GaussianSplatRenderParams,
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

if TYPE_CHECKING:
    from . import data as data
    from . import load as load
    from . import models as models
    from . import nn as nn
    from . import optim as optim
    from . import text as text
    from . import train as train
    from .backends.base.backend import DeviceInfo
    from .backends.base.devices import devices
    from .compat.fusions import apply_group_norm_silu_fusions, apply_rms_norm_matmul_fusions
    from .lower.plan import ExecutionPlan, Plan
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

# Whoever builds a graph or differentiates it does without these, and without the time to load them.
_LATER = {
    "apply_group_norm_silu_fusions": "compat.fusions",
    "apply_rms_norm_matmul_fusions": "compat.fusions",
    "CompilePipeline": "session",
    "DerivedParam": "optimizer",
    "DeviceInfo": "backends.base.backend",
    "ExecutionPlan": "lower.plan",
    "LirModule": "session",
    "MemorySummary": "session",
    "OptimizeReport": "optimizer",
    "Plan": "lower.plan",
    "RuleError": "optimizer",
    "Session": "session",
    "SessionConfig": "session",
    "Target": "optimizer",
    "build": "session",
    "build_inference_session": "session",
    "build_session": "session",
    "build_session_cached": "session",
    "build_session_unoptimized": "session",
    "build_session_with_report": "session",
    "data": "data",
    "devices": "backends.base.devices",
    "function": "session",
    "load": "load",
    "models": "models",
    "nn": "nn",
    "optim": "optim",
    "optimize": "optimizer",
    "optimize_inference": "optimizer",
    "optimize_training": "optimizer",
    "text": "text",
    "train": "train",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        module = importlib.import_module(f".{_LATER[name]}", __name__)
        return module if name == _LATER[name] else getattr(module, name)
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
