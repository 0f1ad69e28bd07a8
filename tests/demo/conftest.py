"""A demo that runs, and everybody in it gone at the end."""

from tests.lockctl.conftest import house

__all__ = ["house"]
