"""PPO on any backend, and what becomes of a policy: evaluation, comparison, export."""
