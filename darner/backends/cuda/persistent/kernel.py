"""The code of a chain: a loop over its stages, whose arguments stand in a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ....codegen.simt.builder import Memory, Type, Value
from ....codegen.simt.dispatch import Binding
from ....graph import dtypes
from ..machine import Machine
from ..stage import Stage
from .attention import Attention, gather_parts
from .code import Code
from .exchange import exchange_of
from .forms import Chain, Form, Place
from .light import gather_words, write_light
from .product import product_in
from .roles import matrix_of
from .stages import MOST_COPIED

AHEAD = 6
"""Values that a stage brings to the cache for later ones."""
HEAD = 1 + 4 * AHEAD
"""Numbers of a stage in the table before its arguments: its form, and of each matrix where it lies, its bytes, and the distance and bytes of a block's share."""
TABLE = Binding("scratch", 0)
LAUNCHES = Binding("scratch", 1)


def width_of(chain: Chain) -> int:
    """Numbers of a stage in the table: an address and bytes for each argument after the head."""
    return HEAD + 2 * max(form.arguments for form in chain.forms)


def write_chain(chain: Chain, machine: Machine) -> Stage:
    """The launch of a chain."""
    code = Code(chain, machine)
    b, width = code.builder, width_of(chain)
    given = Memory("table", dtypes.i64, builder=b)
    launches = Memory("launches", dtypes.u32, builder=b)
    count = len(chain.stages) * width
    table = code.shared(dtypes.i64, count, "rows")
    with b.for_(b.local, count, code.threads) as at:
        b.store(b.load(given, at), table, at)
    tag = b.let(b.load(launches, b.group) + 1, "tag")
    code.exchange = exchange_of(b, tag, machine)
    for place in chain.kept:
        code.memory(place)
    code.barrier()
    with b.for_(0, len(chain.stages), name="stage") as stage:
        row = b.let(stage * width, "row")
        kind = b.let(b.zext(b.narrowed(b.load(table, row)), b.index(0).type), "kind")
        _prefetch(code, table, row)

        def body(number: int, row: Value = row) -> None:
            with code.stage(number):
                _write_stage(code, chain.forms[number], table, row)

        if len(chain.forms) > 1:
            b.switch(kind, len(chain.forms), body)
        else:
            body(0)
        code.barrier()
    # Every block counts for itself, so none can be ahead of another's count.
    with b.if_(b.local == 0):
        b.store(tag, launches, b.group)
    code.close()
    bound = [(given, TABLE), (launches, LAUNCHES)]
    made: Stage = b.finish(code.shape.blocks, bound)
    return made


def _prefetch(code: Code, table: Memory, row: Value) -> None:
    """A share of what later stages read, whichever block will read it."""
    b = code.builder
    with b.if_(b.local < AHEAD):
        at = b.let(row + (b.local * 4 + 1))
        address, whole, each, brought = (b.let(b.load(table, at + i)) for i in range(4))
        start = b.let(b.zext(b.group, address_type(code)) * each)
        with b.if_(start < whole):
            nbytes = b.let(b.min(brought, whole - start))
            code.exchange.prefetch(b.let(address + start), b.let(b.narrowed(nbytes)))


def address_type(code: Code) -> Type:
    """The type of an address."""
    return code.builder.constant(0, dtypes.i64).type


def _write_stage(code: Code, form: Form, table: Memory, row: Value) -> None:
    b = code.builder
    code.given = []
    for number in range(form.arguments):
        at = b.let(row + (HEAD + 2 * number))
        address, nbytes = b.let(b.load(table, at)), b.let(b.load(table, at + 1))
        code.given.append((address, nbytes))
        if number != form.strides:
            b.found_at(code.argument(number), address, nbytes)
    if form.main is None:
        _write_light(code, form)
        return
    matrix = matrix_of(code.spec(form.main))
    if matrix is None:
        attention = Attention(code, form)
        items = attention.items
        # Blocks without a part have nothing to wait for.
        with b.if_(b.index(code.shape.blocks - 1) - b.group < items):
            attention.prepare()
            _write_light(code, form)
            attention.write()
        return
    product = product_in(code, form)

    def run() -> None:
        product.prepare()
        _write_light(code, form)
        product.write()

    _if_any(code, product.share.count, product.share.first, run)


def _if_any(code: Code, count: Value, first: Value, run: Callable[[], None]) -> None:
    b = code.builder
    with b.if_(count > 0):
        run()


def _copied(code: Code, form: Form) -> Iterator[Place]:
    """What kernels read of memory besides matrices, keys and values, and is small."""
    works = form.light
    found: dict[Place, None] = {}
    written = {place for work in works for places in work.results for place in places}
    for work in works:
        for place in work.operands:
            if place.what == "memory" and place.count <= MOST_COPIED and not place.rounded:
                found[place] = None
    yield from (place for place in found if place not in written)


def _write_light(code: Code, form: Form) -> None:
    """Bring what other blocks have written, and compute what every block computes for itself."""
    if form.gathers:
        # What lies in memory is read while other blocks are at work.
        for place in _copied(code, form):
            code.copy(place)
    for source, target in form.gathers:
        gather = gather_words if source.what == "words" else gather_parts
        gather(code, source, target)
    if form.gathers:
        code.barrier()
    # Results that other threads may not have written yet.
    written: set[Place] = set()
    for work in form.light:
        if written.intersection(work.operands):
            code.barrier()
            written.clear()
        write_light(code, work)
        written.update(place for places in work.results for place in places)
    if written:
        code.barrier()
