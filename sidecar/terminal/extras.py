"""How a package that isn't installed is had: with an extra of this software. Here alone, because no registry has this
software, and what `pip install gpu-failover` finds in one would be another project's.
"""

from pathlib import Path

from sidecar.terminal.names import VERSION


def how_to_get(extra: str) -> str:
    """The command: from the checkout that this runs from, else from the wheel that it was installed from."""
    here = Path(__file__).resolve().parents[2]
    source = here if (here / "pyproject.toml").is_file() else f"gpu_failover-{VERSION}-py3-none-any.whl"
    return f"pip install '{source}[{extra}]'"
