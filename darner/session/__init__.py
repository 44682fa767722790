"""Sessions: a graph compiled, with its parameters, optimizer and states.

Modules, in the order data passes through them:

    config      what a session is asked to be
    builders    ``build`` and its kin
    pipeline    from the user's graph to plans; ``setup`` cuts off what is computed once, ``copies`` what training rounds of parameters, ``planfile`` keeps plans
    groups      which weights training stores side by side, and why not others; ``side_by_side`` makes the graph in which they stand so
    stages      a graph with its plan, ``LirModule``, to be looked at, saved and built
    buildcache  plans and code of earlier builds; ``buildkey`` says what a build depends on
    programs    what runs for one choice of sizes, and how far that is; ``compiling`` makes it
    values      parameters and states, and the memory that all programs use; ``leaves`` shows them as mappings
    preparing   what is made of weights before steps, and where weights are that were given back
    binding     values in: element types, shapes, symbolic sizes
    session     the methods, the lock, the names in errors; it holds a runner (``running``: inputs, steps, outputs),
                a learner (``training``: optimizers, gradients) and an inspector (``inspecting``: questions)
    checkpoint  parameters and states in files; ``restoring`` reads those of others
    functions   Python functions over nodes, called with arrays
"""

from ..inspect.summary import MemorySummary
from .builders import (
    build,
    build_inference_session,
    build_session,
    build_session_cached,
    build_session_unoptimized,
    build_session_with_report,
)
from .config import SessionConfig
from .functions import Function, function
from .initialise import ZeroParametersWarning
from .programs import ClosedError
from .session import Session
from .stages import CompilePipeline, LirModule

__all__ = [
    "ClosedError",
    "CompilePipeline",
    "Function",
    "LirModule",
    "MemorySummary",
    "Session",
    "SessionConfig",
    "ZeroParametersWarning",
    "build",
    "build_inference_session",
    "build_session",
    "build_session_cached",
    "build_session_unoptimized",
    "build_session_with_report",
    "function",
]
