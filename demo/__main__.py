"""`python -m demo` plays the demo, or says what is missing here."""

from sidecar.terminal import starting

if __name__ == "__main__":
    starting.die_of_ctrl_c()

import argparse
import json
import os
import signal
import sys
from pathlib import Path

from sidecar.terminal.exit_codes import EX_USAGE

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


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    found.add_argument("--json", action="store_true", help="the figures once more, as one JSON object in the last line")
    found.add_argument("--report", type=Path, metavar="FILE.html", help="what was measured, as a page")
    found.add_argument("--record", type=Path, metavar="FILE.svg", help="what was printed and when, as a moving picture")
    found.add_argument("--keep", action="store_true", help="leave the pair up, with a curl to try (make demo KEEP=1)")
    found.add_argument(
        "--engine", choices=["reference", "vllm"], default="reference", help="which engine it plays with"
    )
    found.add_argument(
        "--no-proof", action="store_true", help="what happens without the proof: one kill with, one without"
    )
    return found


def main(arguments: list[str] | None = None) -> int:
    try:
        options = parser().parse_args(arguments)
    except SystemExit as end:
        return EX_USAGE if end.code else 0
    if lacks := missing():
        print(f"demo: {lacks}", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return _play(options)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        print("\ndemo: stopped; nothing is left of it", file=sys.stderr)
        return 130


def _play(options: argparse.Namespace) -> int:
    from demo import recording

    tape = sys.stdout = recording.Tape(sys.stdout)  # before anything is printed
    from demo import no_proof, report, story
    from demo.machine import CantPlay, NotSo
    from sidecar.wire.observer import ObserverError

    try:
        if options.no_proof:
            no_proof.play()
            return 0
        seen = story.play(options.engine, options.keep)
        if options.report is not None:
            _write(options.report, report.page(seen))
        if options.record is not None:
            _write(options.record, recording.picture(tape.said, seen))
        if options.json:
            print(json.dumps(seen.figures), flush=True)
    except BrokenPipeError:
        raise
    except (CantPlay, NotSo, ObserverError, OSError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    return 0


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    print(f"  {file}: {file.stat().st_size >> 10} KiB", flush=True)


if __name__ == "__main__":
    sys.exit(main())
