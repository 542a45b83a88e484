#!/usr/bin/env bash
# The real peers of bench/compare.py, each in a virtual environment of its own (Python 3.11): NeMo Gym's resources server
# with its OpenEnv adapter, and the OpenEnv server. `bench/setup_peers.sh [FOLDER]`, by default bench/.peers; about 155 s.
# What is there already is left as it is. Needs Python 3.11 (from pyenv or on PATH; PEERS_PYTHON names another) and a
# package index.
set -euo pipefail
bench=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
peers=${1:-$bench/.peers}
export PIP_DISABLE_PIP_VERSION_CHECK=1

source "$bench/../.ci/pythons"
python=${PEERS_PYTHON:-$(python_of 3.11)}

openenv=(fastapi uvicorn websockets 'fastmcp>=3,<4' requests httpx)

# Without ray[default], and without what a server imports only for agents, models, judges and telemetry.
nemo_gym=(openai==2.44.0 pydantic fastapi itsdangerous 'uvicorn[standard]' hydra-core omegaconf rich aiohttp yappi psutil orjson pydot
  pandas scipy wandb requests)

environment() { # name, a function that fills it
  if [[ -e $peers/$1/complete ]]; then
    echo "$1: there already"
    return
  fi
  rm -rf "${peers:?}/$1"
  "$python" -m venv "$peers/$1"
  "$2" "$peers/$1/bin/python"
  touch "$peers/$1/complete"
  echo "$1: $("$peers/$1/bin/python" -m pip list --format=freeze | grep -iE '^(nemo-gym|openenv|fastapi|uvicorn|uvloop|fastmcp)==' | tr '\n' ' ')"
}

fill_openenv() { # Python
  "$1" -m pip install -q "${openenv[@]}"
  "$1" -m pip install -q --no-deps openenv==0.10.0
}

fill_nemo_gym() { # Python; the environment class runs in the adapter's process, and needs OpenEnv there
  "$1" -m pip install -q "${nemo_gym[@]}" "${openenv[@]}"
  "$1" -m pip install -q --no-deps ray openenv==0.10.0
  "$1" -m pip install -q --no-deps --ignore-requires-python nemo-gym==0.7.0
}

mkdir -p "$peers"
environment openenv fill_openenv
environment nemo_gym fill_nemo_gym
