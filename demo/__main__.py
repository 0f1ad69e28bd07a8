"""`python -m demo` plays the demo, `python -m demo --lock` the lock alone; or it says what is missing here."""

import os
import signal
import sys

USAGE = "usage: python -m demo [--lock]     --lock: the lock alone, with stand-ins for engines"


def missing(needs: tuple[str, ...]) -> str:
    if sys.platform != "linux":
        return f"it needs Linux (pidfds, OFD locks), and here is {sys.platform}: use a Linux machine, VM or container"
    for package in needs:
        try:
            __import__(package)
        except ImportError:
            return f"it needs the package {package}: `make demo` installs it, or pip install .[reference]"
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return f"it needs pidfd_open (Linux 5.3, and a seccomp profile that allows it): {error.strerror}"
    return ""


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments not in ([], ["--lock"]):
        print(USAGE, file=sys.stderr)
        return 0 if arguments in (["-h"], ["--help"]) else 64
    lock_alone = arguments == ["--lock"]
    if lacks := missing(("msgspec",) if lock_alone else ("msgspec", "numpy", "h11")):
        print(f"demo: {lacks}", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if hasattr(sys.stdout, "reconfigure"):  # answers have characters that not every terminal has
        sys.stdout.reconfigure(errors="backslashreplace")
    return _play(lock_alone)


def _play(lock_alone: bool) -> int:
    from demo.machine import CantPlay, NotSo
    from sidecar.observer import ObserverError

    try:
        if lock_alone:
            from demo.lock.story import play
        else:
            from demo.story import play
        play()
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
