"""The journal: what a gymserve that follows another can tell of its sessions, and what becomes of a damaged file."""

import json
import math
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from counting import Counting
from full_disk import full_at
from stage import COOKIE, Client, Stage, raise_the_curtain
from structlog.testing import capture_logs

from gymserve.gridsim.server import EnvironmentServer
from gymserve.journal import Journal, JournalFailed, open_journal
from gymserve.score import Ending, Score, Tombstone

FIRST, SECOND, THIRD = "00000001", "00000002", "00000003"
RESTARTED = "gymserve was restarted while this session was under way; what it had earned is lost"
KEPT_SECONDS = 900.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


@asynccontextmanager
async def gymserve(path: Path, instance: str) -> AsyncIterator[Stage]:
    async with (
        open_journal(path, instance, kept_seconds=KEPT_SECONDS) as journal,
        raise_the_curtain(
            EnvironmentServer(Counting), instance=instance, journal=journal, longest_seconds=math.inf
        ) as stage,
    ):
        yield stage


def returning(stage: Stage, client: Client) -> Client:
    """The same client after a restart."""
    again = stage.client()
    again.cookies = client.cookies
    return again


def session_id(client: Client) -> str:
    [value] = client.cookies.values()
    found = COOKIE.session_id(value)
    assert found is not None
    return found


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def stone(reward: float = 0.5, *, seconds_ago: float = 0.0) -> Tombstone:
    return Tombstone(Ending.VERIFIED, "verified", time.time() - seconds_ago, Score(reward, False, 3), True)


async def result_after_a_restart(path: Path, client: Client, instance: str = SECOND) -> Any:
    async with gymserve(path, instance) as stage:
        return (await returning(stage, client).verify()).body


# Over a restart


async def test_scores_are_told_again_and_what_was_under_way_is_masked(autojump_clock, path):
    async with gymserve(path, FIRST) as stage:
        verified, done, idle, reclaimed = (stage.client() for _ in range(4))
        for client in (verified, done, idle):
            await client.seed({"reset_kwargs": {"target": 4}})
        await reclaimed.seed(**{"X-Gymserve-Idle-Timeout": "50"})
        for client in (verified, done, done, idle):
            await client.step(2)
        told = (await verified.verify(task=7)).body
        await trio.sleep(60)
        killed = path.read_bytes()  # SIGKILL leaves the file as it is in this moment
    path.write_bytes(killed)
    async with gymserve(path, SECOND) as stage:
        verified, done, idle, reclaimed = (returning(stage, client) for client in (verified, done, idle, reclaimed))
        assert (await verified.verify(task=7)).body == told
        assert told["reward"] == 0.5
        score = (await done.verify()).body
        assert (score["reward"], score["done"], score["steps"], "mask_sample" in score) == (1.0, True, 2, False)
        lost = (await idle.verify()).body
        assert (lost["mask_sample"], lost["failure_kind"], lost["failure_reason"]) == (True, "session_lost", RESTARTED)
        expired = (await reclaimed.verify()).body
        assert (expired["failure_kind"], expired["failure_reason"]) == (
            "session_expired",
            "no request for 50 s, the idle timeout",
        )
        calls = [await client.step() for client in (verified, done, idle, reclaimed)]
        assert [(call.status, call.body["error"]) for call in calls] == [
            (410, "session_closed"),
            (410, "session_closed"),
            (404, "no_session"),
            (410, "session_expired"),
        ]
        assert (await idle.seed()).status == 200


async def test_a_score_outlives_several_restarts(autojump_clock, path):
    async with gymserve(path, FIRST) as stage:
        client = stage.client()
        await client.seed()
        await client.step(3)
        told = (await client.verify()).body
    assert [await result_after_a_restart(path, client, instance) for instance in (SECOND, THIRD)] == [told, told]
    assert [entry["instance"] for entry in lines(path) if "instance" in entry] == [FIRST, SECOND, THIRD]


async def test_a_session_of_another_gymserve_is_told_apart(autojump_clock, path, tmp_path):
    async with gymserve(tmp_path / "other.jsonl", THIRD) as stage:
        client = stage.client()
        await client.seed()
    result = await result_after_a_restart(path, client)
    assert (result["mask_sample"], result["failure_reason"]) == (
        True,
        "another gymserve opened this session: one that was restarted, or one at another address",
    )


async def test_a_gymserve_that_stops_writes_down_why(autojump_clock, path):
    async with gymserve(path, FIRST) as stage:
        client = stage.client()
        await client.seed()
        await stage.gateway.drain(3)
    assert (await result_after_a_restart(path, client))["failure_kind"] == "shutdown"


async def test_with_a_journal_a_gateway_ends_no_later(autojump_clock, path):
    async with gymserve(path, FIRST) as stage:
        await stage.client().seed()
        await trio.sleep(5)
    assert trio.current_time() == 5


