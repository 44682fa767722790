"""The quick tier: ``pytest --quick``, which ``make quick`` runs.

The conformance suite has a case for every op, property, sample and element type, some thirty thousand in all. The
quick tier takes one sample of each op in f32 for every property, tries fewer examples where hypothesis makes them, and
leaves out what is marked slow. So it grows with the number of ops only.
"""

import os

from hypothesis import settings

from tests import conformance

# A timing never decides a test; on CI the examples are the same every time.
settings.register_profile("all", deadline=None, derandomize="CI" in os.environ)
settings.register_profile("quick", settings.get_profile("all"), max_examples=8)


def pytest_addoption(parser):
    parser.addoption("--quick", action="store_true", help="one sample of each op, in f32")


def pytest_configure(config):
    conformance.QUICK = config.getoption("--quick")
    settings.load_profile("quick" if conformance.QUICK else "all")


def pytest_collection_modifyitems(config, items):
    if not conformance.QUICK:
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if item not in set(slow)]
