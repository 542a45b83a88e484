"""Which resets count as failed, as told on the command line, and that the settings reach the gateway."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from counting import Counting

from gymserve.address import parse_server
from gymserve.cli.serving import compose_gateway
from gymserve.errors import EnvironmentFailed
from gymserve.gateway import Gateway
from gymserve.gridsim.faults import Fault
from gymserve.gridsim.server import EnvironmentServer
from gymserve.resets import FailedObservation, ResetFailed, ResetRules, parse_failed_observation
from gymserve.session import Seed
from gymserve.settings import ServeSettings
from gymserve.wire import Observation


@pytest.mark.parametrize(
    ("text", "failed"),
    [
        ("reward_type=reset_error", FailedObservation("reward_type", "reset_error")),
        ('reward_type="reset_error"', FailedObservation("reward_type", "reset_error")),
        ("ok=false", FailedObservation("ok", False)),
        ("code=-1", FailedObservation("code", -1)),
        ("error=", FailedObservation("error", "")),
        ("url=http://a/?b=c", FailedObservation("url", "http://a/?b=c")),
    ],
)
def test_a_field_and_a_value_in_json_or_text(text, failed):
    assert parse_failed_observation(text) == failed


@pytest.mark.parametrize("text", ["", "reset_error", "=reset_error"])
def test_a_field_without_a_value_is_refused(text):
    with pytest.raises(ValueError, match="must be FIELD=VALUE, such as reward_type=reset_error"):
        parse_failed_observation(text)


@pytest.mark.parametrize("fields", [{}, {"ok": True}, {"ok": None}, {"ko": False}])
def test_an_observation_that_says_something_else_is_no_failed_reset(fields):
    ResetRules(failed=[FailedObservation("ok", False)]).check(Observation(fields, None))


@pytest.mark.parametrize(
    ("text", "failed", "other"),
    [
        ("ok=0", {"ok": 0}, {"ok": False}),
        ("ok=1", {"ok": 1.0}, {"ok": True}),
        ("ok=true", {"ok": True}, {"ok": 1}),
        ("ok=null", {"ok": None}, {}),
        ('ok={"a": [1]}', {"ok": {"a": [1]}}, {"ok": {"a": [2]}}),
    ],
)
def test_values_are_compared_as_json_does(text, failed, other):
    rules = ResetRules(failed=[parse_failed_observation(text)])
    rules.check(Observation(other, None))
    with pytest.raises(ResetFailed, match="the observation has ok = "):
        rules.check(Observation(failed, None))


@asynccontextmanager
async def composed(fault: Fault | None = None, **settings: Any) -> AsyncIterator[Gateway]:
    """The gateway of ``gymserve serve`` before a server on a real port."""
    server = EnvironmentServer(Counting, faults=[fault] if fault else [])
    async with trio.open_nursery() as nursery:
        port = await nursery.start(server.listen, "127.0.0.1", 0)
        async with compose_gateway(ServeSettings(**settings), [parse_server(f"127.0.0.1:{port}")]) as gateway:
            yield gateway
        nursery.cancel_scope.cancel()


async def failure(gateway: Gateway) -> str:
    with trio.fail_after(10), pytest.raises(EnvironmentFailed) as caught:
        await gateway.seed("a session", Seed())
    return str(caught.value)


async def test_the_number_of_fresh_episodes_is_a_setting():
    async with composed(Fault("failed-reset", 1), reset_retries=0) as gateway:
        assert (await failure(gateway)).startswith("the environment's reset failed once: ")
    async with composed(Fault("failed-reset", 1), reset_retries=1) as gateway:
        await gateway.seed("a session", Seed())


async def test_what_a_failed_reset_looks_like_is_a_setting():
    async with composed(reset_failed=["target=7", "count=0"], reset_retries=1) as gateway:
        assert (await failure(gateway)).startswith(
            "the environment's reset failed 2 times, each on a fresh episode: the observation has count = 0; "
        )