async def test_the_file_opens_nothing(autojump_clock, path):
    async with gymserve(path, FIRST) as stage:
        client = stage.client()
        await client.seed()
        await client.verify()
    [secret] = client.cookies.values()
    text = path.read_text()
    assert len(text.splitlines()) == 2
    assert session_id(client)[:12] not in text
    assert secret.rpartition(".")[2] not in text


# The file


async def test_what_nobody_asks_for_any_more_is_left_out(autojump_clock, path):
    async with open_journal(path, FIRST, kept_seconds=KEPT_SECONDS) as journal:
        journal.append("young", stone(seconds_ago=KEPT_SECONDS - 60))
        journal.append("old", stone(seconds_ago=KEPT_SECONDS + 60))
        journal.append("of a clock that was set back since", stone(seconds_ago=-3600))
    path.write_text(path.read_text() + json.dumps({"instance": THIRD, "started": time.time() - 8 * 86400}) + "\n")
    async with open_journal(path, SECOND, kept_seconds=KEPT_SECONDS) as journal:
        known = [
            journal.get(each) is not None for each in ("young", "old", "of a clock that was set back since", "never")
        ]
        assert known == [True, False, True, False]
        assert [journal.knows_instance(each) for each in (FIRST, SECOND, THIRD)] == [True, True, False]
        assert len(lines(path)) == 4
        await trio.sleep(KEPT_SECONDS)
        assert journal.get("young") is None


@pytest.mark.parametrize(
    "garbage",
    [
        b"\n",
        b"\x00\xff garbage\n",
        b"[" * 100_000 + b"\n",
        b'{"session":"x"}\n',
        b"7\n",
        b'"instance"\n',
        b"[]\n",
        b'{"session":"x","stone":{"ending":"NO_SUCH_ENDING"}}\n',
    ],
)
async def test_a_damaged_line_costs_no_other(autojump_clock, path, garbage):
    async with open_journal(path, FIRST, kept_seconds=KEPT_SECONDS) as journal:
        journal.append("a", stone(0.25))
        journal.append("b", stone(0.75))
    first, *others = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([first, garbage, *others]))
    with capture_logs() as logs:
        async with open_journal(path, SECOND, kept_seconds=KEPT_SECONDS) as journal:
            assert [journal.get(each).score.reward for each in ("a", "b")] == [0.25, 0.75]
    assert [(entry["log_level"], entry["lines"]) for entry in logs] == [("warning", 1)]
    assert len(lines(path)) == 4


@pytest.mark.parametrize("cut_bytes", [1, 2, 40])
async def test_a_last_line_that_a_crash_cut_off_is_none(autojump_clock, path, cut_bytes):
    async with open_journal(path, FIRST, kept_seconds=KEPT_SECONDS) as journal:
        journal.append("whole", stone(0.25))
        journal.append("torn", stone(0.75))
    path.write_bytes(path.read_bytes()[:-cut_bytes])
    async with open_journal(path, SECOND, kept_seconds=KEPT_SECONDS) as journal:
        assert journal.get("whole") is not None
        assert (journal.get("torn") is not None) == (cut_bytes == 1)  # only its end was missing
        journal.append("next", stone(1.0))
    async with open_journal(path, THIRD, kept_seconds=KEPT_SECONDS) as journal:
        assert journal.get("next") is not None


async def until(holds: Callable[[], bool]) -> None:
    """What threads do is no matter of the clock's."""
    give_up_at = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < give_up_at
        await trio.to_thread.run_sync(time.sleep, 0.01)


async def refusal(path: Path) -> str:
    with pytest.raises(JournalFailed) as failed:
        async with open_journal(path, FIRST, kept_seconds=KEPT_SECONDS):
            raise AssertionError("it was used")
    return str(failed.value).replace(str(path.parent), "DIR")


async def test_what_is_no_journal_is_left_as_it_is(autojump_clock, path):
    path.write_text('{"reward": 1.0}\n{"reward": 0.0}\n')
    assert (
        await refusal(path)
        == "DIR/journal.jsonl is no journal of gymserve, and would be overwritten; name another file"
    )
    assert path.read_text() == '{"reward": 1.0}\n{"reward": 0.0}\n'


async def test_a_file_that_cannot_be_used_is_told_in_a_sentence(autojump_clock, path):
    (path.parent / "folder").mkdir()
    assert await refusal(path.parent / "folder") == "the journal DIR/folder cannot be used: Is a directory"
    assert await refusal(path / "no" / "such") == "the journal DIR/such cannot be used: No such file or directory"
    os.mkfifo(path)
    assert await refusal(path) == "the journal DIR/journal.jsonl cannot be used: it is no file"


