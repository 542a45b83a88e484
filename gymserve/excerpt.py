"""The beginning of a large value."""

from typing import Any

_MORE = 256  # two for each level that is still open where a value is cut (`nesting.MAX_DEPTH`)


class Excerpt:
    """So much of a value as makes the first ``most_bytes`` of its JSON, and a little more. ``is_cut``: its JSON is
    longer than that.
    """

    def __init__(self, most_bytes: int) -> None:
        self._left = most_bytes

    @property
    def is_cut(self) -> bool:
        return self._left < 0

    @property
    def _is_enough(self) -> bool:
        return self._left < -_MORE

    def of(self, value: Any) -> Any:
        """Each part counts for no more than it takes, so that nothing counts as cut that fits."""
        match value:
            case str():
                kept = value[: max(self._left, 0) + _MORE]
                self._left -= len(value) + 2
                return kept
            case dict():
                return self._of_object(value)
            case list():
                return self._of_array(value)
            case _:
                self._left -= 3 if isinstance(value, float) else 1
                return value

    def _of_object(self, value: dict[str, Any]) -> dict[str, Any]:
        kept = {}
        self._left -= 1  # for a brace; for each member a colon, and a comma or the other brace
        for key, part in value.items():
            if self._is_enough:
                break
            self._left -= 2
            name = self.of(key)
            kept[name] = self.of(part)
        return kept

    def _of_array(self, value: list[Any]) -> list[Any]:
        kept = []
        self._left -= 1
        for part in value:
            if self._is_enough:
                break
            self._left -= 1
            kept.append(self.of(part))
        return kept
