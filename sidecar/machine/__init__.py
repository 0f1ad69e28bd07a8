"""What every machine and every shell have in common: turns, loops, disk writes, restarts, keepers."""
