"""`python -m demo` plays the demo, or says what is missing here."""

import json
import os
import signal
import sys

USAGE = "usage: python -m demo [--json]     --json: the figures once more, as one JSON object in the last line"
NEEDS = ("msgspec", "numpy", "httptools", "uvloop", "prometheus_client")


def missing() -> str:
    if sys.platform != "linux":
        return f"it needs Linux (pidfds, OFD locks), and here is {sys.platform}: use a Linux machine, VM or container"
    for package in NEEDS:
        try:
            __import__(package)
        except ImportError:
            return f"it needs the package {package}: `make demo` installs it, or pip install .[gateway,reference]"
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return f"it needs pidfd_open (Linux 5.3, and a seccomp profile that allows it): {error.strerror}"
    return ""


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments not in ([], ["--json"]):
        print(USAGE, file=sys.stderr)
        return 0 if arguments in (["-h"], ["--help"]) else 64
    if lacks := missing():
        print(f"demo: {lacks}", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return _play("--json" in arguments)


def _play(as_json: bool) -> int:
    from demo.machine import CantPlay, NotSo
    from demo.story import play
    from sidecar.wire.observer import ObserverError

    try:
        figures = play()
        if as_json:
            print(json.dumps(figures), flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (CantPlay, NotSo, ObserverError, OSError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndemo: stopped; nothing is left of it", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
