import pytest
from structlog.testing import capture_logs


@pytest.fixture
def logged():
    """The log events of this test."""
    with capture_logs() as events:
        yield events
