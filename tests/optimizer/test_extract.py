"""Extraction from e-graphs: exact with sharing, free of cycles, repeatable, bounded in time."""

import itertools
import os
import random
import subprocess
import sys
import time

import pytest

from darner.graph.errors import InternalError
from darner.optimizer import component, program, search
from darner.optimizer.extract import Choice, extract


def reached(classes, chosen, roots):
    """The classes in use, or None when one of them needs itself. Small e-graphs only."""
    state = {}

    def visit(number):
        if number in state:
            return state[number]
        state[number] = False
        children = classes[number][chosen[number]].children
        state[number] = all(visit(child) for child in children)
        return state[number]

    return set(state) if all(visit(root) for root in roots) else None


def brute_force(classes, roots):
    """The least cost over all selections, or None when each has a cycle."""
    best = None
    for combination in itertools.product(*[range(len(choices)) for choices in classes]):
        used = reached(classes, combination, roots)
        if used is not None:
            cost = sum(classes[number][combination[number]].cost for number in used)
            best = cost if best is None else min(best, cost)
    return best


def random_classes(seed):
    """4 to 9 classes with cycles, ties, zero costs, and choices of one to three needs."""
    draw = random.Random(seed)
    count = draw.randint(4, 9)
    cyclic = draw.random() < 0.7
    classes = []
    for number in range(count):
        pool = [n for n in range(count) if n != number or draw.random() < 0.1]
        pool = pool if cyclic else list(range(number))
        choices = []
        for _ in range(draw.randint(1, 3 if count > 7 else 4)):
            needs = 0 if draw.random() < 0.15 else draw.choice([0, 1, 1, 2, 2, 3])
            children = draw.sample(pool, min(len(pool), needs))
            cost = draw.choice([0, 0, 1, 1, 2, 3, 5, draw.random() * 4])
            choices.append(Choice(cost, tuple(children)))
        classes.append(choices)
    return classes, draw.sample(range(count), draw.randint(1, 3))


def blocks(count):
    """Layers of attention and a gated network, each with what pays only jointly and with cycles."""
    classes = []

    def add(*choices):
        classes.append([Choice(cost, children) for cost, children in choices])
        return len(classes) - 1

    value, roots = add((0.0, ())), []
    for _ in range(count):
        weights = [add((0.0, ())) for _ in range(7)]
        norm = add((4.5, (value, weights[6])))
        joint = add((0.0, tuple(weights[:3])))
        three = add((9.1, (norm, joint)))
        pair = add((7.2, (norm, weights[0], weights[1])))
        query, key, values = (
            add(
                (4.8, (norm, weights[i])),
                (5.1, (value, weights[6], weights[i])),
                (0.01, (three,)),
                *([(0.01, (pair,))] if i < 2 else []),
            )
            for i in range(3)
        )
        scores = add((4.2, (query, key)))
        attended = add((4.3, (scores, values)), (5.5, (query, key, values)))
        negative = len(classes) + 1
        after = add((4.9, (attended, value, weights[3])), (4.1, (negative,)))
        add((4.1, (after,)), (4.6, (attended, value)))
        both = add((9.0, (after, weights[4], weights[5])))
        gate = add((6.0, (after, weights[4])), (0.01, (both,)))
        up = add((6.0, (after, weights[5])), (0.01, (both,)))
        gated = add((4.4, (gate, up)), (4.4, (up, gate)), (4.2, (both,)))
        roots.append(gate)
        value = add((5.0, (gated, after)))
    return classes, [value, *roots]


def hard(count, seed=1):
    """One large component that no reduction takes apart."""
    draw = random.Random(seed)
    classes = []
    for number in range(count):
        pool = range(max(0, number - 12), number)
        choices = []
        for _ in range(draw.choice([1, 2, 3, 4])):
            children = draw.sample(pool, min(len(pool), draw.choice([1, 2, 2, 3])))
            choices.append(Choice(draw.choice([4.0, 5.0, draw.random() * 9]), tuple(children)))
        classes.append(choices)
    return classes, [count - 1, count - 2]


