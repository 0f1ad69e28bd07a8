"""`python -m demo`: plays the demo, or says in a line what this machine lacks for it."""

import os
import signal
import sys


def missing() -> str:
    if sys.platform != "linux":
        return f"it needs Linux (pidfds, OFD locks), and here is {sys.platform}: use a Linux machine, VM or container"
    try:
        import msgspec  # noqa: F401
    except ImportError:
        return "it needs the package msgspec: `make demo` installs it, or pip install ."
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return f"it needs pidfd_open (Linux 5.3, and a seccomp profile that allows it): {error.strerror}"
    return ""


def main() -> int:
    if lacks := missing():
        print(f"demo: {lacks}", file=sys.stderr)
        return 1
    from demo.stage import CantPlay
    from demo.story import play

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        play()
    except CantPlay as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndemo: stopped; nothing is left of it", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return 0


if __name__ == "__main__":
    sys.exit(main())
