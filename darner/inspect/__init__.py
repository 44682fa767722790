"""What a plan or a running program did: its time, its memory, its values.

    inspected   the part of a program that is needed here, and how it stays as it was
    recorder    runs steps with a clock around each kernel
    profile     what the recorder found; ``profile_text`` prints it, ``perfetto`` writes it as a trace
    trace       every kernel's results, and which was the first with a NaN or an infinity
    memory_map  the arena over time
    gradients   the gradient of each parameter in one row
    statistics  a tensor in a few numbers
    summary     how much memory a session takes
    tables      what all of them print with

Nothing here needs a session: functions take programs, plans and arrays.
"""