async def test_a_link_is_followed(autojump_clock, path, tmp_path):
    target = tmp_path / "target"
    path.symlink_to(target)
    async with open_journal(path, FIRST, kept_seconds=KEPT_SECONDS) as journal:
        journal.append("a", stone())
    assert path.is_symlink()
    assert len(lines(target)) == 2


# One process at a time


async def test_a_journal_in_use_is_refused(autojump_clock, path):
    async with open_journal(path, FIRST, kept_seconds=KEPT_SECONDS) as journal:
        started = trio.current_time()
        assert await refusal(path) == (
            "the journal DIR/journal.jsonl is in use by another gymserve; each needs one of its own"
        )
        assert trio.current_time() - started == 5
        journal.append("a", stone())
    assert len(lines(path)) == 2


async def test_a_predecessor_that_is_about_to_end_is_waited_for(autojump_clock, path):
    async def precede(*, task_status: trio.TaskStatus[None]) -> None:
        async with open_journal(path, FIRST, kept_seconds=KEPT_SECONDS) as journal:
            task_status.started()
            await trio.sleep(2)
            journal.append("its last", stone())

    async with trio.open_nursery() as nursery:
        await nursery.start(precede)
        async with open_journal(path, SECOND, kept_seconds=KEPT_SECONDS) as journal:
            assert journal.get("its last") is not None
            assert 2 <= trio.current_time() <= 2.2


# A disk that is full


async def test_a_full_disk_ends_no_session_and_loses_nothing_when_there_is_room_again(autojump_clock, path):
    with capture_logs() as logs:
        async with gymserve(path, FIRST) as stage:
            clients = [stage.client() for _ in range(4)]
            results = []
            with full_at(path.stat().st_size + 700) as make_room:  # room for one line and a part of the next
                for client in clients[:3]:
                    await client.seed()
                    await client.step(2)
                    results.append((await client.verify()).body)
                await trio.sleep(60)  # one error, however often it is tried again
                torn = path.read_bytes()
                make_room()
            assert torn.count(b"\n") < 4
            assert not torn.endswith(b"\n")
            await until(lambda: path.read_bytes().count(b"\n") == 4)  # though nobody ends who could remind it
            await clients[3].seed()
            results.append((await clients[3].verify()).body)
    assert [entry["reason"] for entry in logs if entry["log_level"] == "error"] == ["File too large"]
    assert [result["reward"] for result in results] == [0.2, 0.2, 0.2, 0.0]
    for client, told in zip(clients, results, strict=True):
        assert await result_after_a_restart(path, client) == told


@pytest.mark.parametrize("becomes", ["removed", "renamed"])
async def test_a_journal_that_is_taken_away_is_begun_anew(autojump_clock, path, becomes):
    with capture_logs() as logs:
        async with gymserve(path, FIRST) as stage:
            before, after = stage.client(), stage.client()
            await before.seed()
            await before.verify()
            path.unlink() if becomes == "removed" else path.rename(path.with_name("elsewhere"))
            await after.seed()
            await after.step(2)
            scored = await after.verify()
            await trio.sleep(1)
        async with gymserve(path, SECOND) as stage:
            assert (await returning(stage, after).verify()).body["reward"] == scored.body["reward"] == 0.2
            assert (await returning(stage, before).verify()).body["failure_reason"] == RESTARTED
    told = [line["event"] for line in logs if line["log_level"] == "error"]
    assert told == ["the journal was removed or replaced, and is begun anew; a restart would lose what it held"]


async def test_no_journal_grows_for_ever(autojump_clock, path):
    def append(journal: Journal, count: int, reward: float) -> None:
        long = Tombstone(Ending.LOST, "x" * 2**20, time.time(), Score(reward, False), False)
        for number in range(count):
            journal.append(f"{reward}-{number}", long)

    old = path.with_name(f"{path.name}.old")
    async with open_journal(path, FIRST, kept_seconds=KEPT_SECONDS) as journal, trio.open_nursery() as nursery:
        nursery.start_soon(journal.run)
        append(journal, 33, 1.0)
        await trio.sleep(1)
        assert not old.exists()  # all of it may be asked for
        await trio.sleep(KEPT_SECONDS)
        append(journal, 1, 2.0)
        await until(old.exists)
        await until(lambda: path.exists() and path.stat().st_size < 1000)
        append(journal, 1, 3.0)
        await trio.sleep(1)
        assert (old.stat().st_size > 34 * 2**20, 2**20 < path.stat().st_size < 2**21) == (True, True)
        nursery.cancel_scope.cancel()
    async with open_journal(path, SECOND, kept_seconds=KEPT_SECONDS) as journal:
        assert [journal.get(each) is not None for each in ("1.0-0", "2.0-0", "3.0-0")] == [True, True, True]
        assert journal.knows_instance(FIRST)
        assert not old.exists()
