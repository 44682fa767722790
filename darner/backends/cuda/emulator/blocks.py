"""What runs the threads of blocks on the host's processor: LLVM IR beside that of a thread.

The *record* of a block is an array of words of 64 bits. Those of ``REPORT``, ``STATES`` and ``NOTHING`` are addresses: where misuse is told of; the state of each thread (0 of one that has ended, else
twice the number of the barrier or shuffle that it waits at, and 1 more of a shuffle); and some bytes that whoever is outside of a memory gets instead. Then each memory has two words,
its address and its bytes.

The report has words of 64 bits too: what is wrong (``OUTSIDE``, ``APART``), the block, the memory or wait, the first byte and the bytes of the access.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ....graph.integers import round_up
from .together import TOGETHER

REPORT, STATES, NOTHING, FIRST = range(4)
SHUFFLE = 1
"""The lowest bit of a state at a shuffle."""
SPINNING = 0xFFFFFFFE
"""The state of a thread that looks again and again at what another block is to write."""
OUTSIDE, APART, APART_IN_STEP, STUCK = 1, 2, 3, 4
"""What is told of: an access outside of a memory, a barrier or shuffle that not all threads come to, and blocks that all wait for each other."""
REPORT_WORDS = 8
LINE = 64
WARP = 32

_PLACE = """
define internal ptr @place(ptr %record, i32 %slot, i64 %start, i64 %size) noinline nounwind {{
  %two = mul i32 %slot, 2
  %at = add i32 %two, {first}
  %where = getelementptr i64, ptr %record, i32 %at
  %base = load ptr, ptr %where
  %after = getelementptr i64, ptr %where, i32 1
  %bytes = load i64, ptr %after
  %found = call ptr @inside(ptr %record, i32 %slot, ptr %base, i64 %bytes, i64 %start, i64 %size)
  ret ptr %found
}}

define internal ptr @inside(ptr %record, i32 %slot, ptr %base, i64 %bytes, i64 %start, i64 %size) noinline nounwind {{
  %end = add i64 %start, %size
  %outside = icmp ugt i64 %end, %bytes
  br i1 %outside, label %wrong, label %right, !prof !{{!"branch_weights", i32 1, i32 2000}}
right:
  %found = getelementptr i8, ptr %base, i64 %start
  ret ptr %found
wrong:
  %wide = zext i32 %slot to i64
  call void @tell(ptr %record, i64 1, i64 %wide, i64 %start, i64 %size)
  %nowhere = getelementptr i64, ptr %record, i32 2
  %nothing = load ptr, ptr %nowhere
  ret ptr %nothing
}}

