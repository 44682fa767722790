"""Native code, the threads that run it, and where it is kept."""

import ctypes
import dataclasses
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest

from darner.backends.base.cache import (
    CacheWarning,
    CorruptEntryWarning,
    ObjectCache,
    default_folder,
)
from darner.backends.cpu.runtime.jit import (
    CompileError,
    compile_module,
    host,
    load_object,
    vector_bytes,
)
from darner.backends.cpu.runtime.object_key import object_key
from darner.backends.cpu.runtime.threads import (
    Team,
    TeamError,
    default_parking,
    runtime_text,
    symbols,
)
from darner.backends.cpu.runtime.threads_ir import CROWD_CELLS, OFFSETS
from darner.graph.errors import ArgumentError, DarnerError

pytestmark = pytest.mark.skipif(os.name != "posix", reason="teams need POSIX threads")
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

# add: argument is {ptr a, ptr b, ptr out, i64 count}; each thread takes one range of elements.
ADD = """
define void @add(i64 %thread, i64 %threads, ptr %argument) {
entry:
  %a = load ptr, ptr %argument
  %b.at = getelementptr i8, ptr %argument, i64 8
  %b = load ptr, ptr %b.at
  %out.at = getelementptr i8, ptr %argument, i64 16
  %out = load ptr, ptr %out.at
  %count.at = getelementptr i8, ptr %argument, i64 24
  %count = load i64, ptr %count.at
  %low.scaled = mul i64 %count, %thread
  %low = udiv i64 %low.scaled, %threads
  %after = add i64 %thread, 1
  %high.scaled = mul i64 %count, %after
  %high = udiv i64 %high.scaled, %threads
  br label %check
check:
  %i = phi i64 [ %low, %entry ], [ %next, %body ]
  %more = icmp ult i64 %i, %high
  br i1 %more, label %body, label %done
body:
  %x.at = getelementptr float, ptr %a, i64 %i
  %y.at = getelementptr float, ptr %b, i64 %i
  %z.at = getelementptr float, ptr %out, i64 %i
  %x = load float, ptr %x.at
  %y = load float, ptr %y.at
  %z = fadd float %x, %y
  store float %z, ptr %z.at
  %next = add i64 %i, 1
  br label %check
done:
  ret void
}
"""

# rounds: argument is {ptr team, i64 rounds, i64 errors, counter of each thread...}. In each round a
# thread adds one to its own counter, meets the others, and compares its neighbour's counter.
ROUNDS = """
define void @rounds(i64 %thread, i64 %threads, ptr %argument) {
entry:
  %team = load ptr, ptr %argument
  %rounds.at = getelementptr i64, ptr %argument, i64 1
  %rounds = load i64, ptr %rounds.at
  %errors = getelementptr i64, ptr %argument, i64 2
  %counters = getelementptr i64, ptr %argument, i64 3
  %mine = getelementptr i64, ptr %counters, i64 %thread
  %one.on = add i64 %thread, 1
  %neighbour = urem i64 %one.on, %threads
  %theirs = getelementptr i64, ptr %counters, i64 %neighbour
  br label %round
round:
  %i = phi i64 [ 0, %entry ], [ %next, %finish ]
  %next = add i64 %i, 1
  store i64 %next, ptr %mine
  call void @darner_barrier(ptr %team)
  %seen = load i64, ptr %theirs
  %right = icmp eq i64 %seen, %next
  br i1 %right, label %finish, label %wrong
wrong:
  %before = atomicrmw add ptr %errors, i64 1 seq_cst
  br label %finish
finish:
  call void @darner_barrier(ptr %team)
  %more = icmp ult i64 %next, %rounds
  br i1 %more, label %round, label %done
done:
  ret void
}
declare void @darner_barrier(ptr)
"""

# halve: argument is an array of one float for each thread, halved in place.
HALVE = """
define void @halve(i64 %thread, i64 %threads, ptr %argument) {
  %at = getelementptr float, ptr %argument, i64 %thread
  %x = load volatile float, ptr %at
  %y = fmul float %x, 0.5
  store float %y, ptr %at
  ret void
}
"""
NOTHING = "define void @nothing(i64 %thread, i64 %threads, ptr %argument) { ret void }"


