"""What clients do: in good faith, without a word, twice at once, in parts, or not HTTP at all."""

import json
import random
import socket
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from soaking.http import Answer, Wire, dialled, encoded
from soaking.ledger import Ledger, Wrong
from soaking.rollout import Rollout

Part = Callable[[Rollout], Awaitable[None]]

_END_SECONDS = 30.0
_SMALL_BUFFER_BYTES = 4096
_PAUSE_SECONDS = 0.1  # after a rollout that failed: a trainer with nothing but failures does not spin either
_GARBAGE = (
    b"",
    b"\x00" * 1000,
    bytes(range(256)) * 40,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),  # a TLS client
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET / HTTP/9.9\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x",
    b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
    b"POST /verify HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n{",
    b"POST /verify HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{",
    b"POST /seed_session HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n" + b"[" * 100_000,
    b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\nx",
)


class Clients:
    """So many clients at a time, each playing one part after another. ``url`` is gymserve's."""

    def __init__(self, url: str, ledger: Ledger, seed: int) -> None:
        self._url = url
        self._ledger = ledger
        self._chance = random.Random(seed)

    async def play(self, clients: int) -> None:
        """Until cancelled; what is under way then is abandoned."""
        async with trio.open_nursery() as nursery:
            for _ in range(clients):
                nursery.start_soon(self._play_for_ever, random.Random(self._chance.random()))

    async def _play_for_ever(self, chance: random.Random) -> None:
        while True:
            [part] = chance.choices(list(PARTS), list(PARTS.values()))
            if not await self.play_one(part, chance):
                await trio.sleep(_PAUSE_SECONDS)

    async def play_one(self, part: Part, chance: random.Random) -> bool:
        """False if the environment server failed this rollout, or gymserve did."""
        rollout = Rollout(self._url, self._ledger, chance)
        try:
            await part(rollout)
        except Wrong as wrong:
            self._ledger.fault(f"{part.__name__}: {wrong}")
            return False
        except (OSError, LookupError, TypeError) as exc:  # unreachable, or an answer of another shape
            self._ledger.fault(f"{part.__name__}: {rollout}: {exc!r}")
            return False
        finally:
            await rollout.aclose()
        self._ledger.parts[part.__name__.replace("_", " ")] += 1
        return rollout.failure is None


# -- in good faith ---------------------------------------------------------------------------------------------------


async def finishes(rollout: Rollout) -> None:
    """The whole day; some verify again, and hear the same."""
    if await rollout.seed():
        await rollout.play()
    result = await rollout.verify()
    for _ in range(rollout.chance.randrange(3)):
        again = await rollout.ask("verify", rollout.result_row)
        if again.body != result:
            raise Wrong(f"{rollout}: verified again: {again.body}, not {result}")


async def verifies_early(rollout: Rollout) -> None:
    if await rollout.seed():
        await rollout.play(_some_turns(rollout))
    await rollout.verify()


async def errs_and_goes_on(rollout: Rollout) -> None:
    """Tools that there are not and arguments that are none cost nothing."""
    if await rollout.seed() and await rollout.play(_some_turns(rollout)):
        for path, body, status in (("fly", b"{}", 404), ("status", b"[1]", 422), ("dispatch", b"{", 422)):
            async with rollout.asking(path) as wire:
                answer = rollout.heard(await wire.ask(path, body, rollout.headers))
            if answer.status not in (status, 410):
                raise Wrong(f"{rollout}: {path} {body!r} answered {answer.status} {answer.body}")
    await rollout.verify()


# -- without a word --------------------------------------------------------------------------------------------------


async def abandons(rollout: Rollout) -> None:
    if await rollout.seed():
        await rollout.play(_some_turns(rollout))


async def hangs_up_while_seeding(rollout: Rollout) -> None:
    async with dialled(rollout.url) as wire:
        await _send(wire, wire.packet("seed_session", encoded(rollout.row), rollout.headers))
        await trio.sleep(rollout.chance.choice((0, 0.002, 0.02, 0.2, 1)) * rollout.chance.random())
        _leave_somehow(wire, rollout)


async def hangs_up_in_a_step(rollout: Rollout) -> None:
    if await rollout.seed() and await rollout.play(_some_turns(rollout)):
        turn = rollout.next_turn
        async with dialled(rollout.url) as wire:
            await _send(wire, wire.packet(turn.tool, encoded(turn.arguments), rollout.headers))
            rollout.turns_in_doubt = 1
            await trio.sleep(0.02 * rollout.chance.random())
            _leave_somehow(wire, rollout)
    await rollout.verify()


