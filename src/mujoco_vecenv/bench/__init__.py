"""Speed that can be believed: contestants in turns, a look at the machine, everything recorded."""
