"""The parts of `bench/grpo.py`: a policy that learns, a trainer by prime-rl's rules, and the servers it is run on."""
