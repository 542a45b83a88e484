import pytest
from served import make_app, serving
from structlog.testing import capture_logs


@pytest.fixture
def logged():
    """The log events of this test."""
    with capture_logs() as events:
        yield events


@pytest.fixture
async def server():
    async with serving(make_app()) as server:
        yield server
