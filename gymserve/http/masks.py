"""How a client is told that its result is masked: with an HTTP error, or with 200 and the mask."""

from typing import Literal

from gymserve.errors import BadArguments

MASKED_HEADER = "X-Gymserve-Masked"
MASKED_STATUS = 503

MaskedAsError = Literal["never", "always", "auto"]

_VERIFIERS_AGENT = "python-httpx/"


def masked_status(rule: MaskedAsError, *, user_agent: str | None, wish: str | None) -> int:
    """The status of a masked result: 503 keeps a rollout out of prime-rl's training, which knows no mask; NeMo Gym
    reads the mask, and an error would end its whole collection.

    :param user_agent: ``auto`` tells verifiers by it, whose client is httpx.
    :param wish: the request's own, ``error`` or ``flag``, which beats the rule.
    :raises BadArguments: it is neither.
    """
    match wish, rule:
        case "error", _:
            return MASKED_STATUS
        case "flag", _:
            return 200
        case None, "auto":
            return MASKED_STATUS if (user_agent or "").startswith(_VERIFIERS_AGENT) else 200
        case None, _:
            return MASKED_STATUS if rule == "always" else 200
    raise BadArguments([{"type": "literal_error", "loc": ["header", MASKED_HEADER], "msg": "must be error or flag"}])


def told_of_masks(rule: MaskedAsError) -> str:
    """Which clients see what, for whoever starts a server."""
    match rule:
        case "auto":
            return "masked results: 503 to verifiers (python-httpx), 200 with mask_sample to all others"
        case "never":
            return "masked results: 200 with mask_sample, also to verifiers, which trains on them as rewards of 0"
    return "masked results: 503 to all clients; a plain `gym eval` of NeMo Gym ends its whole collection on one"
