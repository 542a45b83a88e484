"""Rollouts of verifiers that can be cancelled one by one, as its env server runs them for prime-rl: a process that
takes orders on stdin, a line of JSON each, and tells on stdout what became of them.

    {"start": NAME, "dataset": FILE, "model": NAME, "task": {"resources_url": ..., ...}}
    {"cancel": NAME}

Finished rollouts are appended to ``traces.jsonl``, as by ``vf-eval``.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from verifiers.v1.clients import ModelContext
from verifiers.v1.configs.cli.eval import EvalConfig
from verifiers.v1.configs.client import EvalClientConfig
from verifiers.v1.env import Env
from verifiers.v1.episode import Episode
from verifiers.v1.tasksets.nemo_gym import NeMoGymConfig, NeMoGymTask, NeMoGymTaskset
from verifiers.v1.utils.loaders import load_environment
from verifiers.v1.utils.trace_store import append_episode


def tell(**words: str) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


class Driver:
    def __init__(self, env: Env, directory: Path, model_url: str) -> None:
        self._env = env
        self._directory = directory
        self._client = EvalClientConfig(base_url=model_url, api_key_var="FAKE_KEY")
        self._writing = asyncio.Lock()
        self._running: dict[str, asyncio.Task[None]] = {}

    async def obey(self, orders: asyncio.StreamReader) -> None:
        async for line in orders:
            order = json.loads(line)
            if "cancel" in order:
                self._running[order["cancel"]].cancel()
            else:
                self._running[order["start"]] = asyncio.create_task(self._run(order["start"], order))

    async def _run(self, name: str, order: dict[str, Any]) -> None:
        async def keep(episode: Episode) -> None:
            episode.traces[0].info["name"] = name
            await append_episode(self._directory, episode, self._writing)

        [slot] = self._env.slots(load_task(order), 1)
        try:
            await self._env.run_slot(slot, ModelContext(order["model"], self._client), None, keep)
        except asyncio.CancelledError:
            tell(cancelled=name)
        else:
            tell(finished=name)


def load_task(order: dict[str, Any]) -> NeMoGymTask:
    config = NeMoGymConfig.model_validate({"id": "nemo-gym", "dataset": order["dataset"], "task": order["task"]})
    [task] = NeMoGymTaskset(config).load()
    return task


async def main(directory: Path, model_url: str) -> None:
    task = {"resources_url": "http://given-with-each-rollout.invalid"}
    taskset = {"id": "nemo-gym", "dataset": str(directory / "given-with-each-rollout.jsonl"), "task": task}
    agent = {"harness": {"id": "verifiers_quick_harness"}, "runtime": {"type": "subprocess"}}
    env = load_environment(EvalConfig.model_validate({"env": {"taskset": taskset, "agent": agent}}).env)
    orders = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    async with env.serving():
        tell(serving="nemo-gym")
        await Driver(env, directory, model_url).obey(orders)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
