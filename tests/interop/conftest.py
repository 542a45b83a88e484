"""The servers that interop tests share, each started when it is first asked for; without their peer's package the tests
are left out.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest
from openenv_processes import Client, Gymserve, OpenEnvServer

# What a test module is about is the beginning of its name, ``test_<package>_...``.
_PEERS = {"openenv": "openenv==0.10.0", "nemo_gym": "nemo-gym==0.7.0", "verifiers": "verifiers==0.4.0", "mcp": "mcp"}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "interop: needs the real peer's package in an environment of its own")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.interop)
            peer = next(peer for peer in _PEERS if item.path.name.startswith(f"test_{peer}_"))
            if find_spec(peer) is None:
                item.add_marker(pytest.mark.skip(reason=f"needs {peer} (pip install {_PEERS[peer]})"))


def _openenv(app: str, factory: pytest.TempPathFactory, *flags: str, **settings: float) -> OpenEnvServer:
    return OpenEnvServer(app, factory.mktemp(app), *flags, **settings)  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def step_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenEnvServer]:
    """One slot: a test that leaves it taken stops the next."""
    with _openenv("step_app", tmp_path_factory, capacity=1) as server:
        yield server


@pytest.fixture(scope="session")
def mcp_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenEnvServer]:
    with _openenv("mcp_app", tmp_path_factory, capacity=1) as server:
        yield server


@pytest.fixture(scope="session")
def pinging_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenEnvServer]:
    """Drops a connection within 2 s that does not answer pings."""
    flags = ("--ws-ping-interval", "1", "--ws-ping-timeout", "1")
    with _openenv("step_app", tmp_path_factory, *flags, capacity=3) as server:
        yield server


@pytest.fixture(scope="session")
def reaping_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenEnvServer]:
    """Closes environments idle for 2 s; OpenEnv looks for them every 5 s."""
    with _openenv("step_app", tmp_path_factory, capacity=2, session_timeout_seconds=2) as server:
        yield server


@pytest.fixture
def mortal_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenEnvServer]:
    with _openenv("step_app", tmp_path_factory, capacity=1) as server:
        yield server


@pytest.fixture(scope="session")
def step_gymserve(step_server: OpenEnvServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gymserve]:
    with Gymserve(step_server, tmp_path_factory.mktemp("gymserve") / "log") as gymserve:
        yield gymserve


@pytest.fixture(scope="session")
def mcp_gymserve(mcp_server: OpenEnvServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gymserve]:
    with Gymserve(mcp_server, tmp_path_factory.mktemp("gymserve") / "log") as gymserve:
        yield gymserve


@pytest.fixture
def start_gymserve(tmp_path: Path) -> Iterator[Callable[..., Gymserve]]:
    """A gymserve of one's own: ``start_gymserve(server, *flags)``."""
    with ExitStack() as stack:

        def start(env: OpenEnvServer, *flags: str) -> Gymserve:
            log = tmp_path / f"gymserve-{len(list(tmp_path.iterdir()))}.log"
            return stack.enter_context(Gymserve(env, log, *flags))

        yield start


@pytest.fixture
def new_client() -> Iterator[Callable[[Gymserve], Client]]:
    with ExitStack() as stack:
        yield lambda gymserve: stack.enter_context(gymserve.client())
