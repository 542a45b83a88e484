"""``gymserve rows``: dataset rows for GridSim or any OpenEnv server."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any

from gymserve.address import parse_address
from gymserve.cli.headers import environment_headers
from gymserve.cli.logs import configure_logging
from gymserve.cli.output import opened_output
from gymserve.cli.prompts import GRIDSIM_PROMPT, read_prompt
from gymserve.cli.refusals import Refused, printable
from gymserve.cli.sources import Resolved
from gymserve.errors import EnvironmentFailed, GymserveError
from gymserve.gridsim.day import EVALUATION_DAYS, TRAINING_DAYS
from gymserve.gridsim.grid import GridSim
from gymserve.rows import Tool, encode_row, make_row, mcp_tools, parse_seeds
from gymserve.settings import RowsSettings

_INTERRUPTED = 130  # as a shell reports SIGINT


def run_rows(resolved: Resolved[RowsSettings]) -> int:
    """Write the rows: 0, or 1 with a line on stderr if the environment server cannot be used.

    :raises Refused: the settings do not go together, or a file cannot be read or written.
    """
    settings = resolved.settings
    _check(resolved)
    prompt = _prompt(resolved)
    status = 0
    try:
        tools = _tools(settings)
        with opened_output(settings.output, _where(resolved, "output")) as file:
            file.writelines(_lines(settings, prompt, tools))
    except* GymserveError as group:
        sys.stderr.write(f"gymserve: {printable(str(group.exceptions[0]))}\n")
        status = 1
    except* KeyboardInterrupt:  # alone, or in the group that a nursery makes of it
        status = _INTERRUPTED
    return status


def _check(resolved: Resolved[RowsSettings]) -> None:
    settings, given = resolved.settings, resolved.given
    if settings.env is None:
        if "seeds" in given:
            raise Refused(f"{given['seeds'].where}: is for an environment server, and needs --env; GridSim has --split")
        return
    where = given["env"].where
    if "split" in given:
        raise Refused(f"{given['split'].where}: is for GridSim; with an environment server ({where}) use --seeds")
    if settings.prompt is None:
        raise Refused(f"{where}: needs --prompt FILE: what a model's task is there, gymserve cannot know")
    if settings.seeds is None:
        raise Refused(f"{where}: needs --seeds, such as --seeds 0..999: a row is written for each")


def _where(resolved: Resolved[RowsSettings], key: str) -> str:
    return resolved.given[key].where if key in resolved.given else key


def _prompt(resolved: Resolved[RowsSettings]) -> str:
    path = resolved.settings.prompt
    return GRIDSIM_PROMPT if path is None else read_prompt(path, _where(resolved, "prompt"))


def _lines(settings: RowsSettings, prompt: str, tools: list[Tool]) -> Iterator[bytes]:
    for reset_kwargs in islice(_resets(settings), settings.limit):
        row = make_row(prompt, tools, reset_kwargs, agent=settings.agent, label=settings.label)
        try:
            yield encode_row(row)
        except ValueError:
            raise EnvironmentFailed(
                "a schema of the environment server has a number that JSON cannot say (NaN or infinity)"
            ) from None


def _resets(settings: RowsSettings) -> Iterable[Mapping[str, Any]]:
    if settings.seeds is not None:
        return ({"seed": seed} for seed in chain.from_iterable(parse_seeds(settings.seeds)))
    days = TRAINING_DAYS if settings.split == "train" else EVALUATION_DAYS
    return ({"day": day} for day in days)


def _tools(settings: RowsSettings) -> list[Tool]:
    if settings.env is None:
        return mcp_tools(GridSim.tools, settings.observation_tool)  # `status` tells what an observation tool would
    from gymserve.cli.learning import learn_tools  # Trio and httpx: only for those who ask a server

    configure_logging("text")  # to stderr: stdout is for rows
    return learn_tools(
        parse_address(settings.env),
        headers=environment_headers(settings.env_header, settings.env_token),
        patience_seconds=settings.patience,
        connect_timeout_seconds=settings.connect_timeout,
        observation_name=settings.observation_tool,
    )
