"""Every op against someone who knows, over its samples, in every element type."""

QUICK = False
"""Set by ``pytest --quick`` before the suites are collected."""


def sample_indices(op):
    """The samples to try: all, or in the quick tier the middle one."""
    return [len(op.samples) // 2] if QUICK and op.samples else range(len(op.samples))


def element_types(*names):
    """The element types to try: all, or in the quick tier f32."""
    return [name for name in names if not QUICK or name == "f32"]


def examples(count):
    """How many examples hypothesis tries: as many, or in the quick tier an eighth of them."""
    return max(1, count // 8) if QUICK else count
