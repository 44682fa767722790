"""Which tests are slow, and so left out of ``make quick``.

The conformance suite has a case for every op, property, sample and element type. Of each op, the quick tier
keeps every sample in f32 where its result is compared with someone else's, and one sample, the middle one, for
every other property, derivatives and batches among them. So it grows with the number of ops only, by about a dozen
small cases for each.
"""

import pytest


def is_slow(item):
    """Whether a case belongs to the slow tier by its parameters."""
    if "/tests/conformance/" not in item.path.as_posix() or not hasattr(item, "callspec"):
        return False
    chosen = item.callspec.params
    if str(chosen.get("dtype", "f32")) != "f32":
        return True
    compares_results = "dtype" in chosen and item.path.name == "test_reference.py"
    if "op" in chosen and "index" in chosen and not compares_results:
        return chosen["index"] != len(chosen["op"].samples) // 2
    return False


def pytest_collection_modifyitems(items):
    for item in items:
        if is_slow(item):
            item.add_marker(pytest.mark.slow)
