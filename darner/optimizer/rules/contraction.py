"""Contractions under their short names: matmul, and matmul of a transposed operand.

``dot_general`` says everything and is hard to recognise, so each one that is a product of matrices gets that name: by itself, or of
operands whose axes are moved or joined by views. Transposes of an operand or of the result go into the name.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...graph.dims import product
from ..declare import Condition, rewrite, rule
from ..match import Match, Value
from ..pattern import Pattern, T, Variable, variables

a, b, w, x, bias = variables("a b w x bias")
p, s, t, activation = variables("p s t activation")
ac, bc, ab, bb = variables("ac bc ab bb")

GENERAL = T.dot_general(a, b, a_contract=ac, b_contract=bc, a_batch=ab, b_batch=bb)


# --------------------------------------------------------------------------- dot_general


@dataclass(frozen=True)
class _Side:
    """One operand: its batch axes, then the block of axes it contracts before or after those it keeps.

    Attributes:
        order: its axes as they must lie.
        kept: how many axes the result keeps; ``contracted``: how many are summed.
        last: whether the contracted block comes last.
    """

    value: Value
    batch: int
    order: tuple[int, ...]
    kept: int
    contracted: int
    last: bool

    @property
    def lies(self) -> bool:
        """Whether its axes lie that way already."""
        return self.order == tuple(range(self.value.rank))

    @property
    def matrices(self) -> bool:
        """Whether each block is one axis."""
        return self.kept == self.contracted == 1

    def operand(self, join_kept: bool) -> Pattern:
        """The operand with each block as one axis; the kept ones stay apart unless they are to be joined."""
        found: Pattern = self.value
        if not self.lies:
            found = T.transpose(found, perm=self.order)
        sizes = tuple(self.value.shape[i] for i in self.order)
        lead, rest = sizes[: self.batch], sizes[self.batch :]
        first = self.kept if self.last else self.contracted
        blocks = [rest[:first], rest[first:]]
        joined = [
            block if is_kept and not join_kept else (product(block),)
            for block, is_kept in zip(blocks, (self.last, not self.last), strict=True)
        ]
        shape = (*lead, *joined[0], *joined[1])
        return found if shape == sizes else T.reshape(found, shape=shape)


def _side(value: Value, batch: tuple[int, ...], contract: tuple[int, ...]) -> _Side | None:
    rest = tuple(i for i in range(value.rank) if i not in batch)
    kept = tuple(i for i in rest if i not in contract)
    if not kept or not contract:
        return None
    last = rest == (*kept, *contract)
    if not last and rest != (*contract, *kept):
        return None
    return _Side(value, len(batch), (*batch, *rest), len(kept), len(contract), last)


def _sides(m: Match) -> tuple[_Side, _Side] | None:
    pairs = sorted(zip(m.ac, m.bc, strict=True))
    left = _side(m.a, m.ab, tuple(i for i, _ in pairs))
    right = _side(m.b, m.bb, tuple(j for _, j in pairs))
    return None if left is None or right is None else (left, right)


def _plain(left: _Side, right: _Side) -> bool:
    """Whether the product needs no view."""
    if not (left.lies and right.lies and right.matrices):
        return False
    if left.matrices:
        return left.last or not right.last
    # Rows of any number of axes times one matrix.
    return left.batch == 0 and left.last and left.contracted == 1


def _swapped_last(rank: int) -> tuple[int, ...]:
    """The order that swaps the last two axes."""
    return (*range(rank - 2), rank - 1, rank - 2)


def _product(left: _Side, right: _Side) -> Pattern:
    """The product; where it has more axes than two beside the batch, they are joined."""
    rows = left.last and left.batch == 0 and right.kept == 1
    first, second = left.operand(not rows), right.operand(True)
    if left.last:
        return T.matmul_bt(first, second) if right.last else T.matmul(first, second)
    if not right.last:
        return T.matmul_at(first, second)
    return T.transpose(T.matmul(second, first), perm=_swapped_last(left.batch + 2))


@rewrite("dot_general is matmul", GENERAL, simplify=True)
def _(m: Match) -> Pattern | None:
    sides = _sides(m)
    return _product(*sides) if sides is not None and _plain(*sides) else None


@rewrite("dot_general is matmul of views", GENERAL)
def _(m: Match) -> Pattern | None:
    sides = _sides(m)
    if sides is None or _plain(*sides):
        return None
    left, right = sides
    made = _product(left, right)
    kept_apart = left.kept == 1 or (left.last and left.batch == 0 and right.kept == 1)
    if right.kept == 1 and kept_apart:
        return made
    return T.reshape(made, shape=m.root.shape)


@rewrite("dot_general of vectors is matmul", GENERAL, simplify=True)
def _(m: Match) -> Pattern | None:
    if m.ab or len(m.ac) != 1:
        return None
    (i,), (j,) = m.ac, m.bc
    if m.b.rank == 1 and i == m.a.rank - 1:
        return T.matmul(m.a, m.b)
    return T.matmul(m.a, m.b) if m.a.rank == 1 and j == m.b.rank - 2 else None


def _through(order: tuple[int, ...], batch: tuple[int, ...], contract: tuple[int, ...]) -> bool:
    """Whether a transposed operand's own axes serve: its batch still leads, its kept axes keep their order."""
    kept = [axis for i, axis in enumerate(order) if i not in (*batch, *contract)]
    return kept == sorted(kept) and [order[i] for i in batch] == list(range(len(batch)))


