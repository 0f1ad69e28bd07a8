"""The vLLM engine, which stops on its way for as long as the test wants: for what happens in the middle of a start or a
wake.

    engine-shim --engine tests.vllm.holding:make ... -- ARGUMENTS... DIRECTORY

A file `hold_start` in the directory holds a start that is done but for its saying so; `hold_wake` holds a wake before
anything of it is done. `at_start` and `at_wake` say that it has come that far.
"""

import dataclasses
import select
from pathlib import Path
from typing import Any

from engine_shim.engine import Setting


def make(setting: Setting) -> Any:
    from engine_shim import vllm_engine

    *arguments, directory = setting.arguments
    setting = dataclasses.replace(setting, arguments=tuple(arguments))
    vllm_engine.prepare(setting)
    from engine_shim.vllm_engine.engine import VllmEngine

    class Holding(VllmEngine):
        def start(self) -> None:
            super().start()
            self._hold("start")

        def wake(self) -> None:
            self._hold("wake")
            super().wake()

        def _hold(self, where: str) -> None:
            hold, here = (Path(directory, f"{word}_{where}") for word in ("hold", "at"))
            if hold.exists():
                here.touch()
            while hold.exists():
                select.select([], [], [], 0.01)

    return Holding(setting)
