"""Gymnasium's MuJoCo environments, version 5, as tasks that equal them to the last bit.

What each computes, in which order, and what its options mean, is Gymnasium's own; see
https://gymnasium.farama.org/environments/mujoco/ and the classes that `reference` returns. The
models are the MJCF files in the gymnasium package.
"""
