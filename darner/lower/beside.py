"""Small maps that have nothing to do with each other, as one kernel: a device that starts each for itself waits longer than it computes.

What turns the queries of an attention and what turns its keys, the updates of many small parameters: such maps are made for the same kernel, or of what one kernel makes.
"""

from __future__ import annotations

import math

from ..graph.types import TupleType
from ..ops.faults import can_fail
from .groups import Group
from .joining import Joining

SMALL = 1 << 21
"""Elements of a map up to which it is small."""
MOST_VALUES = 48
"""Values that such kernels read and write together, at most."""


class Beside(Joining):
    """What a fusion does with small maps: the part of ``fuse`` that puts them side by side."""

    def besides(self) -> None:
        """Join small maps that one kernel needs, or that need one kernel, and not each other."""
        for name in list(self.groups):
            if name in self.groups:
                self._join_maps([need for need in self.groups[name].needs if need in self.groups])
        for name in list(self.groups):
            if name in self.groups:
                self._join_maps(self._readers_of(name))

    def _readers_of(self, name: int) -> list[int]:
        """The groups that read what a group makes."""
        own = self.groups[name].nodes
        found = {self.home[reader]: None for id in own for reader in self.readers[id]}
        return [reader for reader in found if reader != name]

    def _join_maps(self, names: list[int]) -> None:
        """Join those that are small maps, one after the other, as long as that is possible."""
        left = sorted((name for name in names if self._is_small(name)), key=self.order.__getitem__)
        while left:
            first, rest = left[0], []
            for other in left[1:]:
                if self._may_stand_beside(first, other):
                    self._join(first, other, "map")
                else:
                    rest.append(other)
            left = rest

    def _is_small(self, name: int) -> bool:
        """Whether a group is a map of few elements that data cannot make fail."""
        group = self.groups[name]
        if group.kind != "map":
            return False
        for node in (self.nodes[id] for id in group.nodes):
            if isinstance(node.type, TupleType) or can_fail(node):
                return False
            if math.prod(map(int, node.shape)) > SMALL:
                return False
        return True

    def _may_stand_beside(self, first: int, other: int) -> bool:
        """Whether two maps are apart, and are both made of leaves' new values or neither."""
        groups = self.groups[first], self.groups[other]
        if first in groups[1].needs or other in groups[0].needs:
            return False
        kept = [any(self._is_kept(id) for id in group.nodes) for group in groups]
        if kept[0] != kept[1] or self._values(*groups) > MOST_VALUES:
            return False
        return self._may_join(*sorted((first, other), key=self.order.__getitem__))

    def _values(self, *groups: Group) -> int:
        """Values that kernels read and write, as one kernel."""
        own = {id for group in groups for id in group.nodes}
        read = {source for id in own for source in self.sources[id]} - own
        written = [
            id for id in own if self._is_kept(id) or any(i not in own for i in self.readers[id])
        ]
        return len(read) + len(written)
