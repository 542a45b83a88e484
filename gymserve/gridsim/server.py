"""An OpenEnv environment server on Trio, over sockets or any stream; it needs no thread and no clock but Trio's."""

import inspect
import logging
from collections.abc import Callable, Iterable
from contextlib import closing
from functools import partial
from typing import Any

import h11
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_server_stream

from gymserve import __version__
from gymserve.gridsim.environment import Environment
from gymserve.gridsim.episode import HostedEpisode
from gymserve.gridsim.farewell import Farewell
from gymserve.gridsim.faults import Fault, FaultPlan
from gymserve.gridsim.http import Head, HttpConnection, end_gently
from gymserve.gridsim.slots import Slots, capacity_refusal
from gymserve.gridsim.upgrade import UpgradeStream
from gymserve.wire import FACTORY_ERROR, Refusal

_HANDSHAKE_SECONDS = 10
_STOP_SECONDS = 2
_MAX_MESSAGE_BYTES = 16 * 2**20  # uvicorn's ws_max_size
_QUEUED_MESSAGES = 32  # uvicorn's ws_max_queue; pings are answered as long as no more are waiting
_RECEIVE_BYTES = 64 * 1024

_STATE_SCHEMA = {
    "title": "State",
    "type": "object",
    "properties": {
        "episode_id": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None, "title": "Episode Id"},
        "step_count": {"type": "integer", "minimum": 0, "default": 0, "title": "Step Count"},
    },
}

_log = logging.getLogger(__name__)


