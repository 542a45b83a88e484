"""``gymserve serve``: the gateway between HTTP and an environment server."""

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import structlog
import trio

from gymserve import wire
from gymserve.address import EnvironmentAddress, Server, parse_server
from gymserve.cli.entrance import Entrance, read_entrance, tell_of_risk
from gymserve.cli.headers import environment_headers
from gymserve.cli.logs import configure_logging
from gymserve.cli.process import EndingSignal, ending_signal, http_url, tell, tell_listening, tell_not_bound
from gymserve.cli.stopping import Stopping
from gymserve.collecting import collect_in_quiet, spare_last_collection, tame_collector
from gymserve.descriptors import Descriptors, raise_limit
from gymserve.door import DoorTerms
from gymserve.expiries import Expiries
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
from gymserve.http.serving import is_socket_inherited, serve
from gymserve.identity import SessionCookie, SessionToken, new_instance, new_secret
from gymserve.instruments import fit_instruments
from gymserve.journal import Journal, JournalFailed, open_journal
from gymserve.network import Network, TcpNetwork
from gymserve.opening import Opener
from gymserve.pool import Pool, open_pool
from gymserve.recording import open_recorder
from gymserve.resets import ResetRules, parse_failed_observation
from gymserve.score import RewardRule
from gymserve.seeds import Seeding
from gymserve.session import Terms
from gymserve.settings import ServeSettings
from gymserve.shares import Shares, parse_share
from gymserve.telemetry import Telemetry
from gymserve.toolbox import taken_names, with_reward, without_reward
from gymserve.trajectories import RecordingFailed

_log = structlog.get_logger()

_EMBEDDED_HOST = "127.0.0.1"
_EMBEDDED_CAPACITY = 8
_FEW_DESCRIPTORS = 8192  # with fewer a trainer of 4,000 rollouts may be kept waiting
_FLUSH_SECONDS = 0.5  # of the grace, kept for the last answers on their way out


Until = Callable[[EndingSignal], Awaitable[str]]


def run_serve(settings: ServeSettings, *, until: Until = EndingSignal.wait) -> int:
    """Serve until SIGINT or SIGTERM, or what ``until`` waits for and tells in a word, or the end of a drain; 0, or 1 if
    the address could not be bound, or the journal or the directory of trajectories not be used.

    At the first signal new seeds get 503 and calls in flight may finish, for as long as the grace; then every session
    ends with 410 for whoever still waits, and every episode gets its goodbye. A second signal kills.

    :raises Refused: as `read_entrance`.
    """
    configure_logging(settings.log_format)
    _tell_of_few_descriptors(Descriptors(raise_limit()), settings.max_connections)
    status = trio.run(_run, settings, read_entrance(settings), until)
    spare_last_collection()
    return status


async def _run(settings: ServeSettings, entrance: Entrance, until: Until) -> int:
    status = 1
    with ending_signal() as signal:
        try:
            async with trio.open_nursery() as nursery:
                servers = await _servers(settings, nursery)
                async with compose_gateway(settings, servers) as gateway:
                    gateway.telemetry.listen(Expiries().hear)
                    stopping = Stopping(gateway, grace_seconds=settings.grace)
                    stopped = partial(stopping.begun, partial(until, signal))
                    nursery.start_soon(collect_in_quiet, lambda: not gateway.all_sessions())
                    status = await _serve_until(stopped, settings, entrance, gateway)
                stopping.tell_end()
                nursery.cancel_scope.cancel()  # the embedded server, once all its episodes have their goodbye
        except* JournalFailed as group:
            tell(f"{group.exceptions[0]} (--journal)")
        except* RecordingFailed as group:
            tell(f"{group.exceptions[0]} (--record)")
    return status


async def _servers(settings: ServeSettings, nursery: trio.Nursery) -> list[Server]:
    """The environment servers; without one in the settings the embedded one is started in ``nursery``."""
    if settings.env:
        return [parse_server(text) for text in settings.env]
    server = EnvironmentServer(GridSim, capacity=_EMBEDDED_CAPACITY)
    port = await nursery.start(server.listen, _EMBEDDED_HOST, 0)
    return [Server(EnvironmentAddress(_EMBEDDED_HOST, port))]


