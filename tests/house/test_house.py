"""The architecture as it stands in ``layers.toml`` and ``rules.py``, over the whole package."""

import pytest

from tests.house import baseline
from tests.house.layers import layers
from tests.house.rules import COUNTS, RULES, counts, package


@pytest.mark.parametrize("name", RULES)
def test_nothing_breaks_a_rule_but_what_is_listed(name):
    said = baseline.complaints(name, baseline.offences(name), baseline.listed(name))
    assert not said, "\n".join([RULES[name].__doc__ or "", *said])


@pytest.fixture(scope="module")
def now():
    return counts(package())


@pytest.mark.parametrize("name", COUNTS)
def test_what_is_counted_becomes_rarer(name, now):
    said = baseline.count_complaints(now[name], baseline.kept_counts()[name])
    assert not said, "\n".join([name, *said])


def test_every_package_has_a_row_in_the_table_of_layers():
    lost = [name for name in package() if layers().layer_of(name) is None]
    assert lost == [], "add them to tests/house/layers.toml"
