"""Quotients and roots of a card are as near as numbers rounded once, but for one place in very rare cases."""

import numpy as np
import pytest

import darner
from tests.cuda.card import needs_card

pytestmark = needs_card


def every_kind(count=1 << 20):
    """Floats of all exponents, special ones among them."""
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 1 << 32, count, dtype=np.uint64).astype(np.uint32)
    found = bits.view(np.float32).copy()
    special = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1.2e-38, 3.4e38]
    found[: len(special) ** 2] = np.repeat(np.float32(special), len(special))
    return found


def places_off(found, wanted):
    """How many floats lie between, counted across zero."""

    def order(x):
        bits = x.view(np.int32).astype(np.int64)
        return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)

    return np.abs(order(found) - order(wanted))


def run(make, **inputs):
    g = darner.Graph()
    g.set_outputs([make(*(g.input(name, value.shape) for name, value in inputs.items()))])
    with darner.build_inference_session(g, device="cuda", cache=None) as session:
        return session.run(inputs)["output0"]


def check(found, wanted, *operands, denormal=None):
    """No number is more than a place off, three where ``denormal`` says so, and hardly any is where neither results nor operands are at the ends of what f32 holds."""
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    there = ~np.isnan(wanted)
    off = places_off(found[there], wanted[there])
    most = 1 if denormal is None else np.where(denormal[there], 3, 1)
    assert (off <= most).all()
    same = off == 0
    np.testing.assert_array_equal(np.signbit(found[there][same]), np.signbit(wanted[there][same]))
    size = np.abs([wanted, *operands])
    usual = ((size > 2.0**-90) & (size < 2.0**90)).all(axis=0)[there]
    assert usual.sum() > 1000
    assert np.mean(off[usual] > 0) < 1e-4


def test_quotients():
    above, below = every_kind(), every_kind()[::-1].copy()
    count = 11
    below[: count**2] = np.tile(above[: count**2 : count], count)
    with np.errstate(all="ignore"):
        wanted = (above.astype(np.float64) / below.astype(np.float64)).astype(np.float32)
    found = run(lambda a, b: a / b, a=above, b=below)
    check(found, wanted, above, below, denormal=np.abs(above) < 2.0**-125)


@pytest.mark.parametrize("part", [0, 1])
def test_roots(part):
    x = every_kind()
    x = np.abs(x) if part else x
    with np.errstate(all="ignore"):
        wanted = np.sqrt(x)
    check(run(lambda v: v.sqrt(), v=x), wanted, x)
