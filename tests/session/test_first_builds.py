"""The first sessions of a process, built by several threads at once."""

import subprocess
import sys
import textwrap

FIRST = """
    import threading
    import numpy as np
    import darner

    def run():
        g = darner.Graph()
        g.set_outputs([(g.input("x", (3,)).tanh() * 2.0).sum()])
        together.wait()
        with darner.build_inference_session(g, cache=None, threads=2) as session:
            found.append(session.run({"x": [1.0, 2.0, 3.0]})["output0"])

    found, together = [], threading.Barrier(8)
    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_allclose(found, [2 * np.tanh([1.0, 2.0, 3.0]).sum()] * 8, rtol=1e-6)
"""


def test_several_threads_build_the_first_sessions():
    for _ in range(3):
        command = [sys.executable, "-c", textwrap.dedent(FIRST)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stderr) == (0, "")
