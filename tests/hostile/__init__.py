"""Bad inputs of every kind: files, values, options, signals, threads.

A row says what is done to what, which error it is, and a phrase of its text; see `rows`. `subjects` makes what things are done
to, and says what it holds, bit for bit: after the error all of that must be as it was. The rows stand in ``rows_*.py``, by
what they attack.
"""
