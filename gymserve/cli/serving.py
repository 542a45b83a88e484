"""``gymserve serve``: the gateway between HTTP and an environment server."""

import gc
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

import structlog
import trio

from gymserve import wire
from gymserve.address import EnvironmentAddress, parse_address
from gymserve.cli.entrance import Entrance, read_entrance, tell_of_risk
from gymserve.cli.headers import environment_headers
from gymserve.cli.logs import configure_logging
from gymserve.cli.process import EndingSignal, ending_signal, http_url, tell_listening, tell_not_bound
from gymserve.descriptors import Descriptors, raise_limit
from gymserve.door import Door, open_door
from gymserve.gateway import Gateway, open_gateway
from gymserve.gridsim.grid import GridSim
from gymserve.gridsim.server import EnvironmentServer
from gymserve.http.app import create_app
from gymserve.http.crowd import Crowd
from gymserve.http.limits import MIB, Limits
from gymserve.http.masks import told_of_masks
from gymserve.http.mcp import McpEndpoint, open_mcp
from gymserve.http.prefix import AsgiApp
from gymserve.http.rollouts import Dialect, Rollouts
from gymserve.http.serving import serve
from gymserve.identity import SessionCookie, SessionToken, new_secret
from gymserve.network import TcpNetwork
from gymserve.opening import Opener
from gymserve.resets import ResetRules, parse_failed_observation
from gymserve.score import RewardRule
from gymserve.seeds import Seeding
from gymserve.session import Terms
from gymserve.settings import ServeSettings
from gymserve.toolbox import ROUTE_NAMES, with_reward, without_reward

_log = structlog.get_logger()

_EMBEDDED_HOST = "127.0.0.1"
_EMBEDDED_CAPACITY = 8
_FEW_DESCRIPTORS = 8192  # with fewer a trainer of 4,000 rollouts may be kept waiting
_FLUSH_SECONDS = 0.5  # of the grace, kept for the last answers on their way out


Until = Callable[[EndingSignal], Awaitable[None]]


def run_serve(settings: ServeSettings, *, until: Until = EndingSignal.wait) -> int:
    """Serve until SIGINT or SIGTERM, or what ``until`` waits for; 0, or 1 if the address could not be bound.

    At the first signal new seeds get 503 and calls in flight may finish, for as long as the grace; then every session
    ends with 410 for whoever still waits, and every episode gets its goodbye. A second signal kills.

    :raises Refused: as `read_entrance`.
    """
    configure_logging(settings.log_format)
    _tell_of_few_descriptors(Descriptors(raise_limit()), settings.max_connections)
    status = trio.run(_run, settings, read_entrance(settings), until)
    gc.freeze()  # else the interpreter's last collection walks all that the kernel frees anyway: a good part of a stop
    return status


async def _run(settings: ServeSettings, entrance: Entrance, until: Until) -> int:
    with ending_signal() as signal:
        async with trio.open_nursery() as nursery:
            address = await _environment(settings, nursery)
            async with compose_gateway(settings, address) as gateway:
                status = await _serve_until(partial(until, signal), settings, entrance, gateway)
            nursery.cancel_scope.cancel()  # the embedded server, once all its episodes have their goodbye
    return status


async def _environment(settings: ServeSettings, nursery: trio.Nursery) -> EnvironmentAddress:
    """The environment server's address; without one in the settings the embedded server is started in ``nursery``."""
    if settings.env is not None:
        return parse_address(settings.env)
    server = EnvironmentServer(GridSim, capacity=_EMBEDDED_CAPACITY)
    port = await nursery.start(server.listen, _EMBEDDED_HOST, 0)
    return EnvironmentAddress(_EMBEDDED_HOST, port)


@asynccontextmanager
async def compose_gateway(settings: ServeSettings, address: EnvironmentAddress) -> AsyncIterator[Gateway]:
    """The gateway that ``settings`` describe, before the environment server at ``address``."""
    async with (
        _door(settings, address) as door,
        open_gateway(
            _opener(settings, door),
            _terms(settings),
            tombstone_seconds=settings.tombstone,
            failure_class=settings.failure_class,
            max_sessions=settings.max_sessions,
            max_waiting=settings.max_waiting,
        ) as gateway,
    ):
        yield gateway


async def serve_http(
    settings: ServeSettings,
    entrance: Entrance,
    gateway: Gateway,
    stopped: Callable[[], Awaitable[None]],
    *,
    task_status: trio.TaskStatus[list[str]],
) -> None:
    """Serve ``gateway`` until ``stopped`` returns, then for the grace; started with the URLs.

    :raises OSError: the address cannot be bound.
    """

    async def stop() -> float:
        await stopped()
        ends_at = trio.current_time() + settings.grace
        await gateway.drain(settings.grace)
        return max(ends_at - trio.current_time() - _FLUSH_SECONDS, _FLUSH_SECONDS)

    async with _open_app(settings, entrance, gateway) as app:
        await serve(
            app,
            host=settings.host,
            port=settings.port,
            tls=entrance.tls,
            stop=stop,
            limits=_limits(settings),
            crowd=Crowd(most=settings.max_connections),
            partition_seconds=settings.partition_timeout,
            task_status=task_status,
        )


