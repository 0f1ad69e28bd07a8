"""The vLLM engine, which takes naps before it stands by, and writes down what it saw: for test_nap.py.

engine-shim --engine tests.vllm.sleep_and_wake:make ... -- NOTES ARGUMENTS...
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

from engine_shim.engine import Setting

NAPS = 3
TOKENS = 12
LONG = [number % 50 + 5 for number in range(300)]


def make(setting: Setting) -> Any:
    from engine_shim import vllm_engine

    notes, *arguments = setting.arguments
    setting = dataclasses.replace(setting, arguments=tuple(arguments), kv="drop", kv_parked=1 << 30)
    vllm_engine.prepare(setting)
    from engine_shim.vllm_engine.engine import VllmEngine

    class Napper(VllmEngine):
        def start(self) -> None:
            super().start()
            seen = [self._seen("started", awake=False)]
            for _ in range(NAPS):
                super().sleep()
                seen.append(self._seen("asleep", awake=False))
                super().wake()
                seen.append(self._seen("awake", awake=True))
            seen.append(self._after("hasty", "failover_park", [1]))
            seen.append(self._after("other weights", "failover_unparked", [False]))
            seen += [self._after_a_wish_to_forget() for _ in range(2)]
            Path(notes).write_text(json.dumps(seen))

        def _after(self, when: str, method: str, said: list[Any]) -> dict[str, Any]:
            """A nap in which the first ranks say this of `method`, and each other one what it would."""
            ask, cached = self._client.collective_rpc, list[int]()

            async def one_says(asked: str, *args: Any, **more: Any) -> Any:
                found = await ask(asked, *args, **more)
                return [*said, *found[len(said) :]] if asked == method else found

            self._client.collective_rpc = one_says
            super().sleep()
            super().wake()
            self._client.collective_rpc = ask
            return {"when": when, "long": self._run(self._generate(LONG, cached)), "cached": cached}

        def _after_a_wish_to_forget(self) -> dict[str, Any]:
            """The cache is empty then, when it sleeps. What it holds after that is to be forgotten, too."""
            cached: list[int] = []
            self._run(self._client.reset_prefix_cache())
            super().sleep()
            super().wake()
            self._run(self._generate(LONG))
            forgotten = self._run(self._client.reset_prefix_cache())
            self._run(self._generate(LONG, cached))
            return {"when": "forgotten", "forgotten": forgotten, "cached": cached}

        def _seen(self, when: str, *, awake: bool) -> dict[str, Any]:
            tokens = self._run(self._generate([5, 6, 7])) if awake else []
            cached: list[int] = []
            long = self._run(self._generate(LONG, cached)) if awake else []
            places = self._run(self._client.collective_rpc("failover_places"))
            known = list(self.known()) if awake else []
            return {
                "when": when,
                "tokens": tokens,
                "long": long,
                "cached": cached,
                "known": known,
                "ranks": places,
                "well": self.well(),
                "needs": self.needs(),
            }

        async def _generate(self, prompt: list[int], cached: list[int] | None = None) -> list[int]:
            """`cached`: gets how many tokens of the prompt were in the cache."""
            from vllm import SamplingParams

            sampling = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
            tokens: list[int] = []
            async for output in self._client.generate({"prompt_token_ids": prompt}, sampling, request_id="nap"):
                tokens = list(output.outputs[0].token_ids)
            if cached is not None:
                cached.append(output.num_cached_tokens)
            return tokens

    return Napper(setting)