class EnvironmentServer:
    """Serves ``capacity`` episodes at once, each with an environment of its own from ``make_environment``.

    Every answer, its order and its timing is OpenEnv's: the upgrade comes before the capacity check, a step is
    never cut short, and a slot is held until the environment's ``close`` has returned.

    :param ping_interval_seconds: how long after the last pong a client is pinged again (uvicorn's 20; inf: never).
    :param ping_timeout_seconds: how long it has to answer before it is dropped with CLOSE 1011.
    :raises ValueError: ``capacity`` is less than 1, or a fault is named twice.
    """

    def __init__(
        self,
        make_environment: Callable[[], Environment],
        *,
        capacity: int = 8,
        faults: Iterable[Fault] = (),
        ping_interval_seconds: float = 20,
        ping_timeout_seconds: float = 20,
    ) -> None:
        self._make_environment = make_environment
        self._slots = Slots(capacity)
        self._faults = FaultPlan(faults)
        self._ping_interval_seconds = ping_interval_seconds
        self._ping_timeout_seconds = ping_timeout_seconds
        self._stopping = trio.Event()

    @property
    def episodes(self) -> dict[str, int]:
        """``active`` (slots held), ``max``, and how many were ever ``opened`` and ``closed``."""
        return self._slots.counts()

    def stop(self) -> None:
        """Accept no more and say CLOSE 1012 to every client at once.

        `listen` returns when all connections are over; steps that still run after 2 s are cut short.
        """
        self._stopping.set()

    async def listen(
        self, host: str, port: int, *, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve at ``host`` and ``port`` (0: any free one) until `stop`; started with the port.

        :raises OSError: the address cannot be bound.
        """
        listeners = await trio.open_tcp_listeners(port, host=host)
        if port == 0:  # each address of a host would get a port of its own
            for listener in listeners[1:]:
                await listener.aclose()
            del listeners[1:]
        async with trio.open_nursery() as connections, trio.open_nursery() as accepting:
            serve = partial(trio.serve_listeners, self.serve_stream, listeners, handler_nursery=connections)
            await accepting.start(serve)
            task_status.started(listeners[0].socket.getsockname()[1])
            await self._stopping.wait()
            connections.cancel_scope.deadline = trio.current_time() + _STOP_SECONDS
            accepting.cancel_scope.cancel()

    async def serve_stream(self, stream: trio.abc.Stream) -> None:
        """Serve one connection, to its end. A failure in it is logged and harms no other."""
        try:
            async with stream:
                await trio.sleep(self._faults.silent_handshake_seconds)
                await self._serve(stream)
        except* (trio.BrokenResourceError, trio.ClosedResourceError, ConnectionClosed):
            pass  # the peer is gone
        except* Exception:
            _log.exception("a connection failed")

    async def _serve(self, stream: trio.abc.Stream) -> None:
        connection = HttpConnection(stream)
        try:
            head = await connection.read_head()
        except h11.RemoteProtocolError as exc:
            await connection.answer(exc.error_status_hint, {"detail": str(exc)})
            return
        if head is None:
            return
        if not head.upgrades_to_websocket:
            await self._answer_http(connection, head)
        elif head.path != "/ws":
            await connection.answer(403, {"detail": "Forbidden"})
        else:
            await self._serve_websocket(connection.rewound())
            await end_gently(stream)

    async def _answer_http(self, connection: HttpConnection, head: Head) -> None:
        documents = {
            "/health": lambda: {"status": "healthy"},
            "/schema": self._schema,
            "/metadata": self._metadata,
            "/gymserve/episodes": self._slots.counts,
        }
        document = documents.get(head.path)
        if document is None:
            await connection.answer(404, {"detail": "Not Found"})
        elif head.method != "GET":
            await connection.answer(405, {"detail": "Method Not Allowed"})
        else:
            await connection.answer(*_made(document))

    def _schema(self) -> dict[str, Any]:
        with closing(self._make_environment()) as sample:
            return {
                "action": sample.action_schema,
                "observation": sample.observation_schema,
                "state": _STATE_SCHEMA,
            }

    def _metadata(self) -> dict[str, Any]:
        with closing(self._make_environment()) as sample:
            description = inspect.getdoc(type(sample)) or ""
            return {"name": type(sample).__name__, "description": description, "version": __version__}

    async def _serve_websocket(self, stream: UpgradeStream) -> None:
        async with trio.open_nursery() as nursery:
            request = None
            with trio.move_on_after(_HANDSHAKE_SECONDS):  # trio-websocket itself waits for ever for a valid upgrade
                request = await wrap_server_stream(
                    nursery,
                    stream,
                    message_queue_size=_QUEUED_MESSAGES,
                    max_message_size=_MAX_MESSAGE_BYTES,
                    receive_buffer_size=_RECEIVE_BYTES,
                )
            if request is not None:
                await trio.sleep(self._faults.slow_handshake_seconds)
                ws = await request.accept()
                stream.accepted()
                farewell = Farewell(ws)
                nursery.start_soon(farewell.say_when, self._stopping)
                nursery.start_soon(
                    farewell.say_unless_answered, self._ping_interval_seconds, self._ping_timeout_seconds
                )
                await self._admit(ws, stream)
                await farewell.say()
            nursery.cancel_scope.cancel()

    async def _admit(self, ws: WebSocketConnection, stream: trio.abc.Stream) -> None:
        if self._faults.full or not self._slots.take():
            await ws.send_message(capacity_refusal(self._slots).encode())
            return
        try:
            await self._host(ws, stream)
        finally:
            self._slots.give_back()

    async def _host(self, ws: WebSocketConnection, stream: trio.abc.Stream) -> None:
        try:
            environment = self._make_environment()
        except Exception:
            _log.exception("the environment could not be made")
            name = getattr(self._make_environment, "__name__", type(self._make_environment).__name__)
            sentence = f"Environment factory '{name}' failed to create instance."
            await ws.send_message(Refusal(FACTORY_ERROR, sentence, factory_name=name).encode())
            return
        await HostedEpisode(ws, environment, self._faults, drop=stream.aclose).run()


def _made(document: Callable[[], dict[str, Any]]) -> tuple[int, dict[str, Any]]:
    """A status and a body; some documents need an environment, and the making of one can fail."""
    try:
        return 200, document()
    except Exception:
        _log.exception("the environment could not be made")
        return 500, {"detail": "Internal Server Error"}
