"""What there is, to be seen in less than a minute: `python -m demo`. Needs Linux and nothing else; no GPU, no root."""
