"""Searches in several threads: egglog lets only the thread that made an e-graph use it."""

from concurrent.futures import ThreadPoolExecutor

from darner import Graph
from darner.optimizer import engine, optimize


def graph():
    g = Graph()
    x, w = g.input("x", (4, 8)), g.parameter("w", (8, 3))
    g.set_outputs([(x @ w).tanh().square().mean()])
    return g


def test_a_thread_parses_what_no_other_thread_has():
    wanted = optimize(graph()).digest()
    for _ in range(2):
        engine._parsed.cache_clear()
        with ThreadPoolExecutor(2) as pool:
            found = [pool.submit(lambda: optimize(graph()).digest()) for _ in range(2)]
            assert [each.result() for each in found] == [wanted, wanted]
    engine._parsed.cache_clear()
    assert optimize(graph()).digest() == wanted