@rewrite(
    "dot_general of a transposed a",
    T.dot_general(T.transpose(a, perm=p), b, ac, bc, ab, bb),
    simplify=True,
)
def _(m: Match) -> Pattern | None:
    if not _through(m.p, m.ab, m.ac):
        return None
    contract, batch = ([m.p[i] for i in axes] for axes in (m.ac, m.ab))
    return T.dot_general(m.a, m.b, contract, m.bc, batch, m.bb)


@rewrite(
    "dot_general of a transposed b",
    T.dot_general(a, T.transpose(b, perm=p), ac, bc, ab, bb),
    simplify=True,
)
def _(m: Match) -> Pattern | None:
    if not _through(m.p, m.bb, m.bc):
        return None
    contract, batch = ([m.p[i] for i in axes] for axes in (m.bc, m.bb))
    return T.dot_general(m.a, m.b, m.ac, contract, m.ab, batch)


# --------------------------------------------------------------------------- transposes


def _swaps(*others: Variable) -> Condition:
    """The transpose swaps the last two axes and no others, and the other operands are matrices."""

    def holds(m: Match) -> bool:
        matrices = all(m[name].rank >= 2 for name in others)
        return matrices and len(m.p) >= 2 and m.p == _swapped_last(len(m.p))

    return Condition("the transpose swaps the last two axes", holds)


_A, _B = T.transpose(a, perm=p), T.transpose(b, perm=p)

for name, left, right in (
    ("matmul of a transposed b", T.matmul(a, _B), T.matmul_bt(a, b)),
    ("matmul of a transposed a", T.matmul(_A, b), T.matmul_at(a, b)),
    ("matmul_bt of a transposed b", T.matmul_bt(a, _B), T.matmul(a, b)),
    ("matmul_at of a transposed a", T.matmul_at(_A, b), T.matmul(a, b)),
):
    rule(name, left, right, when=_swaps(b if left.operands[0] is _A else a), simplify=True)


def _sorted(m: Match, value: Value) -> Pattern | None:
    """A transposed operand with its last two axes changed over, where that brings them into their order.

    Only where others move as well: what swaps these two alone is gone altogether, by the rules above.
    """
    if len(m.p) < 3 or m.p[-2] < m.p[-1]:
        return None
    order = (*m.p[:-2], m.p[-1], m.p[-2])
    return None if order == tuple(range(len(m.p))) else T.transpose(value, perm=order)


def _add_moved(name: str, other: str, first: bool) -> None:
    pattern = getattr(T, name)(_A, b) if first else getattr(T, name)(a, _B)

    @rewrite(f"{name} of {'a' if first else 'b'} with axes moved", pattern)
    def _(m: Match) -> Pattern | None:
        moved = _sorted(m, m.a if first else m.b)
        if moved is None or (m.b if first else m.a).rank < 2:
            return None
        made: Pattern = getattr(T, other)(*((moved, m.b) if first else (m.a, moved)))
        return made


