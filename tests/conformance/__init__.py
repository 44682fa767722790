"""Every op against someone who knows, over its samples, in every element type."""

import pytest

QUICK = False
"""Set by ``pytest --quick`` before the suites are collected."""


def sample_indices(op):
    """The samples to try: all, or in the quick tier the middle one."""
    return [len(op.samples) // 2] if QUICK and op.samples else range(len(op.samples))


def ops_to_differentiate(ops):
    """The ops whose derivatives and batches to try: all, or in the quick tier every other one."""
    return ops[:: 2 if QUICK else 1]


def element_types(*names):
    """The element types to try: all, or in the quick tier f32."""
    return [name for name in names if not QUICK or name == "f32"]


def examples(count):
    """How many examples hypothesis tries: as many, or in the quick tier an eighth of them."""
    return max(1, count // 8) if QUICK else count


def per_op(calls):
    """Make a check of one call, ``(op, sample, ...)``, a test for each op: of all its calls, telling every one that fails.

    There are twenty thousand calls, most of a few milliseconds: as tests of their own, naming, counting and
    reporting them would take as long.
    """
    by_op = {}
    for call in calls:
        by_op.setdefault(call[0].name, []).append(call)

    def decorate(check):
        def test(calls):
            failures = []
            for op, *rest in calls:
                try:
                    check(op, *rest)
                except Exception as error:
                    error.add_note(f"in {check.__name__}({op.name}, {', '.join(map(str, rest))})")
                    failures.append(error)
            if failures:
                raise ExceptionGroup(f"{len(failures)} of {len(calls)} calls", failures)

        test.__name__, test.__qualname__ = check.__name__, check.__qualname__
        test.__module__, test.__doc__ = check.__module__, check.__doc__
        cases = [pytest.param(found, id=name) for name, found in by_op.items()]
        return pytest.mark.parametrize("calls", cases)(test)

    return decorate
