"""The vLLM engine, which takes naps before it stands by and writes down how long it took to wake: for `engine.py`.

engine-shim --engine tests.gpu.sleep_and_wake:make ... -- NOTES ARGUMENTS...
"""

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

from engine_shim.engine import Setting

NAPS = 12


def make(setting: Setting) -> Any:
    from engine_shim import vllm_engine

    notes, *arguments = setting.arguments
    setting = dataclasses.replace(setting, arguments=tuple(arguments))
    vllm_engine.prepare(setting)
    from engine_shim.vllm_engine.engine import VllmEngine

    class Napper(VllmEngine):
        def start(self) -> None:
            super().start()
            wakes = []
            for _ in range(NAPS):
                super().sleep()
                began = time.monotonic()
                super().wake()
                wake_s = time.monotonic() - began
                parts: list[dict[str, float]] = self._run(self._client.collective_rpc("failover_times"))
                wakes.append({"wake_s": wake_s, **{name: max(each[name] for each in parts) for name in parts[0]}})
            places: list[dict[str, Any]] = self._run(self._client.collective_rpc("failover_places"))
            slabs = [size for _, size in places[0]["weights"]]
            Path(notes).write_text(json.dumps({"wakes": wakes, "slabs": slabs}))

    return Napper(setting)
