"""How code becomes machine code and runs: compiling, threads, programs.

``jit`` compiles modules (cut up by ``modules``), ``native`` is a plan's code with what it takes to run it, ``program`` binds it to memory. ``steps`` is the loop of
a step, ``threads`` and ``threads_ir`` the team that runs it. ``stored`` chooses parameters kept in panels, ``mirrors`` keeps them in step with the session's arrays.
"""
