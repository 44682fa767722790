"""The functions that make sessions."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..graph.errors import ArgumentError, Calling
from ..graph.garbage import without_collection
from ..graph.graph import Graph
from ..graph.stages.module import GraphModule
from .config import SessionConfig
from .session import Session
from .stages import config_of, unpacked

if TYPE_CHECKING:
    from ..optimizer import OptimizeReport


def build(
    graph: Graph | GraphModule,
    config: SessionConfig | None = None,
    *,
    share: Session | Sequence[Session] | None = None,
    plan_file: str | os.PathLike[str] | None = None,
    **overrides: Any,
) -> Session:
    """A session of a graph.

    Args:
        graph: what to compile, or a module of it at any stage; changing it afterwards does not change the session. A module at
            lir is run as it was planned, and has the config that it was planned by.
        config: what is asked for; the defaults of ``SessionConfig`` when left out.
        share: a session whose parameters (and states of the same names) are used, in the same memory; or several, each of
            which has a part of them.
        plan_file: where the plan is kept between processes; see ``build_session_cached``.
        overrides: fields of the config that are to be different.
    """
    return _built("build", graph, config, share=share, plan_file=plan_file, **overrides)


def _built(
    called: str,
    model: Graph | GraphModule,
    config: SessionConfig | None,
    *,
    share: Session | Sequence[Session] | None = None,
    plan_file: str | os.PathLike[str] | None = None,
    **overrides: Any,
) -> Session:
    """What all of them do; errors name the one that was ``called``."""
    with Calling(called), without_collection():
        if config is not None and not isinstance(config, SessionConfig):
            raise ArgumentError(f"config is a SessionConfig, got {config!r}")
        graph, planned = unpacked(model)
        if planned is None:
            chosen = (config or SessionConfig()).with_changes(**overrides)
        elif plan_file is not None:
            raise ArgumentError(
                f"module '{planned.name}' has its plan", hint="keep it with module.to_json()"
            )
        else:
            chosen = config_of(planned, config, overrides)
        if plan_file is not None and not isinstance(plan_file, str | os.PathLike):
            raise ArgumentError(f"plan_file is a path, got {plan_file!r}")
        path = None if plan_file is None else os.fspath(plan_file)
        sources = () if share is None else share if isinstance(share, list | tuple) else (share,)
        given = {name for one in sources if isinstance(one, Session) for name in one.parameters()}
        session = Session(graph, chosen, path, given, None if planned is None else planned.plans)
        for source in sources:
            session.share_parameters(source)
        return session


def build_session(
    graph: Graph | GraphModule, config: SessionConfig | None = None, **overrides: Any
) -> Session:
    """A training session: the first output is the loss; a step is forward, backward and the updates."""
    return _built("build_session", graph, config, **{**overrides, "mode": "train"})


def build_inference_session(
    graph: Graph | GraphModule, config: SessionConfig | None = None, **overrides: Any
) -> Session:
    """An inference session: a step computes the outputs, and there are no gradients.

    With ``share=session`` its parameters are those of another session, in the same memory.
    """
    return _built("build_inference_session", graph, config, **{**overrides, "mode": "infer"})


def build_session_cached(
    graph: Graph | GraphModule,
    path: str | os.PathLike[str],
    config: SessionConfig | None = None,
    **overrides: Any,
) -> Session:
    """Like ``build_session``, with the plan from a file if it was made from the same graph, options, machine and versions.

    Otherwise the plan is made, and kept in the file; a damaged or foreign file is replaced with a warning, and never run. Setting
    an optimizer later uses a file beside it (``model.adam.plan``).
    """
    options = {"mode": "train", **overrides, "plan_file": path}
    return _built("build_session_cached", graph, config, **options)


def build_session_with_report(
    graph: Graph | GraphModule, config: SessionConfig | None = None, **overrides: Any
) -> tuple[Session, OptimizeReport]:
    """Like ``build_session``, with the report of what the optimizer did."""
    options = {**overrides, "mode": "train"}
    session = _built("build_session_with_report", graph, config, **options)
    return session, session.report


def build_session_unoptimized(
    graph: Graph | GraphModule, config: SessionConfig | None = None, **overrides: Any
) -> Session:
    """Like ``build_session`` at level 0: nothing is rewritten."""
    options = {**overrides, "mode": "train", "level": 0}
    return _built("build_session_unoptimized", graph, config, **options)
