"""What there is, to be seen in ten seconds: `python -m demo`. Needs Linux and nothing else; no GPU, no root."""
