"""The headers that an environment server is sent."""

from collections.abc import Iterable

from pydantic import SecretStr


def environment_headers(lines: Iterable[str], token: SecretStr | None) -> list[tuple[str, str]]:
    """Names and values of ``NAME: VALUE`` lines, and the bearer ``token`` (RFC 6750 section 2.1)."""
    headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    if token is not None:
        headers.append(("Authorization", f"Bearer {token.get_secret_value()}"))
    return headers
