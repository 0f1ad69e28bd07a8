"""How vLLM finds our plugin: by the metadata of an installed package. A checkout in PYTHONPATH has none, so it gets
some here, in a directory of the engine's own, and nothing needs to be installed into an image.

What this file may not do: import vLLM, or change anything where the plugin is installed.
"""

import os
import sys
from importlib import metadata
from pathlib import Path

PLUGIN = "gpu_failover"
"""The name of the general plugin, as in pyproject.toml."""
GROUP = "vllm.general_plugins"
_ENTRY = f"[{GROUP}]\n{PLUGIN} = engine_shim.vllm_engine.plugin:register\n"
# It has a name of its own: if two distributions have the same name, only the first in the path is looked at.
_NAMED = "Metadata-Version: 2.1\nName: gpu-failover-checkout\nVersion: 0\n"


def publish(directory: Path) -> None:
    """To be called in the main process, before vLLM is loaded. Its processes find the plugin by PYTHONPATH."""
    if any(entry.name == PLUGIN for entry in metadata.entry_points(group=GROUP)):
        return
    made = directory / "gpu_failover_checkout-0.dist-info"
    made.mkdir(parents=True, exist_ok=True)
    (made / "METADATA").write_text(_NAMED)
    (made / "entry_points.txt").write_text(_ENTRY)
    sys.path.append(str(directory))
    checkout = Path(__file__).resolve().parents[2]
    # Ours go behind what is there: a person's own choices come first.
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*paths, str(checkout), str(directory)]))
