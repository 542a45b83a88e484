"""How many episodes a server has, may have and has had."""

from gymserve.wire import CAPACITY_REACHED, Refusal


class Slots:
    """Room for ``capacity`` episodes. A slot is held from acceptance until the environment's ``close`` has returned."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        self.capacity = capacity
        self.opened = 0
        self.closed = 0

    @property
    def active(self) -> int:
        return self.opened - self.closed

    def take(self) -> bool:
        """Take a slot; False if there is none."""
        if self.active >= self.capacity:
            return False
        self.opened += 1
        return True

    def give_back(self) -> None:
        self.closed += 1

    def counts(self) -> dict[str, int]:
        return {"active": self.active, "max": self.capacity, "opened": self.opened, "closed": self.closed}


def capacity_refusal(slots: Slots) -> Refusal:
    """What a full server says right after the upgrade (``SessionCapacityError`` in OpenEnv)."""
    maximum = slots.capacity
    sentence = f"Server at capacity: {maximum}/{maximum} sessions active. Cannot accept new connections."
    return Refusal(CAPACITY_REACHED, sentence, active_sessions=maximum, max_sessions=maximum)
