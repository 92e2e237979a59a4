"""Another module that the script imports, and that stays what it is."""

REWARD = "v2"
