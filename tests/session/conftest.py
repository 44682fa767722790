"""Code that was compiled in one test is loaded in the others."""

import pytest

from tests.session import opening


@pytest.fixture(autouse=True, scope="session")
def _compiled_code(tmp_path_factory):
    opening.CODE["cache"] = tmp_path_factory.mktemp("code")
