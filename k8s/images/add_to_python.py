"""`add_to_python.py PACKAGES`: makes gpu-failover, which lies in a directory, part of this Python. For images of vLLM.

A path file leads to the packages; metadata names vLLM's plugin; the two commands of an engine's container are written.
It needs nothing but Python, because an image of vLLM may have pip, uv, or neither.
"""

import sys
import sysconfig
from pathlib import Path

NAME, VERSION = "gpu_failover", "0.2.0"
COMMANDS = {"engine-shim": "engine_shim.__main__", "failover": "engine_shim.cli.failover"}
PLUGIN = "[vllm.general_plugins]\ngpu_failover = engine_shim.vllm_engine.plugin:register\n"


def add(packages: Path, site: Path, scripts: Path) -> None:
    (site / f"{NAME}.pth").write_text(f"{packages}\n")
    metadata = site / f"{NAME}-{VERSION}.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: gpu-failover\nVersion: {VERSION}\n")
    (metadata / "entry_points.txt").write_text(PLUGIN)
    for command, module in COMMANDS.items():
        path = scripts / command
        path.write_text(f"#!{sys.executable}\nimport sys\n\nfrom {module} import main\n\nsys.exit(main())\n")
        path.chmod(0o755)


if __name__ == "__main__":
    add(Path(sys.argv[1]), Path(sysconfig.get_path("purelib")), Path(sysconfig.get_path("scripts")))