@asynccontextmanager
async def compose_gateway(
    settings: ServeSettings, servers: Iterable[Server], network: Network | None = None
) -> AsyncIterator[Gateway]:
    """The gateway that ``settings`` describe, before those environment servers.

    :param network: None for sockets.
    """
    instance = new_instance()
    network = network or TcpNetwork(
        connect_timeout_seconds=settings.connect_timeout, partition_seconds=settings.partition_timeout
    )
    shares = Shares(parse_share(text) for text in settings.label)
    descriptors = Descriptors(max_clients=settings.max_connections)
    async with _journal(settings, instance) as journal, _telemetry(settings, instance) as telemetry:
        async with open_pool(network, _door_terms(settings), shares, max_held=descriptors.episodes) as pool:
            for server in servers:
                pool.add(server.address, slots=server.slots)
            async with open_gateway(
                _opener(settings, pool),
                _terms(settings),
                tombstone_seconds=settings.tombstone,
                failure_class=settings.failure_class,
                max_sessions=settings.max_sessions,
                max_waiting=settings.max_waiting,
                instance=instance,
                journal=journal,
                telemetry=telemetry,
            ) as gateway:
                yield gateway


@asynccontextmanager
async def _journal(settings: ServeSettings, instance: str) -> AsyncIterator[Journal | None]:
    """:raises JournalFailed: the file cannot be used."""
    if settings.journal is None:
        yield None
        return
    if not settings.secret:
        _log.warning("--journal without GYMSERVE_SECRET: after a restart nobody's cookie is understood")
    async with open_journal(Path(settings.journal), instance, kept_seconds=settings.tombstone) as journal:
        yield journal


@asynccontextmanager
async def _telemetry(settings: ServeSettings, instance: str) -> AsyncIterator[Telemetry]:
    """:raises RecordingFailed: the directory cannot be used."""
    telemetry = Telemetry()
    if settings.record is None:
        yield telemetry
        return
    async with open_recorder(
        Path(settings.record), instance, max_observation_bytes=settings.record_max_bytes, tell=telemetry.tell
    ) as recorder:
        telemetry.record(recorder.hear)
        yield telemetry


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
        tame_collector()
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
    instruments = fit_instruments(gateway, kept_seconds=settings.tombstone)
    if settings.mcp == "never":
        yield create_app(
            gateway,
            cookie,
            _rollouts(settings, gateway, None),
            instruments,
            entrance.guard,
            is_followed=is_socket_inherited(),
        )
        return
    token = SessionToken(secrets)
    async with open_mcp(
        gateway, token, observation_tool=settings.observation_tool, server_name=settings.name
    ) as endpoint:
        yield create_app(
            gateway,
            cookie,
            _rollouts(settings, gateway, endpoint),
            instruments,
            entrance.guard,
            endpoint,
            is_followed=is_socket_inherited(),
        )


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
    seeding = Seeding(settings.reset_kwargs, derives=settings.derive_seed, warns=bool(settings.env))
    return Rollouts(gateway, dialect, seeding, mcp, kept_seconds=settings.tombstone)


def _door_terms(settings: ServeSettings) -> DoorTerms:
    return DoorTerms(
        headers=environment_headers(settings.env_header, settings.env_token),
        connect_timeout_seconds=settings.connect_timeout,
        close_timeout_seconds=settings.close_timeout,
        answer_timeout_seconds=settings.patience or settings.connect_timeout,
        restart_patience_seconds=settings.restart_patience,
        max_handshakes=settings.max_handshakes,
        max_message_bytes=round(settings.max_observation * MIB),
        taken_names=taken_names(settings.observation_tool),
        show=without_reward if settings.hide_reward else with_reward,
    )


def _opener(settings: ServeSettings, pool: Pool) -> Opener:
    failed = [parse_failed_observation(text) for text in settings.reset_failed]
    return Opener(
        pool,
        patience_seconds=settings.patience,
        connect_timeout_seconds=settings.connect_timeout,
        reset_kwargs=settings.reset_kwargs,
        resets=ResetRules(retries=settings.reset_retries, failed=failed),
    )


def _terms(settings: ServeSettings) -> Terms:
    return Terms(
        idle_timeout_seconds=settings.idle_timeout,
        idle_timeout_max_seconds=settings.idle_timeout_max,
        reclaims_when_wanted=settings.reclaim == "when-wanted",
        lifetime_seconds=math.inf if settings.max_lifetime is None else settings.max_lifetime,
        step_timeout_seconds=settings.step_timeout,
        close_timeout_seconds=settings.close_timeout,
        keepalive_seconds=settings.keepalive or math.inf,
        reward_rule=RewardRule(settings.reward),
        step_timeout_is_scored=settings.on_step_timeout == "score",
        verify_action=None if settings.verify_action is None else wire.action(settings.verify_action),
    )