_add_moved("matmul", "matmul_bt", first=False)
_add_moved("matmul_bt", "matmul", first=False)
_add_moved("matmul", "matmul_at", first=True)
_add_moved("matmul_at", "matmul", first=True)


def _both(m: Match) -> Pattern:
    made: Pattern = T.transpose(T.matmul(m.b, m.a), perm=_swapped_last(m.root.rank))
    return made


# Both operands transposed: no name says that, but one transpose after the product does.
rule("matmul_at of a transposed b", T.matmul_at(a, _B), _both, when=_swaps(a))
rule("matmul_bt of a transposed a", T.matmul_bt(_A, b), _both, when=_swaps(b))


# --------------------------------------------------------------------------- reshapes

_COLUMNS = {"matmul": 1, "matmul_bt": 0}
"""Which axis of the second operand, a matrix, the result gets its columns from."""


def _add_reshapes(name: str) -> None:
    """Rows counted by several axes, made one axis for the product: the product takes them as they are."""
    call = getattr(T, name)
    flat = call(T.reshape(x, shape=s), w)

    def of_rows(m: Match) -> bool:
        return bool(m.w.rank == 2 and m.x.rank >= 2 and len(m.s) >= 2 and m.x.shape[-1] == m.s[-1])

    def unfolds(m: Match) -> bool:
        return of_rows(m) and m.root.shape == (*m.x.shape[:-1], m.w.shape[_COLUMNS[name]])

    back = Condition("the result is reshaped back", unfolds)
    added = Condition(
        "bias has one number for each column",
        lambda m: m.bias.shape == (m.w.shape[_COLUMNS[name]],),
    )
    rule(
        f"{name} between reshapes",
        T.reshape(flat, shape=t),
        call(x, w),
        when=back,
        simplify=True,
    )
    rule(
        f"{name} and bias between reshapes",
        T.reshape(flat + bias, shape=t),
        call(x, w) + bias,
        when=back & added,
        simplify=True,
    )

    def columns_stay(m: Match) -> bool:
        ranks = m.w.rank == 2 and m.a.rank >= 2 and m.root.rank > m.a.rank
        columns = ranks and m.root.shape[-1] == m.w.shape[_COLUMNS[name]]
        return bool(columns and product(m.root.shape[:-1]) == product(m.a.shape[:-1]))

    def unflattened(m: Match) -> Pattern:
        rows: Pattern = T.reshape(m.a, shape=(*m.root.shape[:-1], m.a.shape[-1]))
        made: Pattern = call(rows, m.w)
        return made

    stay = Condition("only rows are counted by more axes", columns_stay)
    rule(f"{name}, its rows reshaped", T.reshape(call(a, w), shape=t), unflattened, when=stay)
    rule(
        f"{name} and bias, its rows reshaped",
        T.reshape(call(a, w) + bias, shape=t),
        lambda m: unflattened(m) + m.bias,
        when=stay & added,
    )
    rule(
        f"{name} of flattened rows",
        flat,
        lambda m: T.reshape(call(m.x, m.w), shape=m.root.shape),
        when=Condition(
            "rows are flattened", lambda m: of_rows(m) and len(m.s) == 2 and m.x.rank > 2
        ),
    )

    def of_one(m: Match) -> bool:
        lead = m.b.shape[:-2]
        return bool(lead and m.a.rank >= m.b.rank and all(size == 1 for size in lead))

    rule(
        f"{name} by a batch of one matrix",
        call(a, b),
        lambda m: call(m.a, T.reshape(m.b, shape=m.b.shape[-2:])),
        when=Condition("b is one matrix", of_one),
    )


for name in _COLUMNS:
    _add_reshapes(name)


# --------------------------------------------------------------------------- other names

rule(
    "fused_matmul_bias_act is fused_matmul",
    T.fused_matmul_bias_act(x, w, bias, activation=activation),
    T.fused_matmul(x, w, bias, activation=activation),
    simplify=True,
    late=True,
)
