"""A client with a short read timeout survives a long wait: all of gymserve in virtual time, then real clients."""

import asyncio
import http.client
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import aiohttp
import httpx
import pytest
import trio
from counting import Counting
from processes import Rollout, Server, running, sessions, until
from stage import raise_the_curtain

from gymserve.gridsim.faults import Fault
from gymserve.gridsim.server import EnvironmentServer

READ_TIMEOUT_SECONDS = 2.0
WAIT_SECONDS = 6.0
SCHEDULING_SECONDS = 0.1  # on a busy machine
VERIFY = b'{"responses_create_params": {}, "response": {}}'
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def counting(*, capacity: int = 8, fault: Fault | None = None) -> EnvironmentServer:
    return EnvironmentServer(Counting, capacity=capacity, faults=[fault] if fault else [])


# In virtual time


async def told_at(peer):
    """When interim answers came, until others did; and the status of those."""
    times = []
    while (packet := await peer.stream.receive_some(65536)) == CONTINUE:
        times.append(trio.current_time())
    return times, int(packet.split()[1])


async def test_a_seed_in_the_line_a_long_step_and_a_verify_behind_it_are_told_to_wait(autojump_clock):
    async with raise_the_curtain(counting(capacity=1, fault=Fault("slow-step", 40))) as stage:
        first, second = stage.client(), stage.client()
        await first.seed()
        told = {}

        async def ask(name, client, path, body):
            await client.send("POST", path, body)
            told[name] = await told_at(client.peer)

        async with trio.open_nursery() as asking:
            asking.start_soon(ask, "seed", second, "/seed_session", {})
            asking.start_soon(ask, "step", first, "/step", {"by": 1})
            await trio.sleep(4)
            await first.send("POST", "/verify", VERIFY)
            told["verify"] = await told_at(first.peer)
        assert told == {"step": ([15, 30], 200), "verify": ([4 + 15, 4 + 30], 200), "seed": ([15, 30], 200)}
        assert trio.current_time() == 40


# With real clients


async def post_by_httpx(url: str, body: bytes, cookie: str) -> int:
    async with httpx.AsyncClient(verify=False, trust_env=False, timeout=READ_TIMEOUT_SECONDS) as client:
        return (await client.post(url, content=body, headers={"Cookie": cookie})).status_code


async def post_by_aiohttp(url: str, body: bytes, cookie: str) -> int:
    async def post() -> int:
        timeout = aiohttp.ClientTimeout(sock_read=READ_TIMEOUT_SECONDS)
        async with (
            aiohttp.ClientSession(timeout=timeout) as client,
            client.post(url, data=body, headers={"Cookie": cookie}) as response,
        ):
            await response.read()
            return response.status

    return await trio.to_thread.run_sync(asyncio.run, post())


async def post_by_http_client(url: str, body: bytes, cookie: str) -> int:
    """As requests posts, whose sockets and answers are http.client's."""

    def post() -> int:
        target = httpx.URL(url)
        connection = http.client.HTTPConnection(target.host, target.port, timeout=READ_TIMEOUT_SECONDS)
        try:
            connection.request("POST", target.path, body, {"Cookie": cookie})
            response = connection.getresponse()
            response.read()
            return response.status
        finally:
            connection.close()

    return await trio.to_thread.run_sync(post)


Post = Callable[[str, bytes, str], Awaitable[int]]
CLIENTS: list[Post] = [post_by_httpx, post_by_aiohttp, post_by_http_client]
TIMEOUTS = (httpx.ReadTimeout, aiohttp.SocketTimeoutError, TimeoutError)


@asynccontextmanager
async def gymserve(environments: EnvironmentServer, *arguments: str) -> AsyncIterator[Server]:
    """A process of gymserve before an environment server in ours."""
    async with trio.open_nursery() as nursery:
        port = await nursery.start(environments.listen, "127.0.0.1", 0)
        with running("serve", "--env", f"127.0.0.1:{port}", *arguments) as server:
            yield server
        nursery.cancel_scope.cancel()


async def is_waiting(server: Server, number: int) -> bool:
    return bool((await sessions(server.url))["waiting"] == number)


async def post_all(url: str, body: bytes, cookies: list[str], answers: list[tuple[int, float]]) -> None:
    """Post with each client at once; status and seconds of each answer are added to `answers`."""
    started = trio.current_time()

    async def post_one(post: Post, cookie: str) -> None:
        status = await post(url, body, cookie)
        answers.append((status, trio.current_time() - started))

    async with trio.open_nursery() as nursery:
        for post, cookie in zip(CLIENTS, cookies, strict=True):
            nursery.start_soon(post_one, post, cookie)


async def test_short_read_timeouts_survive_the_line() -> None:
    environments = counting(capacity=1, fault=Fault("slow-step", WAIT_SECONDS))
    async with gymserve(environments, "--interim", "1", "--idle-timeout", "1") as server:
        holder = Rollout(server.url)
        await holder.seed()
        answers: list[tuple[int, float]] = []

        async def hold() -> None:
            assert (await holder.step()).status_code == 200
            await holder.verify()

        with trio.fail_after(WAIT_SECONDS * 3):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(hold)
                # Whoever gets the slot says no more, and gives it to the next after the idle timeout.
                await post_all(f"{server.url}/seed_session", b"{}", [""] * 3, answers)
        assert [status for status, _ in answers] == [200] * 3
        assert min(seconds for _, seconds in answers) >= WAIT_SECONDS - SCHEDULING_SECONDS
        assert environments.episodes["opened"] == 4


async def test_short_read_timeouts_survive_a_long_tool() -> None:
    async with gymserve(counting(fault=Fault("slow-step", WAIT_SECONDS)), "--interim", "1") as server:
        rollouts = [Rollout(server.url) for _ in CLIENTS]
        for rollout in rollouts:
            await rollout.seed()
        answers: list[tuple[int, float]] = []
        with trio.fail_after(WAIT_SECONDS * 2):
            await post_all(f"{server.url}/step", b'{"by": 1}', [rollout.cookie for rollout in rollouts], answers)
        assert [status for status, _ in answers] == [200] * 3
        assert min(seconds for _, seconds in answers) >= WAIT_SECONDS - SCHEDULING_SECONDS


async def test_without_interim_answers_a_timeout_frees_the_place_at_once() -> None:
    async with gymserve(counting(capacity=1), "--interim", "0") as server:
        await Rollout(server.url).seed()
        timed_out: list[Post] = []

        async def wait(post: Post) -> None:
            with pytest.raises(TIMEOUTS):
                await post(f"{server.url}/seed_session", b"{}", "")
            timed_out.append(post)

        async with trio.open_nursery() as nursery:
            for post in CLIENTS:
                nursery.start_soon(wait, post)
            await until(partial(is_waiting, server, 3), within_seconds=READ_TIMEOUT_SECONDS)
            assert timed_out == []
        assert len(timed_out) == 3
        await until(partial(is_waiting, server, 0), within_seconds=0.1 + SCHEDULING_SECONDS)
