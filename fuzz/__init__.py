"""Fuzzing of everything that reads what somebody else wrote: ``make fuzz``.

`targets` has one function for each reader, with documents to begin from; `mutate` changes documents without making them
unreadable; `one` runs one target under atheris, which sees by coverage which changes are new; `run` runs them all, side by
side, for some seconds each, and says what was found.

The contract of every reader is the same: any bytes give a value or a `DarnerError`, soon, and without much memory.
"""
