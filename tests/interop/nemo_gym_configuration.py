"""The configuration of one NeMo Gym with all of its servers, as NeMo Gym's own parser completes it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_gym.global_config import GlobalConfigDictParser, GlobalConfigDictParserConfig
from omegaconf import DictConfig, OmegaConf

EPISODE_SECONDS = 60.0
BRIEF_SECONDS = 2.0
MAX_STEPS = 30  # of the gymnasium agent; its default of 10 is no whole day


@dataclass(frozen=True, kw_only=True)
class Ports:
    """Of what runs already: two gymserves, a way to the first that loses answers, a model. And one that is free."""

    grid: int
    hasty: int
    losing: int
    model: int
    head: int


def configuration(directory: Path, ports: Ports) -> DictConfig:
    """The parser finds the ports that are not given.

    ``hasty_agent`` and both gymnasium agents have no environment server, so that the parser makes a relay for each,
    as for configurations of older versions.
    """
    given = {
        "head_server": {"host": "127.0.0.1", "port": ports.head},
        "results_dir": str(directory / "results"),
        "cache_dir": str(directory / "cache"),
        "policy_model": _started("responses_api_models", "scripted", ports.model),
        "grid": _started("resources_servers", "gymserve", ports.grid, domain="agent"),
        "hasty": _started("resources_servers", "gymserve", ports.hasty, domain="agent"),
        "losing": _started("resources_servers", "gymserve", ports.losing, domain="agent"),
        "grid_agent": _agent("simple_agent", resources_server=_resources("grid")),
        "hasty_agent": _agent("simple_agent", resources_server=_resources("hasty")),
        "hasty_gymnasium": _agent("gymnasium_agent", resources_server=_resources("hasty"), max_steps=MAX_STEPS),
        "losing_gymnasium": _agent("gymnasium_agent", resources_server=_resources("losing"), max_steps=MAX_STEPS),
        "losing_agent": _agent("simple_agent", resources_server=_resources("losing")),
        "grid_mcp_agent": _agent("nemo_gym_mcp_agent"),
        "grid_turns": _environment("single_agent_turn_legacy", "grid", "grid_agent", "direct_http"),
        "grid_mcp_turns": _environment("single_agent_turn", "grid", "grid_mcp_agent", "mcp"),
        "grid_brief_turns": _environment("single_agent_turn", "grid", "grid_mcp_agent", "mcp", seconds=BRIEF_SECONDS),
        "losing_turns": _environment("single_agent_turn", "losing", "losing_agent", "direct_http"),
    }
    parsed: DictConfig = GlobalConfigDictParser().parse(
        GlobalConfigDictParserConfig(
            initial_global_config_dict=OmegaConf.create(given), skip_load_from_cli=True, skip_load_from_dotenv=True
        )
    )
    return parsed


def _started(kind: str, name: str, port: int, **more: str) -> dict[str, Any]:
    """What somebody else has started: NeMo Gym takes the address from the first key and starts nothing."""
    address = {"host": "127.0.0.1", "port": port}
    return {"external": {name: address}, kind: {name: {"entrypoint": "app.py", **more, **address}}}


def _agent(name: str, **more: Any) -> dict[str, Any]:
    model = {"type": "responses_api_models", "name": "policy_model"}
    return {"responses_api_agents": {name: {"entrypoint": "app.py", "model_server": model, **more}}}


def _environment(
    name: str, resources: str, agent: str, transport: str, seconds: float = EPISODE_SECONDS
) -> dict[str, Any]:
    settings = {
        "entrypoint": "app.py",
        "resources_server": _resources(resources),
        "agent_server": {"type": "responses_api_agents", "name": agent},
        "resources_tool_transports": [transport],
        "default_episode_timeout_seconds": seconds,
        "cleanup_timeout_seconds": 10,
    }
    return {"environment_servers": {name: settings}}


def _resources(name: str) -> dict[str, str]:
    return {"type": "resources_servers", "name": name}
