"""A product of a few rows with a matrix: every block has some columns, and reads their part of the matrix before it waits for the rows.

``by_columns`` is for matrices whose columns are neighbours in memory, ``by_terms`` for those where the terms of a column are.
"""

from __future__ import annotations

from ....graph.errors import InternalError
from .by_columns import ByColumns
from .by_terms import ByTerms
from .code import Code
from .forms import Form
from .roles import matrix_of


def product_in(code: Code, form: Form) -> ByColumns | ByTerms:
    """The product of a stage."""
    if form.main is None:
        raise InternalError("a stage of a product has no product")
    matrix = matrix_of(code.spec(form.main))
    by_columns = matrix is not None and matrix.by_columns
    return ByColumns(code, form) if by_columns else ByTerms(code, form)
