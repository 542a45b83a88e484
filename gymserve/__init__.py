"""gymserve: rollouts over HTTP before OpenEnv servers, with patience for busy ones and deadlines for silent clients."""

__version__ = "0.1.0"
