"""The elementary functions as methods of a lane, so that scalar code of ops reads ``x.exp() * y``."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from .lanes import Lane


def _lane(value: Functions) -> Lane:
    """A lane is the only thing that has these functions."""
    return cast("Lane", value)


class Functions:
    """What ``Lane`` has from here; see ``elementary`` for how each is computed."""

    __slots__ = ()

    def exp(self) -> Lane:
        """E to this power."""
        from .elementary import exp

        return exp(_lane(self))

    def exp2(self) -> Lane:
        """2 to this power."""
        from .elementary import exp2

        return exp2(_lane(self))

    def expm1(self) -> Lane:
        """exp(x) - 1, exact near 0."""
        from .elementary import expm1

        return expm1(_lane(self))

    def log(self) -> Lane:
        """The natural logarithm."""
        from .elementary import log

        return log(_lane(self))

    def log2(self) -> Lane:
        """The logarithm to base 2."""
        from .elementary import log2

        return log2(_lane(self))

    def log10(self) -> Lane:
        """The logarithm to base 10."""
        from .elementary import log10

        return log10(_lane(self))

    def log1p(self) -> Lane:
        """log(1 + x), exact near 0."""
        from .elementary import log1p

        return log1p(_lane(self))

    def sin(self) -> Lane:
        """The sine."""
        from .elementary import sin

        return sin(_lane(self))

    def cos(self) -> Lane:
        """The cosine."""
        from .elementary import cos

        return cos(_lane(self))

    def tan(self) -> Lane:
        """The tangent."""
        from .elementary import tan

        return tan(_lane(self))

    def asin(self) -> Lane:
        """The inverse sine."""
        from .elementary import asin

        return asin(_lane(self))

    def acos(self) -> Lane:
        """The inverse cosine."""
        from .elementary import acos

        return acos(_lane(self))

    def atan(self) -> Lane:
        """The inverse tangent."""
        from .elementary import atan

        return atan(_lane(self))

    def sinh(self) -> Lane:
        """The hyperbolic sine."""
        from .elementary import sinh

        return sinh(_lane(self))

    def cosh(self) -> Lane:
        """The hyperbolic cosine."""
        from .elementary import cosh

        return cosh(_lane(self))

    def tanh(self) -> Lane:
        """The hyperbolic tangent."""
        from .elementary import tanh

        return tanh(_lane(self))

    def asinh(self) -> Lane:
        """The inverse hyperbolic sine."""
        from .elementary import asinh

        return asinh(_lane(self))

    def acosh(self) -> Lane:
        """The inverse hyperbolic cosine."""
        from .elementary import acosh

        return acosh(_lane(self))

    def atanh(self) -> Lane:
        """The inverse hyperbolic tangent."""
        from .elementary import atanh

        return atanh(_lane(self))

    def erf(self) -> Lane:
        """The error function."""
        from .elementary import erf

        return erf(_lane(self))

    def erfc(self) -> Lane:
        """1 - erf(x)."""
        from .elementary import erfc

        return erfc(_lane(self))

    def atan2(self, other: Lane) -> Lane:
        """The angle of the point (other, x)."""
        from .elementary import atan2

        return atan2(_lane(self), other)

    def power(self, other: Lane) -> Lane:
        """This float to another power."""
        from .elementary import power

        return power(_lane(self), other)

    def floor_divide(self, other: Lane) -> Lane:
        """The quotient, rounded down."""
        from .elementary import floor_divide

        return floor_divide(_lane(self), other)

    def remainder(self, other: Lane) -> Lane:
        """What ``floor_divide`` leaves, with the divisor's sign."""
        from .elementary import remainder

        return remainder(_lane(self), other)

    def abs(self) -> Lane:
        """|x|, where nothing depends on what becomes of NaN."""
        return _lane(self).intrinsic("fabs")

    def sqrt(self) -> Lane:
        """The square root."""
        return _lane(self).intrinsic("sqrt")

    def floor(self) -> Lane:
        """The largest integer not above this float."""
        return _lane(self).intrinsic("floor")

    def ceil(self) -> Lane:
        """The smallest integer not below this float."""
        return _lane(self).intrinsic("ceil")

    def trunc(self) -> Lane:
        """This float without its fraction."""
        return _lane(self).intrinsic("trunc")

    def round(self) -> Lane:
        """The nearest integer; halves go to the even one."""
        return _lane(self).intrinsic("roundeven")
