"""Sums over rows, such as the gradients of a norm's weights, as part of the kernel that goes through these rows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..graph.node import Node
from .roles import LEAST_ROWS, is_for_products

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..graph.dims import Shape
    from ..graph.facts import Role
    from ..graph.graph import Graph
    from .groups import Group


class Columns:
    """What a fusion does with sums over rows: the part of ``fuse`` that knows them."""

    if TYPE_CHECKING:
        graph: Graph
        nodes: list[Node]
        roles: list[Role]
        home: dict[int, int]
        groups: dict[int, Group]
        order: dict[int, float]
        sources: list[tuple[int, ...]]
        readers: list[list[int]]

        def _is_kept(self, id: int) -> bool: ...
        def _axes(self, node: Node) -> tuple[int, ...] | None: ...
        def _finds(self, *groups: Group) -> bool: ...
        def _may_join(self, producer: int, consumer: int) -> bool: ...
        def _join(self, producer: int, consumer: int, kind: str) -> None: ...
        def _give_back(self, name: int, id: int) -> None: ...
        def _all_fit(self, ids: Sequence[int], space: Shape, axes: tuple[int, ...]) -> bool: ...

    def _is_column(self, id: int) -> bool:
        axes, node = self._axes(self.nodes[id]), self.nodes[id]
        return axes is not None and axes == tuple(range(node.operands[0].rank - 1))

    def columns(self) -> None:
        """Sums over the rows of what a kernel of rows computes or reads: the gradients of a norm's weights."""
        for node in self.nodes:
            own = self.home.get(node.id)
            if own is None or self.roles[node.id] != "reduce" or len(self.groups[own].nodes) > 1:
                continue
            (x,) = node.operands
            if self.roles[x.id] == "view" or node.op.name != "sum" or x.rank < 2:
                continue
            homes = [self.home.get(x.id), *(self.home[i] for i in self.readers[x.id])]
            for home in dict.fromkeys(homes):
                if home is not None and self._sums_rows_of(own, home):
                    self._take_in(home, own)
                    break

    def _take_in(self, home: int, other: int) -> None:
        """Make another group part of a group of rows."""
        space, axes = self.groups[home].space, self.groups[home].axes
        self._join(home, other, "rows")
        self.groups[home].space, self.groups[home].axes = space, axes

    def _sums_rows_of(self, own: int, home: int) -> bool:
        """Whether a group that is one sum can be made by a group of rows on its way."""
        rows, column = self.groups[home], self.groups[own]
        if own == home or rows.kind != "rows" or rows.space != column.space or not rows.space:
            return False
        last = len(rows.space) - 1
        count = math.prod(int(size) for size in rows.space[:-1])
        if rows.axes != (last,) or column.axes != tuple(range(last)) or count < LEAST_ROWS:
            return False
        if self._finds(rows) or own in rows.needs:
            return False
        # Neither need come after the other: both may read the same.
        return self._may_join(*sorted((home, own), key=self.order.__getitem__))

    # ------------------------------------------------------------- what products would write for them

    def hand_over(self) -> list[int]:
        """Let kernels of rows compute what a product would write twice: once for a row's sums, and once for a sum over rows that is made of the same; returns these sums.

        The gradient of a norm's result is such a value. Its products with the norm's weight and with what the weight is multiplied by have one reader each.
        """
        found = []
        for node in self.nodes:
            if (
                self.roles[node.id] != "reduce"
                or node.op.name != "sum"
                or not self._is_column(node.id)
            ):
                continue
            (x,) = node.operands
            shared = self._shared_source(x)
            if shared is None or x.rank < 2 or self.readers[x.id] != [node.id]:
                continue
            name = self.home[x.id]
            made = [i for i in self.readers[shared] if self.home[i] == name]
            if len(made) > 1 and all(self._can_move(i, name, shared) for i in made):
                for id in sorted(made, reverse=True):
                    self._give_back(name, id)
                found.append(node.id)
        return found

    def _shared_source(self, x: Node) -> int | None:
        """The value of a product's kernel that an element-wise node of its epilogue is made of, if it is one and written for nobody else."""
        name = self.home.get(x.id)
        if name is None or self.groups[name].kind != "contract" or self.roles[x.id] != "point":
            return None
        inside = [i for i in self.sources[x.id] if self.home.get(i) == name]
        if len(inside) != 1 or self._is_kept(inside[0]):
            return None
        (found,) = inside
        return found if self.nodes[found].dtype == x.dtype else None

    def _can_move(self, id: int, name: int, shared: int) -> bool:
        """Whether a node at the end of an epilogue is made of one value there, and is read by nothing but kernels of rows and maps."""
        readers = self.readers[id]
        inside = {i for i in self.sources[id] if self.home.get(i) == name}
        alone = inside == {shared} and not any(self.home[i] == name for i in readers)
        if not alone or self._is_kept(id):
            return False
        kinds = [self.roles[i] for i in readers]
        return set(kinds) <= {"point", "reduce"} and not is_for_products(self.nodes[id], kinds)

    def handed_columns(self, sums: Sequence[int]) -> None:
        """The sums that ``hand_over`` gave, into kernels of rows that read what they are made of."""
        for id in sums:
            (x,) = self.nodes[id].operands
            if self.groups[self.home[x.id]].nodes != [x.id]:
                continue
            homes = [self.home[i] for source in self.sources[x.id] for i in self.readers[source]]
            for home in dict.fromkeys(homes):
                rows = self.groups[home]
                if rows.kind != "rows" or rows.space is None or rows.axes is None:
                    continue
                fits = self._all_fit([*rows.nodes, x.id], rows.space, rows.axes)
                if not fits or not self._sums_rows_of(self.home[id], home):
                    continue
                pair = sorted((home, self.home[x.id]), key=self.order.__getitem__)
                if self._may_join(*pair):
                    self._take_in(home, self.home[x.id])
                    if self._sums_rows_of(self.home[id], home):
                        self._take_in(home, self.home[id])
                    break