@pytest.fixture(scope="module")
def steps():
    return load_object(compile_module(ADD + ROUNDS + HALVE + NOTHING), symbols=symbols())


def added(team, program, count=1000, seed=0):
    """Whether the team adds two vectors right, into an output that was not right before."""
    random = np.random.default_rng(seed)
    a, b = random.standard_normal((2, count), dtype=np.float32)
    out = np.full(count, np.nan, np.float32)
    argument = np.array([a.ctypes.data, b.ctypes.data, out.ctypes.data, count], np.int64)
    team.run(program.address("add"), argument.ctypes.data)
    return np.array_equal(out, a + b)


def barrier_counts(team, program, rounds):
    argument = np.zeros(3 + team.threads, np.int64)
    argument[:2] = team.pointer, rounds
    team.run(program.address("rounds"), argument.ctypes.data)
    errors, *counters = argument[2:].tolist()
    return errors, counters


def workers():
    """The state of each worker thread of this process, by thread id."""
    states = {}
    for task in Path("/proc/self/task").iterdir():
        try:
            text = (task / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if "(darner-" in text:
            states[task.name] = text.rpartition(")")[2].split()[0]
    return states


def eventually(holds):
    """Whether something comes to hold; the system takes a moment to show that a thread is gone."""
    return any(holds() for _ in range(100_000))


class TestCompile:
    def test_the_same_module_gives_the_same_bytes(self):
        assert compile_module(ADD) == compile_module(ADD)

    def test_a_module_built_with_llvmlite_runs(self):
        from llvmlite import ir

        module = ir.Module(name="square")
        kind = ir.FunctionType(ir.IntType(64), [ir.IntType(64)])
        function = ir.Function(module, kind, name="square")
        builder = ir.IRBuilder(function.append_basic_block())
        builder.ret(builder.mul(function.args[0], function.args[0]))
        program = load_object(compile_module(module))
        square = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(program.address("square"))
        assert square(12) == 144

    def test_the_optimiser_pipeline_runs_when_it_is_asked_for(self):
        team = Team(1)
        assert added(team, load_object(compile_module(ADD, passes=True)))
        assert compile_module(ADD, passes=True) != compile_module(ADD)

    def test_code_follows_the_processor_it_is_for(self):
        wide = f"define void @f(ptr %p) {{ {WIDE_BODY} }}"
        x86 = {"triple": "x86_64-unknown-linux-gnu"}
        objects = {
            cpu: compile_module(wide, cpu=cpu, **x86) for cpu in ("x86-64", "haswell", "skylake")
        }
        assert len(objects["x86-64"]) > len(objects["haswell"])
        assert (
            compile_module(wide, cpu="haswell", features="-avx,-avx2", **x86)
            != (objects["haswell"])
        )

    def test_another_architecture_gives_objects_of_that_architecture(self):
        code = compile_module(ADD, triple="aarch64-unknown-linux-gnu")
        assert code[:4] == b"\x7fELF"
        assert int.from_bytes(code[18:20], "little") == 183  # EM_AARCH64

    def test_invalid_ir_is_an_error_that_quotes_what_is_wrong(self):
        with pytest.raises(CompileError, match="nonsense") as caught:
            compile_module("define void @f() {\n  nonsense\n}")
        assert isinstance(caught.value, DarnerError)

    def test_ir_that_breaks_a_rule_of_llvm_is_an_error(self):
        with pytest.raises(CompileError, match="LLVM rejects"):
            compile_module("define i32 @f() { ret i64 1 }")

    def test_an_unknown_target_is_an_error_that_names_it(self):
        with pytest.raises(CompileError, match="'abacus-none-none'"):
            compile_module(ADD, triple="abacus-none-none")


WIDE_BODY = """
  %x = load <16 x float>, ptr %p, align 4
  %y = fmul <16 x float> %x, %x
  store <16 x float> %y, ptr %p, align 4
  ret void
"""


class TestLoad:
    def test_symbols_given_by_address_are_called(self):
        callback = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(lambda x: x * 10)
        program = load_object(
            compile_module("""
                declare i64 @outside(i64)
                define i64 @call(i64 %x) {
                  %y = call i64 @outside(i64 %x)
                  %z = add i64 %y, 1
                  ret i64 %z
                }"""),
            symbols={"outside": ctypes.cast(callback, ctypes.c_void_p).value},
        )
        call = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(program.address("call"))
        assert call(4) == 41

    def test_an_unknown_name_is_an_error(self, steps):
        with pytest.raises(CompileError, match="'subtract'"):
            steps.address("subtract")

    def test_a_missing_symbol_is_an_error_that_says_how_to_give_it(self):
        with pytest.raises(CompileError, match="symbols="):
            load_object(compile_module(ROUNDS)).address("rounds")

    @pytest.mark.parametrize("code", [b"", b"not an object", compile_module(NOTHING)[:200]])
    def test_bytes_that_are_not_an_object_are_an_error(self, code):
        with pytest.raises(CompileError, match="cannot be loaded"):
            load_object(code)

    def test_a_closed_program_gives_no_addresses(self):
        program = load_object(compile_module(NOTHING))
        assert program.address("nothing") == program.address("nothing") != 0
        program.close()
        program.close()
        with pytest.raises(CompileError, match="closed"):
            program.address("nothing")

    @linux
    def test_loading_200_times_keeps_memory_flat(self):
        code = compile_module(ADD)

        def pages():
            return int(Path("/proc/self/statm").read_text().split()[0])

        def load(times):
            for _ in range(times):
                load_object(code).address("add")
            gc.collect()
            return pages()

        before = load(20)
        assert load(200) - before <= 256  # an engine that stayed would be ten pages a load


class TestHost:
    def test_this_machine_is_described(self):
        machine = host()
        assert machine.cpu
        assert machine.vector_bytes in (16, 32, 64)
        assert 1 <= machine.cores <= os.cpu_count()
        assert all(size is None or size >= 4096 for size in (machine.l1, machine.l2, machine.l3))

    @pytest.mark.parametrize(
        ("on", "expected"),
        [
            (["neon"], 16),
            (["sse2", "avx"], 16),
            (["avx2", "fma"], 32),
            (["avx2", "fma", "avx512f"], 32),
            (["avx2", "fma", "avx512f", "avx512vl", "avx512bw", "avx512dq"], 64),
        ],
    )
    def test_vector_width_follows_the_features(self, on, expected):
        assert vector_bytes(dict.fromkeys(on, True)) == expected

    def test_the_machine_is_a_value(self):
        assert dataclasses.replace(host(), cores=3).cores == 3
        assert host() == host()


@pytest.mark.parametrize("threads", [1, 2, 3])
class TestTeam:
    def test_adds_two_vectors_whatever_the_number_of_elements(self, steps, threads):
        with Team(threads) as team:
            for count in (0, 1, 2, 7, 1000):
                assert added(team, steps, count, seed=count)

    def test_ten_thousand_barriers_keep_the_threads_together(self, steps, threads):
        with Team(threads) as team:
            assert barrier_counts(team, steps, 5000) == (0, [5000] * threads)

    def test_denormals_are_zero_inside_and_as_before_outside(self, steps, threads):
        smallest = np.float32(2**-126)
        values = np.full(threads, smallest)
        with Team(threads) as team:
            team.run(steps.address("halve"), values.ctypes.data)
        assert values.tolist() == [0.0] * threads
        assert smallest * np.float32(0.5) == np.float32(2**-127) > 0

    def test_hundreds_of_launches_in_a_row_are_each_complete(self, steps, threads):
        with Team(threads) as team:
            assert all(added(team, steps, 50, seed) for seed in range(300))


class TestTeamLife:
    def test_the_default_is_a_thread_for_each_core(self):
        assert Team().threads == host().cores

    @pytest.mark.parametrize("threads", [0, -2])
    def test_a_team_without_threads_is_an_error(self, threads):
        with pytest.raises(ArgumentError, match=str(threads)):
            Team(threads)

    def test_several_teams_work_side_by_side(self, steps):
        teams = [Team(threads) for threads in (1, 2, 2, 3)]
        for seed in range(20):
            assert all(added(team, steps, 100, seed) for team in teams)
        assert len({team.pointer for team in teams}) == 4
        teams[1].close()
        assert added(teams[2], steps)
        for team in teams:
            team.close()

    def test_launches_from_several_python_threads_take_turns(self, steps):
        results = []
        with Team(2) as team:

            def work(seed):
                results.append(all(added(team, steps, 64, seed + i) for i in range(50)))
                results.append(barrier_counts(team, steps, 100) == (0, [100, 100]))

            python_threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
            for thread in python_threads:
                thread.start()
            for thread in python_threads:
                thread.join()
        assert results == [True] * 8

    def test_a_launch_lets_other_python_threads_run(self):
        entered, left = threading.Event(), threading.Event()

        def other():
            entered.wait(60)
            left.set()

        kind = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
        answers = []

        @kind
        def step(thread, threads, argument):
            entered.set()
            answers.append(left.wait(60))

        thread = threading.Thread(target=other)
        thread.start()
        with Team(2) as team:
            team.run(ctypes.cast(step, ctypes.c_void_p).value)
        thread.join()
        assert answers == [True, True]

    def test_a_team_is_of_use_after_an_error(self, steps):
        with Team(2) as team:
            with pytest.raises(ArgumentError, match="address 0"):
                team.run(0)
            assert added(team, steps)
            errors = []
            kind = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)

            @kind
            def step(thread, threads, argument):
                if thread == 0:
                    for again in (lambda: team.run(steps.address("nothing")), team.close):
                        try:
                            again()
                        except TeamError as error:
                            errors.append(str(error))

            team.run(ctypes.cast(step, ctypes.c_void_p).value)
            assert ["own team" in error for error in errors] == [True, True]
            assert added(team, steps)

    def test_threads_that_cannot_start_are_an_error_and_leave_nothing(self, steps, monkeypatch):
        team = Team(4)
        kind = type(team._crew)
        start = kind._start_worker

        def limited(crew, thread, epoch):
            if thread == 3:
                raise TeamError("thread 3 of 4 cannot be started")
            return start(crew, thread, epoch)

        monkeypatch.setattr(kind, "_start_worker", limited)
        with pytest.raises(TeamError, match="cannot be started"):
            team.run(steps.address("nothing"))
        assert team._crew.handles == []
        monkeypatch.undo()
        assert added(team, steps)
        team.close()

    def test_a_closed_team_refuses_and_closes_again_quietly(self, steps):
        team = Team(2)
        assert added(team, steps)
        team.close()
        team.close()
        assert team.closed
        with pytest.raises(TeamError, match="closed"):
            team.run(steps.address("nothing"))

    @linux
    def test_closing_and_collecting_leave_no_threads(self, steps):
        before = workers().keys()
        team = Team(3)
        assert workers().keys() <= before  # none until they are needed
        team.run(steps.address("nothing"))
        assert len(workers().keys() - before) == 2
        team.close()
        assert eventually(lambda: workers().keys() <= before)
        team = Team(3)
        team.run(steps.address("nothing"))
        assert len(workers().keys() - before) == 2
        del team
        gc.collect()
        assert eventually(lambda: workers().keys() <= before)

    @linux
    @pytest.mark.parametrize("parking", [default_parking(), "condition"])
    def test_idle_threads_sleep(self, steps, parking):
        with Team(3, parking=parking) as team:
            team.run(steps.address("nothing"))
            assert len(workers()) >= 2
            assert eventually(lambda: set(workers().values()) == {"S"})
            assert added(team, steps)

    @linux
    def test_threads_that_share_one_core_let_each_other_on(self, steps):
        cores = os.sched_getaffinity(0)
        one = {min(cores)}
        with Team(2) as team:
            assert added(team, steps)
            tasks = [threading.get_native_id(), *map(int, workers())]
            try:
                for task in tasks:
                    os.sched_setaffinity(task, one)
                assert barrier_counts(team, steps, 300) == (0, [300, 300])
                # Both still count as being there, so that each makes room for the other.
                cells = (ctypes.c_int32 * CROWD_CELLS).from_address(team.pointer + OFFSETS["crowd"])
                assert sum(cells) == 2 == cells[min(one) % CROWD_CELLS]
            finally:
                for task in tasks:
                    os.sched_setaffinity(task, cores)
            assert added(team, steps)

    @linux
    def test_a_worker_leaves_the_core_of_the_caller_and_may_be_on_all_as_before(self, steps):
        cores = os.sched_getaffinity(0)
        if len(cores) < 2:
            pytest.skip("this process has one core")
        one = {min(cores)}
        before = workers().keys()
        with Team(2) as team:
            assert added(team, steps)
            (worker,) = map(int, workers().keys() - before)
            try:
                os.sched_setaffinity(threading.get_native_id(), one)

                def apart():
                    os.sched_setaffinity(worker, one)
                    os.sched_setaffinity(worker, cores)
                    team.run(steps.address("nothing"))
                    fields = Path(f"/proc/self/task/{worker}/stat").read_text().rpartition(")")[2]
                    return int(fields.split()[36]) not in one

                assert eventually(apart)
                assert os.sched_getaffinity(worker) == cores
            finally:
                os.sched_setaffinity(threading.get_native_id(), cores)

    @linux
    def test_signals_are_left_to_the_threads_that_run_python(self, steps):
        with Team(2) as team:
            team.run(steps.address("nothing"))
            for task in workers():
                status = Path(f"/proc/self/task/{task}/status").read_text()
                blocked = int(status.partition("SigBlk:")[2].split()[0], 16)
                assert blocked >> (signal.SIGINT - 1) & 1
                assert not blocked >> (signal.SIGSEGV - 1) & 1

    def test_condition_variables_serve_where_there_is_no_futex(self):
        program = load_object(compile_module(ADD + ROUNDS), symbols=symbols("condition"))
        with Team(3, parking="condition") as team:
            assert all(added(team, program, 100, seed) for seed in range(50))
            assert barrier_counts(team, program, 1000) == (0, [1000] * 3)

    def test_one_thread_needs_nothing_of_the_system(self, steps):
        assert added(Team(1, parking="alone"), steps)
        assert Team(parking="alone").threads == 1
        with pytest.raises(ArgumentError, match="threads=1"):
            Team(2, parking="alone")

    @pytest.mark.parametrize("parking", ["futex", "condition"])
    def test_the_runtime_compiles_for_aarch64(self, parking):
        triple = "aarch64-unknown-linux-gnu"
        code = compile_module(runtime_text(triple, parking), triple=triple)
        assert int.from_bytes(code[18:20], "little") == 183

    def test_an_unknown_way_to_sleep_is_an_error(self):
        with pytest.raises(ArgumentError, match="condition"):
            Team(2, parking="bed")


