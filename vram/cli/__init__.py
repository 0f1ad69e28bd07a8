"""Commands for people and scripts."""
