"""The Microduck, a 25 cm biped with 14 servos that learns to stand and to recover from pushes."""
