"""`VecEnv`: many environments behind one call, on threads, in processes or one after another."""
