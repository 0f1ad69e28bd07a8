"""The lock alone, to be seen in ten seconds: `python -m demo --lock`. Stand-ins for engines, and what proves an end."""