def check_equal_to_brute_force(seeds):
    feasible = 0
    for seed in seeds:
        classes, roots = random_classes(seed)
        best = brute_force(classes, roots)
        if best is None:
            with pytest.raises(InternalError, match="circular"):
                extract(classes, roots)
            continue
        found = extract(classes, roots)
        assert found.cost == pytest.approx(best, abs=1e-9), seed
        assert found.exact
        assert found.method == "exact"
        assert reached(classes, found.chosen, roots) == set(found.chosen), seed
        quick = extract(classes, roots, seconds=0)
        assert reached(classes, quick.chosen, roots) == set(quick.chosen), seed
        assert quick.cost >= best - 1e-9
        feasible += 1
    return feasible


def test_equal_to_brute_force_on_random_e_graphs():
    assert check_equal_to_brute_force(range(600)) > 500


def test_the_integer_program_is_equal_to_brute_force(monkeypatch):
    monkeypatch.setattr(search, "_EFFORT", 0)
    assert check_equal_to_brute_force(range(1000, 1250)) > 200


@pytest.mark.slow
def test_search_and_integer_program_agree_on_larger_problems(monkeypatch):
    problems = [hard(30, seed) for seed in range(8)]
    searched = [extract(*problem) for problem in problems]
    monkeypatch.setattr(search, "_EFFORT", 0)
    programmed = [extract(*problem) for problem in problems]
    assert sum(found.programs for found in searched) < sum(found.programs for found in programmed)
    for one, other in zip(searched, programmed, strict=True):
        assert one.exact
        assert other.exact
        assert one.cost == pytest.approx(other.cost)


def test_a_producer_that_pays_only_for_three_users_is_found():
    # Alone each slice is dearer (9 + 0.1) than a product of its own (4).
    slices = [[Choice(4.0, (0,)), Choice(0.1, (4,))] for _ in range(3)]
    classes = [[Choice(0.0, ())], *slices, [Choice(9.0, (0,))]]
    found = extract(classes, [1, 2, 3])
    assert found.chosen == {1: 1, 2: 1, 3: 1, 4: 0, 0: 0}
    assert found.cost == pytest.approx(9.3)
    assert extract(classes, [1, 2]).cost == pytest.approx(8.0)


def test_a_class_is_paid_once_however_many_use_it():
    classes = [[Choice(5.0, ())], *[[Choice(1.0, (0,))] for _ in range(4)]]
    assert extract(classes, [1, 2, 3, 4, 4]).cost == 9.0


def test_two_cheap_choices_that_need_each_other_are_not_taken():
    # Each is the negative of the other; one of them has to be computed.
    classes = [[Choice(1.0, (1,)), Choice(6.0, ())], [Choice(1.0, (0,)), Choice(5.0, ())]]
    found = extract(classes, [0, 1])
    assert found.chosen == {0: 0, 1: 1}
    assert found.cost == 6.0


def test_a_cycle_through_several_components_is_cut():
    # 0 and 1 are held and choose apart from each other; cheapest in both would be a circle.
    classes = [
        [Choice(0.5, (2,)), Choice(3.0, (4,))],
        [Choice(0.5, (3,)), Choice(4.0, (4,))],
        [Choice(0.5, (1, 4))],
        [Choice(0.5, (0, 4))],
        [Choice(1.0, ())],
    ]
    found = extract(classes, [0, 1])
    assert found.cuts >= 1
    assert found.exact
    assert found.chosen == {0: 1, 4: 0, 1: 0, 3: 0}
    assert found.cost == 5.0 == brute_force(classes, [0, 1])


