"""Commands for people and scripts: what those of several servers have in common."""
