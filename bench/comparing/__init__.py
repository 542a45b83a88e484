"""The parts of the comparison: the environments, the servers that serve them, who drives them, and what that shows."""
