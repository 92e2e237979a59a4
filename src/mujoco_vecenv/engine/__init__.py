"""MuJoCo on threads: lean models, batched simulations, the thread budget. Knows no robot."""
