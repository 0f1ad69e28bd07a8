"""The reference engine alone, for trying it: no lock, no GMS, no other engine.

python -m reference_engine --standalone --listen 127.0.0.1:8000
"""

import signal
import sys
import threading

from engine_shim.engine import CannotServe
from reference_engine import options
from reference_engine.engine import ReferenceEngine

_DRAIN_S = 20.0


def main(argv: list[str]) -> None:
    chosen = options.parse(argv)
    if not chosen.standalone:
        options.parser().error(
            "as one of a pair it is started by `engine-shim --engine reference`; alone with --standalone"
        )
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    engine = ReferenceEngine(argv)
    engine.start()
    engine.sleep()
    engine.wake()
    try:
        engine.serve(chosen.listen)
    except CannotServe as error:
        engine.stop()
        sys.exit(f"reference: {error}")
    print(f"serving {chosen.model} at {engine.address}", flush=True)
    ended.wait()
    engine.drain(_DRAIN_S)
    engine.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
