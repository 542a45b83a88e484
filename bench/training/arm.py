"""One run of the incident: the servers, a trainer by prime-rl's rules before them, and the record of it."""

import json
import os
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from server import Server, python
from soaking.environment import reserved_port
from soaking.http import Unanswered, get

from gymserve.address import parse_address
from gymserve.gridsim.day import TRAINING_DAYS
from training.direct import Direct
from training.dispatcher import Dispatcher, Group
from training.environment import DOWN, Event, write
from training.incident import (
    CLIENT_HANDSHAKE_SECONDS,
    CLOSE_SECONDS,
    CLOSE_TIMEOUT_SECONDS,
    GROUP_SIZE,
    INTERIM_SECONDS,
    OUTAGE_SECONDS,
    RESTART_PATIENCE_SECONDS,
    SLOTS,
    STEP_TIMEOUT_SECONDS,
    Pace,
)
from training.learner import Learner
from training.playing import OpenTools
from training.record import Arm, Batch, Plan, Record, Rollout
from training.resources import Resources
from training.sink import RunAborted, Sink

_POLL_SECONDS = 0.1
_SETTLE_SECONDS = 10.0


class EnvironmentProcess:
    """The environment server at ``port``, which can be made to crash and come again."""

    def __init__(self, port: int, scale: float, folder: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.events = folder / "events"
        self._log = folder / "environment.log"
        self._arguments = [
            "-m",
            "training.environment",
            "--port",
            str(port),
            "--slots",
            str(SLOTS),
            "--scale",
            str(scale),
        ]
        self._arguments += ["--events", str(self.events)]
        self._server: Server | None = None

    async def start(self, listen_at: float = 0.0) -> None:
        """:raises ServerFailed"""
        self._server = Server(python(*self._arguments, "--listen-at", str(listen_at)), self._log)
        await self._server.listening()

    def kill(self) -> None:
        if self._server is not None:
            self._server.kill()

    async def crash(self, for_seconds: float) -> tuple[float, float]:
        """Be down for so long; from when to when. :raises ServerFailed"""
        self.kill()
        down_at = time.monotonic()
        with self.events.open("a") as events:
            write(events, Event(down_at, DOWN))
        await self.start(down_at + for_seconds)
        return down_at, time.monotonic()

    async def held(self) -> int | None:
        """Slots that are held; None where it does not say."""
        try:
            return int((await get(self.url, "gymserve/episodes"))["active"])
        except (OSError, Unanswered):
            return None


class Training:
    """The trainer: complete groups go to the sink, a batch makes a step, some steps an evaluation."""

    def __init__(self, plan: Plan, open_tools: OpenTools, environment: EnvironmentProcess, record: Record) -> None:
        self._plan = plan
        self._environment = environment
        self._record = record
        self._learner = Learner()
        self._sink = Sink()
        days = random.Random(plan.seed).sample(TRAINING_DAYS, len(TRAINING_DAYS))
        self._days = days
        self.dispatcher = Dispatcher(open_tools, Pace(plan.scale), seed=plan.seed, next_group=self._next_group)
        self.dispatcher.on_complete = self._completed
        self._outage = trio.Event()

    async def run(self) -> None:
        """To the end of the last evaluation, or until it gives up."""
        self._evaluate(0)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._suffer_outage)
                await self.dispatcher.run()
                nursery.cancel_scope.cancel()
        except* RunAborted as group:
            self._record.aborted = str(leaf(group))
        self._record.ended_at = time.monotonic()
        self._record.rollouts = [Rollout.of(flight) for flight in self.dispatcher.flights]
        sink = self._sink
        self._record.groups = {
            "partial": sink.groups_partial,
            "dropped": sink.groups_dropped,
            "pruned": sink.groups_pruned,
        }

    def _next_group(self, number: int) -> Group:
        day = self._days[number % len(self._days)]
        return Group(number, "train", day, self._learner.policy, 0, GROUP_SIZE, GROUP_SIZE)

    def _completed(self, group: Group) -> None:
        if group.kind == "eval" or self._learner.policy.version >= self._plan.steps:
            return
        self._sink.add(group)
        while (batch := self._sink.batch(self._learner.policy.version)) is not None:
            self._learner.learn(batch)
            version = self._learner.policy.version
            rewards = [sample.trajectory.reward for sample in batch]
            self._record.batches.append(Batch(time.monotonic(), version, rewards))
            self._stepped(version)

    def _stepped(self, version: int) -> None:
        if version == self._plan.outage_after:
            self._outage.set()
        self._evaluate(version)
        if version >= self._plan.steps:
            self._sink.pending.clear()
            self.dispatcher.stop_training()
        else:
            self.dispatcher.drop_stale(version)

    def _evaluate(self, step: int) -> None:
        if step in self._plan.evaluated_steps:
            self.dispatcher.evaluate(step, self._learner.policy, self._plan.days)

    async def _suffer_outage(self) -> None:
        await self._outage.wait()
        self._record.outage = await self._environment.crash(Pace(self._plan.scale).seconds(OUTAGE_SECONDS))


