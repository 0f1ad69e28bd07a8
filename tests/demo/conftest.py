"""A demo that runs, and every process in it gone at the end."""

from tests.lockctl.conftest import house

__all__ = ["house"]