async def half_closes(rollout: Rollout) -> None:
    """Who closes its side waits for nothing; an answer that comes all the same is whole."""
    if await rollout.seed() and await rollout.play(_some_turns(rollout)):
        turn = rollout.next_turn
        async with dialled(rollout.url) as wire:
            await _send(wire, wire.packet(turn.tool, encoded(turn.arguments), rollout.headers))
            rollout.turns_in_doubt = 1
            await _half_close(wire)
            await _must_end(wire, rollout)
    await rollout.verify()


async def stops_reading(rollout: Rollout) -> None:
    """Many requests, whose answers fill every buffer on their way, and then nothing."""
    async with dialled(rollout.url) as wire:
        wire.stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_BUFFER_BYTES)
        request = wire.packet("gymserve/sessions", None)
        with trio.move_on_after(0.5):
            while True:
                await _send(wire, 50 * request)
        _leave_somehow(wire, rollout)


# -- twice at once ---------------------------------------------------------------------------------------------------


async def closes_twice_at_once(rollout: Rollout) -> None:
    """Beside a call, which is answered or refused."""
    if await rollout.seed() and await rollout.play(_some_turns(rollout)):
        turn = rollout.next_turn
        rollout.was_closed, rollout.turns_in_doubt = True, 1
        call, *closes = await _at_once(
            rollout, (turn.tool, turn.arguments), ("close_session", {}), ("close_session", {})
        )
        if [close.status for close in closes] != [200, 200]:
            raise Wrong(f"{rollout}: closes were answered {closes}")
        if rollout.took_turn(call):
            rollout.turns_in_doubt = 0
    await rollout.verify()


async def verifies_twice_at_once(rollout: Rollout) -> None:
    if await rollout.seed():
        await rollout.play(_some_turns(rollout) if rollout.chance.random() < 0.5 else None)
    first, second = await _at_once(rollout, *[("verify", rollout.result_row)] * 2)
    rollout.check(first)
    if first.body != second.body:
        raise Wrong(f"{rollout}: verified twice at once: {first.body} and {second.body}")


async def seeds_again(rollout: Rollout) -> None:
    """The first session is over with the second seed; nobody has its cookie any more."""
    if await rollout.seed() and await rollout.play(_some_turns(rollout)):
        rollout.turns_taken = 0
        if await rollout.seed():
            await rollout.play(_some_turns(rollout))
    await rollout.verify()


async def seeds_by_name_twice_at_once(rollout: Rollout) -> None:
    """NeMo Gym's typed sessions: equal seeds share one; what was closed by its name is not opened again."""
    name = {
        "resources_session_id": uuid.UUID(int=rollout.chance.getrandbits(128)).hex,
        "episode_id": {"rollout_id": "r"},
    }
    seed = {**name, "task_id": {"taskset": "grid", "task_id": "1"}, "task_data": rollout.row}
    first, second = await _at_once(rollout, *[("seed_session", seed)] * 2)
    if rollout.was_seeded(first) and rollout.was_seeded(second):
        if (first.body, first.cookie) != (second.body, second.cookie):
            raise Wrong(f"{rollout}: equal seeds are two sessions: {first} and {second}")
        await rollout.play(_some_turns(rollout))
    closes = await _at_once(rollout, *[("close_session", name)] * 2)
    again = await rollout.ask("seed_session", seed)
    if [answer.status for answer in (*closes, again)] != [200, 200, 409]:
        raise Wrong(f"{rollout}: closed by name and seeded again: {closes}, {again}")


# -- in parts --------------------------------------------------------------------------------------------------------


async def trickles(rollout: Rollout) -> None:
    """A body that comes byte for byte is a request like any other; one that does not come whole was none."""
    if await rollout.seed() and await rollout.play(_some_turns(rollout)):
        turn = rollout.next_turn
        async with rollout.asking(turn.tool) as wire:
            packet = wire.packet(turn.tool, encoded(turn.arguments), rollout.headers)
            await _trickle(wire, packet)
            if not rollout.took_turn(rollout.heard(await wire.answer())):
                await rollout.verify()
                return
        if not rollout.is_played_out:
            turn = rollout.next_turn
            async with dialled(rollout.url) as wire:
                await _trickle(wire, wire.packet(turn.tool, encoded(turn.arguments), rollout.headers)[:-1])
                _leave_somehow(wire, rollout)
    await rollout.verify()


