"""Children that write without end and are killed at random moments."""

import os
import signal
import traceback
import warnings


def killed(write, random) -> int:
    """Fork a child that calls ``write(1)``, ``write(2)``, ... and kill it at a random moment; the last that had returned.

    The child tells through a pipe what it has done. The parent waits for a few calls to be over, then counts to a random
    number, which takes up to a few calls more, and kills.
    """
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other tests may have threads
        child = os.fork()
    if child == 0:
        try:
            signal.alarm(120)  # should the parent be gone
            number = 0
            while True:
                number += 1
                write(number)
                os.write(writing, b".")
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(writing)
    done = 0
    for _ in range(int(random.integers(0, 3))):
        done += len(os.read(reading, 1))
    for _ in range(int(random.integers(0, 60_000))):
        pass
    os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    done += len(os.read(reading, 1 << 16))
    os.close(reading)
    assert status == -signal.SIGKILL, "the child ended by itself"
    return done


def in_child(action) -> None:
    """Run an action in a forked child, and fail where it fails."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            signal.alarm(120)
            action()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def killed_or_done(work, random, most: int) -> bool:
    """Fork a child that does some work and tells of each step of it, and kill it at a random moment; whether it was done before.

    ``work`` gets the function that tells. The parent waits for up to ``most`` steps, counts to a random number, and kills.
    """
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            signal.alarm(120)
            os.close(reading)
            work(lambda: os.write(writing, b"."))
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(writing)
    for _ in range(int(random.integers(0, most + 1))):
        if not os.read(reading, 1):
            break
    for _ in range(int(random.integers(0, 60_000))):
        pass
    os.kill(child, signal.SIGKILL)
    os.close(reading)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL), "the child failed"
    return status == 0
