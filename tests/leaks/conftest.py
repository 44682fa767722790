import pytest


@pytest.fixture(scope="session")
def objects(tmp_path_factory):
    """A folder for compiled code, so that each model is compiled once."""
    return tmp_path_factory.mktemp("objects")