def test_an_extra_child_forbids_an_output_to_use_a_later_input():
    # The leaf 1 is made from the output 0, outside: the cheap form of the output would need it.
    free = [[Choice(1.0, (1,)), Choice(5.0, ())], [Choice(0.0, ())], [Choice(1.0, (1,))]]
    late = [free[0], [Choice(0.0, (0,))], free[2]]
    assert extract(free, [0, 2]).cost == 2.0
    assert extract(late, [0, 2]).chosen == {0: 1, 2: 0, 1: 0}
    assert extract(late, [0, 2]).cost == 6.0


def test_the_earlier_of_equal_choices_is_taken():
    classes = [[Choice(2.0, (1,)), Choice(2.0, (1,)), Choice(2.0, (2,))], [Choice(1.0, ())]]
    assert extract([*classes, [Choice(1.0, ())]], [0]).chosen == {0: 0, 1: 0}


def test_costs_of_any_unit_are_told_apart():
    classes, roots = hard(40)
    small = [[Choice(c.cost * 1e-12, c.children) for c in choices] for choices in classes]
    whole, scaled = extract(classes, roots), extract(small, roots)
    assert scaled.exact
    assert scaled.cost == pytest.approx(whole.cost * 1e-12)


def test_only_classes_in_use_are_chosen():
    classes = [[Choice(1.0, (1,))], [Choice(1.0, ())], [Choice(1.0, (0,))]]
    assert extract(classes, [0]).chosen == {0: 0, 1: 0}


def test_never_dearer_than_the_selection_given():
    for seed in range(200):
        classes, roots = random_classes(seed)
        draw = random.Random(seed)
        given = {n: draw.randrange(len(choices)) for n, choices in enumerate(classes)}
        used = reached(classes, given, roots)
        if used is not None:
            cost = sum(classes[number][given[number]].cost for number in used)
            for seconds in (0.0, 10.0):
                found = extract(classes, roots, incumbent=given, seconds=seconds)
                assert found.cost <= cost + 1e-12


def test_without_time_the_input_is_returned_when_nothing_better_is_known():
    classes, roots = blocks(2)
    best = extract(classes, roots)
    found = extract(classes, roots, incumbent=best.chosen, seconds=0)
    assert found.method == "input"
    assert not found.exact
    assert found.chosen == best.chosen
    assert found.solves == 0


def test_without_time_a_legal_selection_is_returned_and_says_so():
    classes, roots = blocks(3)
    first = dict.fromkeys(range(len(classes)), 0)
    given = reached(classes, first, roots)
    found = extract(classes, roots, incumbent=first, seconds=0)
    assert (found.method, found.exact, found.solves) == ("heuristic", False, 0)
    assert found.cost <= sum(classes[number][0].cost for number in given)
    assert reached(classes, found.chosen, roots) == set(found.chosen)
    assert found.cost > extract(classes, roots).cost


def test_an_unproved_answer_of_a_component_is_not_called_exact(monkeypatch):
    monkeypatch.setattr(search, "_EFFORT", 0)
    answer = component.minimise

    def stopped(*arguments):
        return type(answer(*arguments))(None, False)

    monkeypatch.setattr(component, "minimise", stopped)
    classes, roots = hard(30)
    found = extract(classes, roots)
    assert (found.method, found.exact, found.programs) == ("heuristic", False, 1)
    assert reached(classes, found.chosen, roots) == set(found.chosen)


def test_values_that_break_a_row_are_solved_again_without_presolve(monkeypatch):
    run, tried = program._run, []

    def spoiled(weights, rows, known, seconds, presolve):
        values, proved = run(weights, rows, known, seconds, presolve)
        tried.append(presolve)
        return (values * (presolve == "off"), proved)

    monkeypatch.setattr(program, "_run", spoiled)
    costs, needs = [[3.0, 0.1], [3.0, 0.1], [5.0]], [[[], [2]], [[], [2]], [[]]]
    answer = program.minimise(costs, needs, [0, 1], [], time.perf_counter() + 60)
    assert (answer.picks, answer.proved) == ({0: 1, 2: 0, 1: 1}, True)
    assert tried == ["choose", "off"]


