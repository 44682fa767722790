"""The quick tier: ``pytest --quick``, which ``make quick`` runs.

The conformance suite has a case for every op, property, sample and element type, some thirty thousand in all. The
quick tier takes one sample of each op in f32, each property of a quarter of the ops, tries fewer examples where hypothesis
makes them, takes one in twenty-four of the rewrite rules and models, some of the tests that compile native code or optimise
whole models, and leaves out what is marked slow and what compares with transformers, which takes seconds to load.
"""

import gc
import os
import zlib
from collections import Counter

import numpy as np
import pytest
from hypothesis import settings

from tests import conformance

# What darner is compared with computes on one thread: the tests are spread over the cores already. Workers inherit it.
for library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

# Lavapipe, which stands in for a GPU, compiles shaders for minutes and runs them for moments: its own cache stays where the user has it, whatever the
# tests do with darner's, and it leaves its optimiser out.
os.environ.setdefault(
    "MESA_SHADER_CACHE_DIR", os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
)
os.environ.setdefault("GALLIVM_PERF", "nopt")

# A timing never decides a test; on CI the examples are the same every time.
settings.register_profile("all", deadline=None, derandomize="CI" in os.environ)
settings.register_profile("quick", settings.get_profile("all"), max_examples=8)


THINNED = (
    *("cpu", "cuda", "data", "gpu", "load", "lower", "models", "nn"),
    *("optim", "optimizer", "session", "train", "zoo"),
)
"""Folders whose tests enumerate rules, models, functions and files."""


MANY = 20
"""Of tests of more cases than this, wherever they are, one in ``OF_MANY`` is taken: of each test others, so that together they meet every op."""
OF_MANY = 4


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory):
    """Compiled code of the tests is not the user's; what one worker built, the others find."""
    before = os.environ.get("XDG_CACHE_HOME")
    base = tmp_path_factory.getbasetemp()
    folder = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    yield
    if before is None:
        del os.environ["XDG_CACHE_HOME"]
    else:
        os.environ["XDG_CACHE_HOME"] = before


@pytest.fixture(autouse=True)
def _own_numbers(request):
    """Every test draws the same numbers, whatever ran before it: a module's ``RNG`` begins anew."""
    rng = getattr(request.node, "module", None) and getattr(request.module, "RNG", None)
    if rng is not None:
        seed = zlib.crc32(request.node.name.encode())
        rng.bit_generator.state = np.random.default_rng(seed).bit_generator.state


SAMPLED = {
    "cpu": 10,
    "gpu": 40,
    "cuda": 6,
    "session": 10,
    "models": 20,
    "leaks": 6,
    "faults": 6,
    "optimizer": 5,
    "lower": 5,
    "cli": 16,
    "train": 8,
    "load": 6,
    "nn": 6,
    "optim": 3,
    "data": 3,
    "docs": 4,
}
"""Folders whose tests take long, and of how many of them the quick tier takes one."""


def pytest_addoption(parser):
    parser.addoption("--quick", action="store_true", help="one sample of each op, in f32")


def pytest_configure(config):
    conformance.QUICK = config.getoption("--quick")
    settings.load_profile("quick" if conformance.QUICK else "all")


def pytest_ignore_collect(collection_path, config):
    """In the quick tier, files that load transformers; None leaves it to others to say."""
    if not config.getoption("--quick") or collection_path.suffix != ".py":
        return None
    text = collection_path.read_text(encoding="utf-8")
    names = ("import transformers", "from transformers", "import parity")
    return True if any(name in text for name in names) else None


def pytest_collection_modifyitems(config, items):
    if not conformance.QUICK:
        return
    kept = [item for item in items if not item.get_closest_marker("slow") and sampled(item)]
    gone = set(thinned(kept))
    kept = [item for item in kept if item not in gone]
    config.hook.pytest_deselected(items=list(set(items).difference(kept)))
    items[:] = kept


def pytest_collection_finish():
    """What was imported and collected stays: no collection of garbage need look at it again."""
    gc.collect()
    gc.freeze()


def sampled(item):
    """Whether the quick tier takes a test: by its name, so that it is always the same ones."""
    of = SAMPLED.get(item.path.parent.name, 1)
    name = getattr(item, "originalname", item.name)
    return zlib.crc32(f"{item.path.name}/{name}".encode()) % of == 0


def thinned(items):
    """What the quick tier leaves out of tests that enumerate rules, models, spellings and ops."""
    cases = {}
    for item in items:
        if hasattr(item, "originalname"):
            cases.setdefault((item.path, item.originalname), []).append(item)
    for (path, name), found in cases.items():
        if path.parent.name in THINNED:
            kept = max(2, len(found) // 24)
            step = len(found) / kept
            chosen = (
                {int(i * step) for i in range(kept)} if len(found) > kept else range(len(found))
            )
        elif len(found) > MANY:
            chosen = range(zlib.crc32(name.encode()) % OF_MANY, len(found), OF_MANY)
        else:
            continue
        yield from (item for i, item in enumerate(found) if i not in chosen)


def pytest_terminal_summary(terminalreporter):
    """Every reason why tests were skipped, once."""
    skipped = terminalreporter.stats.get("skipped", ())
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"skipped {count}: {reason}", yellow=True)
