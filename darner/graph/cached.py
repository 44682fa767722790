"""Attributes that are computed when they are first asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Self, TypeVar, overload

Found = TypeVar("Found")


class CachedProperty(Generic[Found]):
    """A method as an attribute: its result is kept with the object.

    Python 3.11's has one lock for all objects of a class. A process that is forked while another thread holds it waits for ever when it asks
    for the same attribute of any object; later ones have no lock, as here. Two threads that ask at once may both compute it.

    >>> class Square:
    ...     side = 3
    ...
    ...     @cached_property
    ...     def area(self):
    ...         return self.side**2
    >>> square = Square()
    >>> square.area
    9
    >>> square.__dict__
    {'area': 9}
    """

    def __init__(self, method: Callable[..., Found]) -> None:
        self.method = method
        self.__doc__ = method.__doc__
        self.__module__ = method.__module__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type | None = None) -> Found: ...

    def __get__(self, instance: object | None, owner: type | None = None) -> Self | Found:
        """Runs where the object has no attribute of this name yet."""
        if instance is None:
            return self
        found = self.method(instance)
        instance.__dict__[self.name] = found
        return found


cached_property = CachedProperty
