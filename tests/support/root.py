"""For tests that need root."""

import os

import pytest

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: PID namespaces, other users, mounts")
