"""The parts of the soak: clients and an environment server that misbehave, and what is measured meanwhile."""