def in_child(action):
    """The exit status of a forked child that runs an action: 0 where it returns True."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is the point
        child = os.fork()
    if child == 0:
        try:
            os._exit(0 if action() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class TestFork:
    @pytest.mark.parametrize("parking", [default_parking(), "condition"])
    def test_a_child_starts_workers_of_its_own(self, steps, parking):
        team = Team(3, parking=parking)
        assert added(team, steps)
        assert in_child(lambda: added(team, steps) and added(team, steps, seed=1)) == 0
        assert added(team, steps)
        team.close()

    def test_barriers_work_in_a_child(self, steps):
        with Team(2) as team:
            assert barrier_counts(team, steps, 10) == (0, [10, 10])
            assert in_child(lambda: barrier_counts(team, steps, 99) == (0, [99, 99])) == 0

    def test_several_threads_of_a_child_share_the_workers_it_starts(self, steps):
        def work():
            results = []
            add = [
                threading.Thread(target=lambda: results.append(added(team, steps)))
                for _ in range(8)
            ]
            for thread in add:
                thread.start()
            for thread in add:
                thread.join()
            return results == [True] * 8 and len(team._crew.handles) == 1

        with Team(2) as team:
            assert added(team, steps)
            assert in_child(work) == 0

    def test_a_child_closes_its_own_workers_only(self, steps):
        with Team(2) as team:
            assert added(team, steps)

            def close():
                team.close()
                return team.closed

            assert in_child(close) == 0
            assert added(team, steps)

    def test_a_team_busy_in_another_thread_is_free_in_a_child(self, steps):
        inside, leave = threading.Event(), threading.Event()
        kind = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)

        @kind
        def step(thread, threads, argument):
            inside.set()
            leave.wait(60)

        with Team(2) as team:
            address = ctypes.cast(step, ctypes.c_void_p).value
            busy = threading.Thread(target=team.run, args=(address,))
            busy.start()
            inside.wait(60)
            assert in_child(lambda: added(team, steps)) == 0
            leave.set()
            busy.join()
            assert added(team, steps)

    def test_a_process_that_forgets_its_teams_exits_cleanly(self):
        script = (
            "from darner.backends.cpu.runtime import jit, threads\n"
            f"code = jit.compile_module('''{NOTHING}''')\n"
            "program = jit.load_object(code)\n"
            "teams = [threads.Team(3) for _ in range(3)]\n"
            "for team in teams: team.run(program.address('nothing'))\n"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=120)
        assert (done.returncode, done.stderr) == (0, b"")


def kept(cache, text, compile_text=compile_module):
    """The object of a module, from a cache where it is there."""
    key = object_key(text, host())
    code = cache.get(key)
    if code is None:
        code = compile_text(text)
        cache.put(key, code)
    return code


class TestCache:
    def test_what_is_put_is_got(self, tmp_path):
        cache = ObjectCache(tmp_path / "a" / "b")
        assert cache.get("0") is None
        cache.put("0", b"code")
        assert cache.get("0") == b"code"
        assert ObjectCache(tmp_path / "a" / "b").get("0") == b"code"
        cache.clear()
        assert cache.get("0") is None

    def test_the_second_compilation_is_read_from_disk(self, tmp_path):
        cache = ObjectCache(tmp_path)
        code = kept(cache, ADD)
        assert code == compile_module(ADD)
        assert kept(cache, ADD, compile_text=None) == code
        assert added(Team(1), load_object(code))

    def test_the_key_covers_all_that_the_bytes_depend_on(self, monkeypatch):
        machine = host()
        skylake = dataclasses.replace(machine, cpu="skylake")
        keys = [
            object_key(ADD, machine),
            object_key(HALVE, machine),
            object_key(ADD, skylake),
            object_key(ADD, dataclasses.replace(skylake, features="+avx512f")),
            object_key(ADD, dataclasses.replace(machine, features="")),
            object_key(ADD, machine, passes=True),
        ]
        monkeypatch.setattr("darner.__version__", "another")
        keys.append(object_key(ADD, machine))
        monkeypatch.undo()
        monkeypatch.setattr("llvmlite.__version__", "another")
        keys.append(object_key(ADD, machine))
        monkeypatch.undo()
        assert len(set(keys)) == len(keys)
        assert object_key(ADD, machine) == keys[0]

    @pytest.mark.parametrize("damage", ["cut", "flip", "empty", "foreign"])
    def test_a_damaged_entry_is_removed_and_built_again_with_one_warning(self, tmp_path, damage):
        cache = ObjectCache(tmp_path)
        code = kept(cache, ADD)
        (path,) = tmp_path.iterdir()
        whole = path.read_bytes()
        flipped = whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:]
        damaged = {"cut": whole[:-1], "flip": flipped, "empty": b"", "foreign": code}[damage]
        path.write_bytes(damaged)
        with pytest.warns(CorruptEntryWarning, match="damaged") as caught:
            codes = [kept(cache, ADD) for _ in range(2)]
        assert codes == [code, code]
        assert len(caught) == 1
        assert path.read_bytes() == whole

    def test_the_least_recently_used_go_first(self, tmp_path):
        room = ObjectCache(tmp_path)
        for age, key in enumerate("abcd"):
            room.put(key, bytes(1000))
            os.utime(tmp_path / f"{key}.object", (1000 + age, 1000 + age))
        assert room.get("a") == bytes(1000)  # now the most recent
        entry = room.size() // 4
        ObjectCache(tmp_path, limit_bytes=3 * entry).put("e", bytes(1000))
        assert sorted(path.stem for path in tmp_path.iterdir()) == ["a", "d", "e"]

    def test_what_is_larger_than_the_limit_is_not_kept(self, tmp_path):
        cache = ObjectCache(tmp_path, limit_bytes=500)
        cache.put("small", bytes(100))
        cache.put("large", bytes(501))
        assert cache.get("large") is None
        assert cache.get("small") == bytes(100)

    def test_what_a_killed_writer_left_is_swept_and_a_live_one_is_not(self, tmp_path):
        old, new = tmp_path / "old.unfinished", tmp_path / "new.unfinished"
        old.write_bytes(b"half")
        new.write_bytes(b"half")
        os.utime(old, (1000, 1000))
        ObjectCache(tmp_path).put("0", b"code")
        assert not old.exists()
        assert new.exists()

    def test_a_folder_that_cannot_be_written_warns_once_and_works(self, tmp_path):
        (tmp_path / "file").write_bytes(b"")
        cache = ObjectCache(tmp_path / "file" / "objects")
        with pytest.warns(CacheWarning, match="cannot be cached") as caught:
            codes = [kept(cache, text) for text in (ADD, HALVE)]
        assert codes == [compile_module(ADD), compile_module(HALVE)]
        assert len(caught) == 1

    def test_a_write_that_fails_leaves_nothing_behind(self, tmp_path, monkeypatch):
        def full(source, target, **folders):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "replace", full)
        with pytest.warns(CacheWarning, match="No space left"):
            ObjectCache(tmp_path).put("0", b"code")
        assert list(tmp_path.iterdir()) == []

    def test_none_keeps_nothing(self, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert kept(ObjectCache(None), HALVE) == compile_module(HALVE)
        assert list(tmp_path.iterdir()) == []

    def test_the_default_is_in_the_cache_folder_of_the_user(self, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert ObjectCache().folder == tmp_path / "darner" / "objects"
        monkeypatch.setenv("XDG_CACHE_HOME", "relative")
        monkeypatch.setenv("HOME", str(tmp_path))
        assert default_folder() == tmp_path / ".cache" / "darner" / "objects"

    def test_keys_that_are_paths_and_negative_limits_are_errors(self, tmp_path):
        with pytest.raises(ArgumentError, match="not a key"):
            ObjectCache(tmp_path).get("../other")
        with pytest.raises(ArgumentError, match="-1"):
            ObjectCache(tmp_path, limit_bytes=-1)

    def test_two_processes_write_and_read_one_folder(self, tmp_path):
        spawn = multiprocessing.get_context("fork")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            processes = [
                spawn.Process(target=write_and_read, args=(tmp_path, seed)) for seed in (0, 1)
            ]
            for process in processes:
                process.start()
        for process in processes:
            process.join(120)
        assert [process.exitcode for process in processes] == [0, 0]
        assert {path.suffix for path in tmp_path.iterdir()} == {".object"}
        assert ObjectCache(tmp_path).size() <= 60_000


def write_and_read(folder, seed):
    """Puts and gets the same few keys as another process; an entry read is always whole."""
    warnings.simplefilter("error")
    cache = ObjectCache(folder, limit_bytes=60_000)
    random = np.random.default_rng(seed)
    for _ in range(400):
        key = int(random.integers(8))
        content = bytes([key]) * 10_000
        if random.integers(2):
            cache.put(str(key), content)
        elif cache.get(str(key)) not in (None, content):
            sys.exit(3)