def test_the_integer_program_heeds_cuts():
    # 0 and 1 may not both take their first option, nor 1 and 2.
    costs, needs = [[0.0, 2.0], [0.0, 3.0], [0.0, 2.0]], [[[], []]] * 3
    cuts = [[(0, [0]), (1, [0])], [(1, [0]), (2, [0])]]
    answer = program.minimise(costs, needs, [0, 1, 2], cuts, time.perf_counter() + 60)
    assert (answer.picks, answer.proved) == ({0: 0, 1: 1, 2: 0}, True)


def test_the_integer_program_has_no_answer_after_its_deadline():
    answer = program.minimise([[1.0]], [[[]]], [0], [], time.perf_counter() - 1)
    assert (answer.picks, answer.proved) == (None, False)


def test_equal_layers_are_solved_once():
    few, many = (extract(*blocks(count)) for count in (4, 30))
    assert many.exact
    assert many.components > 60
    assert 0 < many.solves <= few.solves + 1 < 10
    # Layers past the second add the same cost each.
    three = extract(*blocks(3))
    layer = few.cost - three.cost
    assert many.cost == pytest.approx(three.cost + 27 * layer)


def test_a_block_is_as_cheap_as_brute_force():
    classes, roots = blocks(1)
    assert extract(classes, roots).cost == pytest.approx(brute_force(classes, roots))


def test_a_deep_chain_needs_no_recursion():
    chain = [[Choice(1.0, ())]]
    for number in range(20_000):
        chain.append([Choice(2.0, (number,)), Choice(1.0, (number,))])
    found = extract(chain, [20_000], incumbent=dict.fromkeys(range(20_001), 0))
    assert found.cost == 20_001.0
    assert len(found.chosen) == 20_001


def test_a_deep_ladder_with_cycles_needs_no_recursion():
    ladder = [[Choice(1.0, ())]]
    for number in range(2_000):
        above = [Choice(0.5, (number + 2,))] if number % 4 != 3 else []
        ladder.append([*above, Choice(1.0, (number,))])
    found = extract(ladder, [2_000])
    assert found.exact
    assert found.cost == 2_001.0


def test_a_root_without_a_well_founded_choice_is_an_error():
    circle = [[Choice(1.0, (1,))], [Choice(1.0, (0,))], [Choice(1.0, ())]]
    assert extract(circle, [2]).cost == 1.0
    with pytest.raises(InternalError, match="class 0 cannot be computed"):
        extract(circle, [2, 0])
    with pytest.raises(InternalError, match="class 0 cannot be computed"):
        extract([[]], [0])


@pytest.mark.parametrize("cost", [-1.0, float("nan"), float("inf")])
def test_a_cost_that_is_no_cost_is_an_error(cost):
    with pytest.raises(InternalError, match="class 0 costs"):
        extract([[Choice(cost, ()), Choice(1.0, ())]], [0])


def test_a_selection_given_that_is_not_one_is_an_error():
    classes = [[Choice(1.0, (1,)), Choice(5.0, ())], [Choice(1.0, (0,)), Choice(5.0, ())]]
    with pytest.raises(InternalError, match="lacks class 1"):
        extract(classes, [0], incumbent={0: 0})
    with pytest.raises(InternalError, match="is circular"):
        extract(classes, [0], incumbent={0: 0, 1: 0})


def answers():
    """What is extracted from several e-graphs, as text."""
    problems = [blocks(3), hard(40), *(random_classes(seed) for seed in (3, 5, 8))]
    return repr([extract(*problem) for problem in problems])


def test_the_same_input_gives_the_same_answer():
    assert answers() == answers()


@pytest.mark.slow
def test_every_process_gives_the_same_answer():
    script = "from tests.optimizer.test_extract import answers; print(answers())"
    for seed in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == answers()
