"""NeMo Gym's OpenEnv adapter as ``gym env start`` runs it: ``python -m comparing.adapter move`` (or ``echo``).

It is the released resources server (``resources_servers/openenv/app.py``), its settings as in the configurations that
are released with it, completed by NeMo Gym's own parser; the environment's class is imported into its process.
"""

import os
import runpy
import sys

from nemo_gym.global_config import GlobalConfigDictParser, GlobalConfigDictParserConfig
from omegaconf import OmegaConf

_NAME = "openenv_resources_server"
_MOVE = {
    "env_class": "comparing.environments.MoveEnvironment",
    "action_class": "comparing.environments.MoveAction",
    "is_mcp": False,
}
_ECHO = {
    "env_class": "comparing.environments.EchoEnvironment",
    "action_class": "openenv.core.env_server.mcp_types.CallToolAction",
    "is_mcp": True,
}
_ENVIRONMENTS = {"move": _MOVE, "echo": _ECHO}


def main(environment: str) -> None:
    server = {
        "entrypoint": "app.py",
        "domain": "games",
        "host": "127.0.0.1",
        "port": 0,
        **_ENVIRONMENTS[environment],
    }
    config = GlobalConfigDictParser().parse(
        GlobalConfigDictParserConfig(
            initial_global_config_dict=OmegaConf.create({_NAME: {"resources_servers": {"openenv": server}}}),
            skip_load_from_cli=True,
            skip_load_from_dotenv=True,
        )
    )
    os.environ["NEMO_GYM_CONFIG_DICT"] = OmegaConf.to_yaml(config)
    os.environ["NEMO_GYM_CONFIG_PATH"] = _NAME
    runpy.run_module("resources_servers.openenv.app", run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1])
