"""Special values: a GPU gives what the reference gives."""

import pytest

import darner
from tests.conformance.specials import differences, special_graph
from tests.gpu import needs_gpu

pytestmark = needs_gpu


@pytest.mark.parametrize("kind", ["f32", "i32"])
def test_element_wise_ops_at_special_values(kind):
    graph, values, names = special_graph(kind)
    wanted = darner.run(graph, values)
    with darner.build_inference_session(graph, device="gpu", level=0) as session:
        found = list(session.run(values).values())
    assert differences(names, found, wanted, values, kind) == []