async def talks_garbage(rollout: Rollout) -> None:
    async with dialled(rollout.url) as wire:
        await _send(wire, rollout.chance.choice(_GARBAGE))
        if rollout.chance.random() < 0.5:
            await _half_close(wire)
            await _must_end(wire, rollout)
        else:
            await trio.sleep(0.05 * rollout.chance.random())
            _leave_somehow(wire, rollout)


# -- another dialect -------------------------------------------------------------------------------------------------


async def plays_gymnasium(rollout: Rollout) -> None:
    """NeMo Gym's gymnasium protocol: several calls in a step, which may be repeated, and a step without any ends it."""
    if not rollout.was_seeded(await rollout.ask("reset", rollout.row)):
        return
    turns = rollout.script.turns[: rollout.chance.randrange(1, 6)]
    calls = [
        {"type": "function_call", "call_id": str(n), "name": turn.tool, "arguments": json.dumps(turn.arguments)}
        for n, turn in enumerate(turns)
    ]
    step = {**rollout.row, "_ng_step_request_id": "1", "response": {"output": calls}}
    first, second = await _at_once(rollout, ("step", step), ("step", step))
    if first.body != second.body:
        raise Wrong(f"{rollout}: a step and its repetition: {first.body} and {second.body}")
    last = await rollout.ask("step", {**rollout.row, "response": {"output": []}})
    heard = [json.loads(output["output"]) for output in first.body["info"].get("tool_outputs", [])]
    if heard and heard != [{"result": turn.result, "error": None} for turn in turns]:
        rollout.failure = "lost in a step"  # the server's doing: then the end is masked, which is checked here
    if not last.body["terminated"] or last.body["reward"] != 0.0:
        raise Wrong(f"{rollout}: the last step answered {last.body}")
    if not last.body["info"].get("mask_sample") and (rollout.failure or last.body["info"]["steps"] != len(turns)):
        raise Wrong(f"{rollout}: {heard} came to {last.body}")


# -- what they are made of -------------------------------------------------------------------------------------------


def _some_turns(rollout: Rollout) -> int:
    """So many that one is left."""
    return rollout.chance.randrange(len(rollout.script.turns))


async def _at_once(rollout: Rollout, *requests: tuple[str, Any]) -> list[Answer]:
    """Their answers, each over a connection of its own."""
    answers: list[Answer | None] = [None] * len(requests)
    wrong: list[Wrong] = []

    async def ask(number: int, path: str, body: Any) -> None:
        try:
            answers[number] = await rollout.ask(path, body)
        except Wrong as exc:
            wrong.append(exc)

    async with trio.open_nursery() as nursery:
        for number, request in enumerate(requests):
            nursery.start_soon(ask, number, *request)
    if wrong:
        raise wrong[0]
    return [answer for answer in answers if answer is not None]


async def _send(wire: Wire, packet: bytes) -> None:
    try:
        await wire.stream.send_all(packet)
    except trio.BrokenResourceError:
        pass  # refused before all of it was out


async def _trickle(wire: Wire, packet: bytes) -> None:
    head = packet.index(b"\r\n\r\n") + 4
    await _send(wire, packet[:head])
    for byte in packet[head:]:
        await _send(wire, bytes([byte]))
        await trio.sleep(0.005)


async def _half_close(wire: Wire) -> None:
    try:
        await wire.stream.send_eof()
    except trio.BrokenResourceError:
        pass


async def _must_end(wire: Wire, rollout: Rollout) -> None:
    """Whoever has closed its side is answered or left, soon."""
    try:
        with trio.fail_after(_END_SECONDS):
            received = await wire.ended()
    except trio.TooSlowError:
        raise Wrong(f"{rollout}: a connection whose client closed its side lives on after {_END_SECONDS:g} s") from None
    if b"HTTP/1.1 500" in received:
        raise Wrong(f"{rollout}: {received!r}")


def _leave_somehow(wire: Wire, rollout: Rollout) -> None:
    """With FIN or with RST, as the block ends."""
    if rollout.chance.random() < 0.5:
        wire.reset_on_close()


#: How often which part is played, in relation.
PARTS: dict[Part, int] = {
    finishes: 20,
    verifies_early: 3,
    errs_and_goes_on: 2,
    abandons: 4,
    hangs_up_while_seeding: 4,
    hangs_up_in_a_step: 4,
    half_closes: 3,
    stops_reading: 1,
    closes_twice_at_once: 4,
    verifies_twice_at_once: 3,
    seeds_again: 2,
    seeds_by_name_twice_at_once: 3,
    trickles: 2,
    talks_garbage: 4,
    plays_gymnasium: 3,
}