def leaf(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first = group.exceptions[0]
    return leaf(first) if isinstance(first, BaseExceptionGroup) else first


async def run_arm(arm: Arm, plan: Plan, folder: Path) -> Record:
    """Run it, and wait for its slots. :param folder: for logs. :raises ServerFailed"""
    with reserved_port() as port:
        environment = EnvironmentProcess(port, plan.scale, folder)
        try:
            await environment.start()
            async with way_to(arm, plan, environment.url, folder) as open_tools:
                record = Record(arm.name, plan, time.monotonic(), load_average=round(os.getloadavg()[0], 2))
                await Training(plan, open_tools, environment, record).run()
                record.slots_left = await settled(environment, arm, Pace(plan.scale))
        finally:
            environment.kill()
    record.events = [Event(**json.loads(line)) for line in environment.events.read_text().splitlines()]
    return record


@asynccontextmanager
async def way_to(arm: Arm, plan: Plan, environment_url: str, folder: Path) -> AsyncIterator[OpenTools]:
    if arm.patience_seconds is None:
        yield Direct(parse_address(environment_url), Pace(plan.scale)).open
        return
    arguments = gymserve_arguments(arm, Pace(plan.scale), environment_url)
    with Server(python("-m", "gymserve", *arguments), folder / "serve.log") as server:
        yield Resources(await server.listening()).open


def gymserve_arguments(arm: Arm, pace: Pace, environment_url: str) -> Sequence[str]:
    assert arm.patience_seconds is not None and arm.idle_seconds is not None
    flags = {
        "patience": arm.patience_seconds,
        "idle-timeout": arm.idle_seconds,
        "connect-timeout": CLIENT_HANDSHAKE_SECONDS,
        "restart-patience": RESTART_PATIENCE_SECONDS,
        "close-timeout": CLOSE_TIMEOUT_SECONDS,
        "step-timeout": STEP_TIMEOUT_SECONDS,
        "interim": INTERIM_SECONDS,
        "keepalive": 0.0,  # this server reaps nobody
    }
    scaled = [part for name, seconds in flags.items() for part in (f"--{name}", f"{pace.seconds(seconds):g}")]
    return ["serve", "--port", "0", "--env", environment_url, *scaled]


async def settled(environment: EnvironmentProcess, arm: Arm, pace: Pace) -> int | None:
    """Slots that are held when all that was abandoned should be long gone."""
    held: int | None = None
    longest = pace.seconds((arm.idle_seconds or 0) + CLOSE_SECONDS) + _SETTLE_SECONDS
    with trio.move_on_after(longest):
        while (held := await environment.held()) != 0:  # noqa: ASYNC110 - it happens in another process
            await trio.sleep(_POLL_SECONDS)
    return held