define internal void @tell(ptr %record, i64 %what, i64 %which, i64 %start, i64 %size) noinline nounwind cold {{
  %report = load ptr, ptr %record
  %before = load i64, ptr %report
  %told = icmp ne i64 %before, 0
  br i1 %told, label %done, label %first
first:
  store i64 %what, ptr %report
  %b = getelementptr i64, ptr %report, i32 2
  store i64 %which, ptr %b
  %c = getelementptr i64, ptr %report, i32 3
  store i64 %start, ptr %c
  %d = getelementptr i64, ptr %report, i32 4
  store i64 %size, ptr %d
  br label %done
done:
  ret void
}}
"""

_PLAIN = """
define internal void @block(ptr %record, i32 %group) nounwind {{
  br label %loop
loop:
  %t = phi i32 [0, %0], [%next, %loop]
  %h = call ptr @thread(ptr %record, i32 %group, i32 %t)
  %next = add i32 %t, 1
  %more = icmp ult i32 %next, {threads}
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""

_WAITING = """
declare void @llvm.coro.resume(ptr)
declare void @llvm.coro.destroy(ptr)
declare ptr @malloc(i64)
declare void @free(ptr)

; Room for what a thread keeps while it waits, at a multiple of 64 bytes; what malloc gave stands before it.
define internal ptr @room(i64 %size) noinline nounwind {{
  %more = add i64 %size, 64
  %all = call ptr @malloc(i64 %more)
  %number = ptrtoint ptr %all to i64
  %beyond = add i64 %number, 64
  %aligned = and i64 %beyond, -64
  %before = sub i64 %aligned, 8
  %kept = inttoptr i64 %before to ptr
  store ptr %all, ptr %kept
  %found = inttoptr i64 %aligned to ptr
  ret ptr %found
}}

define internal void @give_back(ptr %room) noinline nounwind {{
  %kept = getelementptr i8, ptr %room, i64 -8
  %all = load ptr, ptr %kept
  call void @free(ptr %all)
  ret void
}}

define internal i1 @alike(ptr %states, i32 %first, i32 %last) nounwind {{
  %a = getelementptr i32, ptr %states, i32 %first
  %own = load i32, ptr %a
  br label %loop
loop:
  %t = phi i32 [%first, %0], [%next, %same]
  %p = getelementptr i32, ptr %states, i32 %t
  %s = load i32, ptr %p
  %equal = icmp eq i32 %s, %own
  br i1 %equal, label %same, label %apart
same:
  %next = add i32 %t, 1
  %more = icmp ult i32 %next, %last
  br i1 %more, label %loop, label %yes
yes:
  ret i1 1
apart:
  ret i1 0
}}

define internal i1 @shuffles(ptr %states, i32 %first, i32 %last) nounwind {{
  br label %loop
loop:
  %t = phi i32 [%first, %0], [%next, %loop]
  %any = phi i32 [0, %0], [%some, %loop]
  %p = getelementptr i32, ptr %states, i32 %t
  %s = load i32, ptr %p
  %some = or i32 %any, %s
  %next = add i32 %t, 1
  %more = icmp ult i32 %next, %last
  br i1 %more, label %loop, label %done
done:
  %bit = and i32 %some, 1
  %found = icmp ne i32 %bit, 0
  ret i1 %found
}}

define internal void @resume(ptr %handles, i32 %first, i32 %last) nounwind {{
  br label %loop
loop:
  %t = phi i32 [%first, %0], [%next, %loop]
  %p = getelementptr ptr, ptr %handles, i32 %t
  %h = load ptr, ptr %p
  call void @llvm.coro.resume(ptr %h)
  %next = add i32 %t, 1
  %more = icmp ult i32 %next, %last
  br i1 %more, label %loop, label %done
done:
  ret void
}}

define internal void @destroy(ptr %states, ptr %handles) nounwind cold {{
  br label %loop
loop:
  %t = phi i32 [0, %0], [%next, %after]
  %p = getelementptr i32, ptr %states, i32 %t
  %s = load i32, ptr %p
  %over = icmp eq i32 %s, 0
  br i1 %over, label %after, label %going
going:
  %q = getelementptr ptr, ptr %handles, i32 %t
  %h = load ptr, ptr %q
  call void @llvm.coro.destroy(ptr %h)
  br label %after
after:
  %next = add i32 %t, 1
  %more = icmp ult i32 %next, {threads}
  br i1 %more, label %loop, label %done
done:
  ret void
}}

define internal void @block(ptr %record, i32 %group) nounwind {{
  %handles = alloca ptr, i32 {threads}
  %where = getelementptr i64, ptr %record, i32 1
  %states = load ptr, ptr %where
  br label %begin
begin:
  %t = phi i32 [0, %0], [%next, %begin]
  %h = call ptr @thread(ptr %record, i32 %group, i32 %t)
  %p = getelementptr ptr, ptr %handles, i32 %t
  store ptr %h, ptr %p
  %next = add i32 %t, 1
  %more = icmp ult i32 %next, {threads}
  br i1 %more, label %begin, label %round
round:
  br label %warp
warp:
  %first = phi i32 [0, %round], [%first, %together], [%last, %warped]
  %end = add i32 %first, 32
  %last = call i32 @llvm.umin.i32(i32 %end, i32 {threads})
  %in_step = call i1 @shuffles(ptr %states, i32 %first, i32 %last)
  br i1 %in_step, label %step, label %warped
step:
  %all = call i1 @alike(ptr %states, i32 %first, i32 %last)
  br i1 %all, label %together, label %wrong
together:
  call void @resume(ptr %handles, i32 %first, i32 %last)
  br label %warp
warped:
  %others = icmp ult i32 %last, {threads}
  br i1 %others, label %warp, label %meet
meet:
  %met = call i1 @alike(ptr %states, i32 0, i32 {threads})
  br i1 %met, label %onward, label %wrong
onward:
  %state = load i32, ptr %states
  %over = icmp eq i32 %state, 0
  br i1 %over, label %done, label %go
go:
  call void @resume(ptr %handles, i32 0, i32 {threads})
  br label %round
wrong:
  %what = phi i64 [3, %step], [2, %meet]
  %whose = phi i32 [%first, %step], [0, %meet]
  %r = getelementptr i32, ptr %states, i32 %whose
  %which = load i32, ptr %r
  %wide = zext i32 %which to i64
  call void @tell(ptr %record, i64 %what, i64 %wide, i64 0, i64 0)
  call void @destroy(ptr %states, ptr %handles)
  br label %done
done:
  ret void
}}
declare i32 @llvm.umin.i32(i32, i32)
"""

_KERNEL = """
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

define void @kernel(ptr %bindings, i64 %first, i64 %last, ptr %report) nounwind {{
  %record = alloca i64, i32 {words}, align 16
  %states = alloca i32, i32 {threads}, align 16
  %nothing = alloca i64, i32 8, align 64
  store ptr %report, ptr %record
{fields}
  br label %loop
loop:
  %g = phi i64 [%first, %0], [%next, %after]
  %go = icmp ult i64 %g, %last
  br i1 %go, label %run, label %done
run:
{garbage}
  %group = trunc i64 %g to i32
  call void @llvm.memset.p0.i64(ptr %nothing, i8 0, i64 64, i1 false)
  call void @block(ptr %record, i32 %group)
  %told = load i64, ptr %report
  %wrong = icmp ne i64 %told, 0
  br i1 %wrong, label %tell, label %after
after:
  %next = add i64 %g, 1
  br label %loop
tell:
  %b = getelementptr i64, ptr %report, i32 1
  store i64 %g, ptr %b
  br label %done
done:
  ret void
}}
"""


@dataclass(frozen=True)
class Blocks:
    """How the blocks of a launch are run.

    Attributes:
        threads: of a block.
        waits: whether threads wait for each other.
        names: of the memories in the record, by slot.
        shared: the bytes of those that are shared memory, by slot.
        bound: the positions of the bindings that the others are, by slot.
        together: whether blocks wait for each other.
    """

    threads: int
    waits: bool
    names: tuple[str, ...]
    shared: Mapping[int, int]
    bound: Mapping[int, int]
    together: bool = False

    def joined(self, thread: str) -> str:
        """The whole module, of that of a thread."""
        kept = [line for line in thread.splitlines() if not _is_own(line)]
        own = "".join(
            text.format(
                threads=self.threads,
                first=FIRST,
                words=FIRST + 2 * len(self.names),
                fields="\n".join(self._fields()),
                garbage="\n".join(self._garbage()),
                spinning=SPINNING,
                **self._room(),
            )
            for text in self._texts
        )
        # What both declare, the thread's module declares.
        lines = [
            line
            for line in own.splitlines()
            if not line.startswith("declare") or f'@"{_declared(line)}"' not in thread
        ]
        names = [f"; memory {slot} {name}" for slot, name in enumerate(self.names)]
        return "\n".join([*names, *kept, *lines])

    @property
    def _texts(self) -> tuple[str, ...]:
        if self.together:
            return _PLACE, _WAITING, TOGETHER
        return _PLACE, _WAITING if self.waits else _PLAIN, _KERNEL

    def _room(self) -> dict[str, int]:
        """Where things lie in the memory of a block that is begun beside others: in bytes from the record on."""
        found, at = {}, 0

        def put(name: str, nbytes: int) -> None:
            nonlocal at
            found[name] = at
            at += round_up(nbytes, LINE)

        put("record", 8 * (FIRST + 2 * len(self.names)))
        put("states", 4 * self.threads)
        put("handles", 8 * self.threads)
        put("nothing", LINE)
        for slot, nbytes in self.shared.items():
            put(f"shared{slot}", nbytes)
        found["room"] = at
        return found

    def _fields(self) -> list[str]:
        """The lines that fill the record."""
        lines: list[str] = []
        rooms = self._room()

        def put(number: int, kind: str, value: str) -> None:
            lines.append(f"  %field{number} = getelementptr i64, ptr %record, i32 {number}")
            lines.append(f"  store {kind} {value}, ptr %field{number}")

        for number, name in ((STATES, "%states"), (NOTHING, "%nothing")):
            put(number, "ptr", name)
        for slot in range(len(self.names)):
            at = FIRST + 2 * slot
            nbytes = f"{self.shared.get(slot, 0)}"
            if slot in self.bound:
                place = 2 * self.bound[slot]
                for part, kind in ((0, "ptr"), (1, "i64")):
                    name = f"%given{slot}_{part}"
                    lines.append(
                        f"  {name}_at = getelementptr i64, ptr %bindings, i32 {place + part}"
                    )
                    lines.append(f"  {name} = load {kind}, ptr {name}_at")
                put(at, "ptr", f"%given{slot}_0")
                put(at + 1, "i64", f"%given{slot}_1")
            else:
                if self.together:
                    where = f"getelementptr i8, ptr %record, i64 {rooms.get(f'shared{slot}', 0)}"
                else:
                    where = f"alloca i8, i64 {max(int(nbytes), 1)}, align 16"
                lines.append(f"  %shared{slot} = {where}")
                put(at, "ptr", f"%shared{slot}")
                put(at + 1, "i64", nbytes)
        return lines

    def _garbage(self) -> list[str]:
        """The lines that fill shared memory with what nobody wrote: NaN, in floats."""
        return [
            f"  call void @llvm.memset.p0.i64(ptr %shared{slot}, i8 -1, i64 {nbytes}, i1 false)"
            for slot, nbytes in self.shared.items()
            if nbytes
        ]


def _is_own(line: str) -> bool:
    """Whether a line declares what is written here."""
    return line.startswith("declare") and _declared(line).strip('"') in (
        "place",
        "inside",
        "room",
        "give_back",
    )


def _declared(line: str) -> str:
    """The name of the function that a line declares."""
    return line.partition("@")[2].partition("(")[0]
