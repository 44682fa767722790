"""Products of small matrices, and short sums: a thread computes a few rows by a few columns, and reads straight from memory.

Nothing is shared but what the caches keep: there is no barrier, and a batch of many small matrices leaves no thread idle.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....graph.integers import ceil_div
from ..dispatch import Dispatch, Stage
from .epilogue import Results
from .load import Reader, ThreadSums
from .product import Product, View, view_of

MOST_ROWS = 4
COLUMNS = 4
MANY = 1 << 16
"""Elements of a result from which on a thread computes several rows."""


def rows_of(product: Product) -> int:
    """Rows of a thread: one where there are few elements, so that there are threads enough."""
    if product.count * product.m * product.n < MANY:
        return 1
    return 4 if product.m % 4 == 0 or product.m >= 16 else 2 if product.m >= 2 else 1


def views_of(product: Product) -> tuple[View, View]:
    """How the operands are read: fours of rows only where a thread has them."""
    rows = rows_of(product)
    columns = product.n % COLUMNS == 0 and product.in_fours
    return (
        view_of(product, 0, free=rows == 4 and product.m % 4 == 0),
        view_of(product, 1, free=columns),
    )


def write_thread(dispatch: Dispatch, product: Product, readers: Sequence[Reader]) -> Stage:
    """The kernel."""
    b, results = dispatch.builder, Results(dispatch, product)
    elements, places = results.elements, results.elements.places
    rows, columns = rows_of(product), results.unit
    down, across = ceil_div(product.m, rows), ceil_div(product.n, columns)
    count = product.count * down * across
    with b.if_(b.thread < count):
        batch, line, unit = places.split(b.thread, (product.count, down, across))
        first = places.mul(line, rows)
        numbers = [places.add(first, i) for i in range(rows)]
        if product.m % rows:
            numbers = [b.let(b.min(places.value(i), product.m - 1)) for i in numbers]
        column = places.mul(unit, columns)
        bases = []
        for reader, free in zip(
            readers, (numbers, [places.add(column, j) for j in range(columns)]), strict=True
        ):
            if reader.view.vector > 1 and reader.view.along == "free":
                free = [places.div(free[0], 4)]
            bases.append([reader.base(elements, batch, number) for number in free])
        sums = ThreadSums(dispatch, elements, readers, bases, (rows, columns))
        with b.for_(0, product.k // sums.terms, name="group0") as group:
            sums.add(sums.load(group))
        for i in range(rows):
            exists = places.value(first) + i < product.m if product.m % rows else None
            with b.if_(exists):
                own = sums.sums[i * columns : (i + 1) * columns]
                results.write(results.line(batch, numbers[i]), column, own)
    return dispatch.finish(ceil_div(count, dispatch.threads))
