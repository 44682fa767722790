"""A step that fails on a GPU leaves every parameter, moment, state and counter bit for bit as it was."""

import re

import pytest

import darner
from darner import optim
from tests.gpu import needs_gpu
from tests.session.failing import CASES, contents

pytestmark = needs_gpu


@pytest.mark.parametrize("name", CASES)
def test_a_failed_step_changes_nothing_and_names_op_label_line_and_place(name):
    case = CASES[name]()
    with darner.build_session(
        case.graph, optimizer=optim.Adam(1e-2), init="normal", device="gpu"
    ) as session:
        session.run(case.good)
        for _ in range(2):
            before = contents(session)
            with pytest.raises(darner.RunError) as caught:
                session.run(case.bad)
            assert re.search(case.says, str(caught.value)), str(caught.value)
            assert contents(session) == before
            session.run(case.good)
            assert contents(session) != before
