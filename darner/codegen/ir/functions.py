"""The elementary functions as methods of a lane, so that scalar code of ops reads ``x.exp() * y``."""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def _elementary() -> Any:
    """The module of the functions, which is written against lanes."""
    from . import elementary

    return elementary


class Functions:
    """What ``Lane`` has from here; see ``elementary`` for how each is computed."""

    __slots__ = ()

    def exp(self) -> Any:
        """E to this power."""
        return _elementary().exp(self)

    def exp2(self) -> Any:
        """2 to this power."""
        return _elementary().exp2(self)

    def expm1(self) -> Any:
        """exp(x) - 1, exact near 0."""
        return _elementary().expm1(self)

    def log(self) -> Any:
        """The natural logarithm."""
        return _elementary().log(self)

    def log2(self) -> Any:
        """The logarithm to base 2."""
        return _elementary().log2(self)

    def log10(self) -> Any:
        """The logarithm to base 10."""
        return _elementary().log10(self)

    def log1p(self) -> Any:
        """log(1 + x), exact near 0."""
        return _elementary().log1p(self)

    def sin(self) -> Any:
        """The sine."""
        return _elementary().sin(self)

    def cos(self) -> Any:
        """The cosine."""
        return _elementary().cos(self)

    def tan(self) -> Any:
        """The tangent."""
        return _elementary().tan(self)

    def asin(self) -> Any:
        """The inverse sine."""
        return _elementary().asin(self)

    def acos(self) -> Any:
        """The inverse cosine."""
        return _elementary().acos(self)

    def atan(self) -> Any:
        """The inverse tangent."""
        return _elementary().atan(self)

    def sinh(self) -> Any:
        """The hyperbolic sine."""
        return _elementary().sinh(self)

    def cosh(self) -> Any:
        """The hyperbolic cosine."""
        return _elementary().cosh(self)

    def tanh(self) -> Any:
        """The hyperbolic tangent."""
        return _elementary().tanh(self)

    def asinh(self) -> Any:
        """The inverse hyperbolic sine."""
        return _elementary().asinh(self)

    def acosh(self) -> Any:
        """The inverse hyperbolic cosine."""
        return _elementary().acosh(self)

    def atanh(self) -> Any:
        """The inverse hyperbolic tangent."""
        return _elementary().atanh(self)

    def erf(self) -> Any:
        """The error function."""
        return _elementary().erf(self)

    def erfc(self) -> Any:
        """1 - erf(x)."""
        return _elementary().erfc(self)

    def atan2(self, other: Any) -> Any:
        """The angle of the point (other, x)."""
        return _elementary().atan2(self, other)

    def power(self, other: Any) -> Any:
        """This float to another power."""
        return _elementary().power(self, other)

    def floor_divide(self, other: Any) -> Any:
        """The quotient, rounded down."""
        return _elementary().floor_divide(self, other)

    def remainder(self, other: Any) -> Any:
        """What ``floor_divide`` leaves, with the divisor's sign."""
        return _elementary().remainder(self, other)

    def abs(self) -> Any:
        """|x|, where nothing depends on what becomes of NaN."""
        return self.intrinsic("fabs")

    def sqrt(self) -> Any:
        """The square root."""
        return self.intrinsic("sqrt")

    def floor(self) -> Any:
        """The largest integer not above this float."""
        return self.intrinsic("floor")

    def ceil(self) -> Any:
        """The smallest integer not below this float."""
        return self.intrinsic("ceil")

    def trunc(self) -> Any:
        """This float without its fraction."""
        return self.intrinsic("trunc")

    def round(self) -> Any:
        """The nearest integer; halves go to the even one."""
        return self.intrinsic("roundeven")

    def intrinsic(self, name: str, *others: Any) -> Any:
        """An instruction of this value and others of its type."""
        raise NotImplementedError
