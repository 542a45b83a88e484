"""Many servers and many runs as users have them: processes that die under load, an evaluation beside a training run."""

import signal
from collections import Counter
from contextlib import ExitStack
from typing import Any

import trio
from processes import Rollout, Server, running, sessions, until

CALLS = 2  # of a day of 24 hours, which then is not over: what was earned so far is the score
SLOTS = 6  # of each server
PROCESS_SECONDS = 30.0  # for what other processes do, on a busy machine
RUN_SECONDS = 120.0


class Run:
    """Rollouts of GridSim, all at once, each with a label that ``/gymserve/sessions`` shows."""

    def __init__(self, url: str, label: str) -> None:
        self.url = url
        self.label = label
        self.results: dict[str, Any] = {}
        self.failures: list[str] = []

    async def play(self, count: int) -> None:
        async with trio.open_nursery() as nursery:
            for number in range(count):
                nursery.start_soon(self._rollout, f"{self.label}-{number}")

    async def _rollout(self, label: str) -> None:
        client = Rollout(self.url, answer_seconds=RUN_SECONDS)
        if not await self.seed(client, label):
            return
        for _ in range(CALLS):
            await client.post("dispatch", {"battery_mw": 0})  # of a lost one: answered, that there is no point
        verified = await client.verify()
        self.results[label] = (verified.status_code, verified.json())

    async def seed(self, client: Rollout, label: str) -> bool:
        seeded = await client.post("seed_session", {"gymserve_label": label, "reset_kwargs": {"day": 3}})
        if seeded.status_code != 200:
            self.failures.append(seeded.text)
            return False
        client.cookie = client.handed_out[-1]
        return True

    @property
    def masked(self) -> dict[str, str]:
        """The labels of the masked rollouts, and why."""
        results = self.results.items()
        return {label: result["failure_reason"] for label, (_, result) in results if "mask_sample" in result}


async def labels_at(url: str, env: str) -> set[str]:
    return {session["label"] for session in (await sessions(url))["sessions"] if session["env"] == env}


async def state_of(url: str, env: str) -> str:
    return str({server["url"]: server["state"] for server in (await sessions(url))["servers"]}[env])


def port_of(server: Server) -> int:
    return int(server.url.rpartition(":")[2])


async def test_of_200_rollouts_only_those_on_a_killed_server_are_lost_and_the_pool_heals() -> None:
    async def are_finished(count: int) -> bool:
        return len(run.results) >= count

    async def is_in_use(env: Server) -> bool:
        return len(await labels_at(gymserve.url, env.url)) >= SLOTS / 2

    with ExitStack() as servers:
        killed, stopped, steady = [
            servers.enter_context(running("env", "--capacity", str(SLOTS), "--fault", "slow-step:0.1"))
            for _ in range(3)
        ]
        pool = [part for env in (killed, stopped, steady) for part in ("--env", env.url)]
        gymserve = servers.enter_context(running("serve", *pool, "--patience", str(RUN_SECONDS)))
        run = Run(gymserve.url, "run")
        with trio.fail_after(RUN_SECONDS):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run.play, 200)
                await until(lambda: are_finished(40), within_seconds=PROCESS_SECONDS)
                await until(lambda: is_in_use(stopped), within_seconds=PROCESS_SECONDS)
                stopped.send(signal.SIGSTOP)
                held_by_stopped = await labels_at(gymserve.url, stopped.url)
                await until(lambda: is_in_use(killed), within_seconds=PROCESS_SECONDS)
                killed.send(signal.SIGKILL)
                await until(lambda: are_finished(100), within_seconds=PROCESS_SECONDS)
                stopped.send(signal.SIGCONT)
                servers.enter_context(
                    running("env", "--capacity", str(SLOTS), "--fault", "slow-step:0.1", port=port_of(killed))
                )
                await until(lambda: is_in_use(killed), within_seconds=PROCESS_SECONDS)
        assert (run.failures, len(run.results)) == ([], 200)
        assert 0 < len(run.masked) <= SLOTS
        assert all(why.endswith("the server dropped the connection") for why in run.masked.values())
        assert not held_by_stopped & run.masked.keys()
        scores = Counter((status, result["reward"], result["steps"]) for status, result in run.results.values())
        good, bad = 200 - len(run.masked), len(run.masked)
        assert [count for (status, _, steps), count in scores.items() if (status, steps) == (200, CALLS)] == [good]
        assert sum(count for (status, *_), count in scores.items() if status == 503) == bad
        assert (await sessions(gymserve.url))["sessions"] == []
        assert [await state_of(gymserve.url, env.url) for env in (killed, stopped, steady)] == ["ready"] * 3


async def test_an_evaluation_with_a_reserve_starts_at_once_beside_silent_sessions() -> None:
    async def open_evaluations() -> int:
        return sum(s["label"].startswith("eval") for s in (await sessions(gymserve.url))["sessions"])

    with running("env", "--capacity", "64", "--fault", "slow-step:0.1") as env:
        pool = ["--env", f"{env.url} slots=64", "--label", "eval*=reserve:16", "--patience", str(RUN_SECONDS)]
        with running("serve", *pool) as gymserve, trio.fail_after(RUN_SECONDS):
            training, evaluation = Run(gymserve.url, "train"), Run(gymserve.url, "eval")
            async with trio.open_nursery() as nursery:
                for number in range(56):  # and never heard of again
                    nursery.start_soon(training.seed, Rollout(gymserve.url, answer_seconds=RUN_SECONDS), f"t{number}")

                async def all_wait() -> bool:
                    listed = await sessions(gymserve.url)
                    return (len(listed["sessions"]), listed["waiting"]) == (48, 8)

                await until(all_wait, within_seconds=PROCESS_SECONDS)
                most_open = 0
                async with trio.open_nursery() as evaluating:
                    evaluating.start_soon(evaluation.play, 200)
                    while len(evaluation.results) < 200:
                        most_open = max(most_open, await open_evaluations())
                        await trio.sleep(0.02)
                nursery.cancel_scope.cancel()
            assert (evaluation.failures, evaluation.masked, most_open) == ([], {}, 16)
