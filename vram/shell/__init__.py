"""The shell: what touches the world. It decides nothing."""
