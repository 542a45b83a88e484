"""``gymserve nemo-gym``: the files by which NeMo Gym's launcher starts gymserve as a resources server."""

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from gymserve.cli.refusals import Refused, printable
from gymserve.cli.requirement import requirement

_SERVER = Path("resources_servers", "gymserve")
_SIMPLE = Path("configs", "gymserve_simple_agent.yaml")
_GYMNASIUM = Path("configs", "gymserve_gymnasium_agent.yaml")

_APP = '''\
"""gymserve as a resources server of NeMo Gym, which starts this."""

from gymserve.cli.nemo_gym import run

if __name__ == "__main__":
    run()
'''

_CONFIG = """\
# gymserve as a resources server of NeMo Gym, and {agent} to play with it.
gymserve:
  resources_servers:
    gymserve:
      entrypoint: app.py
      domain: agent
      description: Episodes of an OpenEnv environment server, waited for while it is busy and given back on time
      verified: false
      # The settings of `gymserve serve` go here, with _ for - (`gymserve config` prints them all), such as
      # env: http://localhost:8000
      # Without env it is the embedded GridSim that is played.
gymserve_{agent}:
  responses_api_agents:
    {agent}:
      entrypoint: app.py
      resources_server:
        type: resources_servers
        name: gymserve
      model_server:
        type: responses_api_models
        name: policy_model
{more}gymserve_{agent}_environment_server:
  environment_servers:
    legacy_agent:
      entrypoint: app.py
      agent_server:
        type: responses_api_agents
        name: gymserve_{agent}
"""
_MAX_STEPS = """\
      max_steps: 100
"""

_NEXT = """\
Start it, with a model's server:
  gym env start --config {config} --search-dir {directory} \\
    --model-type openai_model --model NAME --model-url URL --model-api-key KEY
For an environment server of yours add (without it the embedded GridSim is played):
  ++gymserve.resources_servers.gymserve.env=http://HOST:PORT
Then, for GridSim:
  gymserve rows --agent gymserve_simple_agent --output rows.jsonl
  gym eval run --no-serve --agent gymserve_simple_agent --input rows.jsonl --output rollouts.jsonl
For the gymnasium agent it is {gymnasium} and gymserve_gymnasium_agent.
"""


def run_nemo_gym(directory: str) -> int:
    """Write the files below ``directory`` and tell on stdout what to do with them; 0.

    Files that are there already stay, and must be the same.

    :raises Refused: one of them differs, or cannot be read or written.
    """
    if not directory:
        raise Refused("DIR: the name of a directory is needed")
    server = Path(directory) / _SERVER
    files = {server / name: text for name, text in _files().items()}
    missing = [path for path, text in files.items() if not _is_there(path, text)]
    for path in missing:
        _write(path, files[path])
    sys.stdout.writelines(
        f"{'wrote' if path in missing else 'there already'}: {printable(str(path))}\n" for path in files
    )
    sys.stdout.write(
        _NEXT.format(
            config=shlex.quote(str(server / _SIMPLE)),
            gymnasium=shlex.quote(str(server / _GYMNASIUM)),
            directory=shlex.quote(str(Path(directory))),
        )
    )
    return 0


def _files() -> Mapping[Path, str]:
    return {
        Path("app.py"): _APP,
        Path("requirements.txt"): f"{requirement()}\n",
        _SIMPLE: _CONFIG.format(agent="simple_agent", more=""),
        # Its default of 10 is too few for most environments, and none is told that it was cut off.
        _GYMNASIUM: _CONFIG.format(agent="gymnasium_agent", more=_MAX_STEPS),
    }


def _is_there(path: Path, text: str) -> bool:
    try:
        found = path.read_bytes()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise Refused(f"{printable(str(path))}: cannot be read: {error.strerror}") from None
    if found != text.encode():
        raise Refused(
            f"{printable(str(path))}: is there already and differs from what would be written; move it out of the way, "
            "or name another directory"
        )
    return True


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            file.write(text.encode())
    except OSError as error:
        raise Refused(f"{printable(str(path))}: cannot be written: {error.strerror}") from None