async def _serve_until(
    stopped: Callable[[], Awaitable[None]], settings: ServeSettings, entrance: Entrance, gateway: Gateway
) -> int:
    async with trio.open_nursery() as nursery:
        try:
            urls = await nursery.start(serve_http, settings, entrance, gateway, stopped)
        except OSError as exc:
            tell_not_bound(http_url(settings.host, settings.port, scheme=entrance.scheme), exc)
            return 1
        tell_of_risk(urls[0], entrance)
        _tell_of_masks(settings)
        tell_listening(urls[0])
    return 0


def _tell_of_few_descriptors(descriptors: Descriptors, max_connections: int | None) -> None:
    if descriptors.limit < _FEW_DESCRIPTORS or (max_connections or 0) > descriptors.clients:
        _log.warning(
            "few file descriptors: a client that waits takes one, and a session another; "
            "raise the limit on open files (ulimit -Hn)",
            file_descriptors=descriptors.limit,
            clients=descriptors.clients,
            episodes=descriptors.episodes,
        )


def _tell_of_masks(settings: ServeSettings) -> None:
    tell_at = _log.warning if settings.masked_as_error == "always" else _log.info
    tell_at(told_of_masks(settings.masked_as_error))


@asynccontextmanager
async def _open_app(settings: ServeSettings, entrance: Entrance, gateway: Gateway) -> AsyncIterator[AsgiApp]:
    secrets = [secret.get_secret_value() for secret in settings.secret] or [new_secret()]
    cookie = SessionCookie(settings.name, secrets)
    if settings.mcp == "never":
        yield create_app(gateway, cookie, _rollouts(settings, gateway, None), entrance.guard)
        return
    token = SessionToken(secrets)
    async with open_mcp(
        gateway, token, observation_tool=settings.observation_tool, server_name=settings.name
    ) as endpoint:
        yield create_app(gateway, cookie, _rollouts(settings, gateway, endpoint), entrance.guard, endpoint)


def _limits(settings: ServeSettings) -> Limits:
    return Limits(
        body_bytes=round(settings.max_body * MIB),
        stall_seconds=settings.client_timeout,
        interim_seconds=settings.interim or math.inf,
    )


def _rollouts(settings: ServeSettings, gateway: Gateway, mcp: McpEndpoint | None) -> Rollouts:
    dialect = Dialect(
        observation_tool=settings.observation_tool,
        masked_as_error=settings.masked_as_error,
        mcp=settings.mcp,
        text_action=settings.text_action,
    )
    # The embedded environment's rows name a day, which says where an episode starts as well as a seed would.
    seeding = Seeding(settings.reset_kwargs, derives=settings.derive_seed, warns=settings.env is not None)
    return Rollouts(gateway, dialect, seeding, mcp, kept_seconds=settings.tombstone)


def _door(settings: ServeSettings, address: EnvironmentAddress) -> AbstractAsyncContextManager[Door]:
    return open_door(
        TcpNetwork(connect_timeout_seconds=settings.connect_timeout, partition_seconds=settings.partition_timeout),
        address,
        headers=environment_headers(settings.env_header, settings.env_token),
        connect_timeout_seconds=settings.connect_timeout,
        close_timeout_seconds=settings.close_timeout,
        answer_timeout_seconds=settings.patience or settings.connect_timeout,
        restart_patience_seconds=settings.restart_patience,
        max_handshakes=settings.max_handshakes,
        max_message_bytes=round(settings.max_observation * MIB),
        max_connections=Descriptors().episodes,
        taken_names=ROUTE_NAMES | ({settings.observation_tool} if settings.observation_tool else set()),
        show=without_reward if settings.hide_reward else with_reward,
    )


def _opener(settings: ServeSettings, door: Door) -> Opener:
    failed = [parse_failed_observation(text) for text in settings.reset_failed]
    return Opener(
        door,
        patience_seconds=settings.patience,
        connect_timeout_seconds=settings.connect_timeout,
        reset_kwargs=settings.reset_kwargs,
        resets=ResetRules(retries=settings.reset_retries, failed=failed),
    )


def _terms(settings: ServeSettings) -> Terms:
    return Terms(
        idle_timeout_seconds=settings.idle_timeout,
        lifetime_seconds=math.inf if settings.max_lifetime is None else settings.max_lifetime,
        step_timeout_seconds=settings.step_timeout,
        close_timeout_seconds=settings.close_timeout,
        keepalive_seconds=settings.keepalive or math.inf,
        reward_rule=RewardRule(settings.reward),
        step_timeout_is_scored=settings.on_step_timeout == "score",
        verify_action=None if settings.verify_action is None else wire.action(settings.verify_action),
    )
