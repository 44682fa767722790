"""What runs the blocks of a launch that wait for each other: all are begun, and go on by turns. LLVM IR beside that of ``blocks``.

A thread that looks again and again at what another block is to write stops each time it has looked, in the state ``SPINNING``. A block goes on until its threads do nothing else; when no block does
anything else, none ever will.
"""

TOGETHER = """
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

define internal ptr @opened(ptr %bindings, ptr %report) nounwind {{
  %record = call ptr @room(i64 {room})
  call void @llvm.memset.p0.i64(ptr %record, i8 -1, i64 {room}, i1 false)
  %states = getelementptr i8, ptr %record, i64 {states}
  %nothing = getelementptr i8, ptr %record, i64 {nothing}
  call void @llvm.memset.p0.i64(ptr %nothing, i8 0, i64 64, i1 false)
  store ptr %report, ptr %record
{fields}
  ret ptr %record
}}

define internal void @begin(ptr %record, i32 %group) nounwind {{
  %handles = getelementptr i8, ptr %record, i64 {handles}
  br label %loop
loop:
  %t = phi i32 [0, %0], [%next, %loop]
  %h = call ptr @thread(ptr %record, i32 %group, i32 %t)
  %p = getelementptr ptr, ptr %handles, i32 %t
  store ptr %h, ptr %p
  %next = add i32 %t, 1
  %more = icmp ult i32 %next, {threads}
  br i1 %more, label %loop, label %done
done:
  ret void
}}

define internal i1 @spins(ptr %states, i32 %first, i32 %last) nounwind {{
  br label %loop
loop:
  %t = phi i32 [%first, %0], [%next, %on]
  %p = getelementptr i32, ptr %states, i32 %t
  %s = load i32, ptr %p
  %spinning = icmp eq i32 %s, {spinning}
  br i1 %spinning, label %yes, label %on
on:
  %next = add i32 %t, 1
  %more = icmp ult i32 %next, %last
  br i1 %more, label %loop, label %no
yes:
  ret i1 1
no:
  ret i1 0
}}

define internal i1 @look_again(ptr %states, ptr %handles) nounwind {{
  br label %loop
loop:
  %t = phi i32 [0, %0], [%next, %on]
  %moved = phi i1 [0, %0], [%moving, %on]
  %p = getelementptr i32, ptr %states, i32 %t
  %s = load i32, ptr %p
  %spinning = icmp eq i32 %s, {spinning}
  br i1 %spinning, label %look, label %on
look:
  %q = getelementptr ptr, ptr %handles, i32 %t
  %h = load ptr, ptr %q
  call void @llvm.coro.resume(ptr %h)
  %after = load i32, ptr %p
  %other = icmp ne i32 %after, {spinning}
  %any = or i1 %moved, %other
  br label %on
on:
  %moving = phi i1 [%moved, %loop], [%any, %look]
  %next = add i32 %t, 1
  %more = icmp ult i32 %next, {threads}
  br i1 %more, label %loop, label %done
done:
  ret i1 %moving
}}

; 0 where the block was over, 1 where it only looks, 2 where it did more before, 3 where something is wrong, 4 where it is over now.
define internal i32 @advance(ptr %record) nounwind {{
  %states = getelementptr i8, ptr %record, i64 {states}
  %handles = getelementptr i8, ptr %record, i64 {handles}
  br label %round
round:
  %moved = phi i32 [1, %0], [2, %looked], [2, %go]
  br label %warp
warp:
  %first = phi i32 [0, %round], [%first, %together], [%last, %warped]
  %did = phi i32 [%moved, %round], [2, %together], [%did, %warped]
  %end = add i32 %first, 32
  %last = call i32 @llvm.umin.i32(i32 %end, i32 {threads})
  %looking = call i1 @spins(ptr %states, i32 %first, i32 %last)
  br i1 %looking, label %warped, label %ask
ask:
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
  %any = call i1 @spins(ptr %states, i32 0, i32 {threads})
  br i1 %any, label %look, label %all_come
look:
  %found = call i1 @look_again(ptr %states, ptr %handles)
  br i1 %found, label %looked, label %stay
looked:
  br label %round
stay:
  ret i32 %did
all_come:
  %met = call i1 @alike(ptr %states, i32 0, i32 {threads})
  br i1 %met, label %onward, label %wrong
onward:
  %state = load i32, ptr %states
  %over = icmp eq i32 %state, 0
  br i1 %over, label %done, label %go
go:
  call void @resume(ptr %handles, i32 0, i32 {threads})
  br label %round
done:
  %ended = icmp eq i32 %did, 2
  %told = select i1 %ended, i32 4, i32 0
  ret i32 %told
wrong:
  %what = phi i64 [3, %step], [2, %all_come]
  %whose = phi i32 [%first, %step], [0, %all_come]
  %r = getelementptr i32, ptr %states, i32 %whose
  %which = load i32, ptr %r
  %wide = zext i32 %which to i64
  call void @tell(ptr %record, i64 %what, i64 %wide, i64 0, i64 0)
  ret i32 3
}}

define void @kernel(ptr %bindings, i64 %start, i64 %last, ptr %report) nounwind {{
  %count = sub i64 %last, %start
  %records = alloca ptr, i64 %count
  br label %open
open:
  %o = phi i64 [0, %0], [%o_next, %open]
  %record = call ptr @opened(ptr %bindings, ptr %report)
  %place = getelementptr ptr, ptr %records, i64 %o
  store ptr %record, ptr %place
  %number = add i64 %start, %o
  %group = trunc i64 %number to i32
  call void @begin(ptr %record, i32 %group)
  %o_next = add i64 %o, 1
  %o_more = icmp ult i64 %o_next, %count
  br i1 %o_more, label %open, label %round
round:
  br label %loop
loop:
  %g = phi i64 [0, %round], [%next, %after]
  %alive = phi i1 [0, %round], [%living, %after]
  %moved = phi i1 [0, %round], [%moving, %after]
  %at = getelementptr ptr, ptr %records, i64 %g
  %own = load ptr, ptr %at
  %how = call i32 @advance(ptr %own)
  %told = load i64, ptr %report
  %wrong = icmp ne i64 %told, 0
  br i1 %wrong, label %fail, label %after
after:
  %looks = icmp eq i32 %how, 1
  %goes = icmp eq i32 %how, 2
  %lives = or i1 %looks, %goes
  %ends = icmp eq i32 %how, 4
  %moves = or i1 %goes, %ends
  %living = or i1 %alive, %lives
  %moving = or i1 %moved, %moves
  %next = add i64 %g, 1
  %more = icmp ult i64 %next, %count
  br i1 %more, label %loop, label %judge
judge:
  br i1 %living, label %judge_moving, label %free
judge_moving:
  br i1 %moving, label %round, label %stuck
stuck:
  call void @tell(ptr %own, i64 4, i64 0, i64 0, i64 0)
  br label %fail
fail:
  %b = getelementptr i64, ptr %report, i32 1
  store i64 %g, ptr %b
  br label %end
end:
  %e = phi i64 [0, %fail], [%e_next, %end]
  %e_at = getelementptr ptr, ptr %records, i64 %e
  %e_record = load ptr, ptr %e_at
  %e_states = getelementptr i8, ptr %e_record, i64 {states}
  %e_handles = getelementptr i8, ptr %e_record, i64 {handles}
  call void @destroy(ptr %e_states, ptr %e_handles)
  %e_next = add i64 %e, 1
  %e_more = icmp ult i64 %e_next, %count
  br i1 %e_more, label %end, label %free
free:
  %f = phi i64 [0, %judge], [0, %end], [%f_next, %free]
  %f_at = getelementptr ptr, ptr %records, i64 %f
  %f_record = load ptr, ptr %f_at
  call void @give_back(ptr %f_record)
  %f_next = add i64 %f, 1
  %f_more = icmp ult i64 %f_next, %count
  br i1 %f_more, label %free, label %done
done:
  ret void
}}
"""
