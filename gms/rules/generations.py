"""Numbers of memory: a layout's or a pool's, one device's all together. Pure."""


class Generations:
    def __init__(self) -> None:
        self.newest = 0
        """They only grow, and no two writers or owners get the same, not even after a restart."""

    def next(self) -> int:
        """It is given once only, even if its process is then not let in."""
        self.newest += 1
        return self.newest
