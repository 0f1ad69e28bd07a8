"""What may be said on the command line of `hold`, whichever server's, and what can be known to be wrong before it is
asked. What it promises stands in each command's help, how it goes in `held_command.py`.
"""

import argparse

from sidecar.terminal.settings import BadValue, Parser, seconds_or_zero, size_bytes, valued


def declare(command: Parser, *, needs: str, waits_for: str, grace: str) -> None:
    """In words: what `--needs` is for, what is waited for, and when a command is told to end."""
    command.add_argument(
        "--needs",
        type=device_bytes,
        action="append",
        default=[],
        metavar="DEVICE=BYTES",
        help=f"{needs}, such as host:0=4GiB; may be repeated",
    )
    command.add_argument(
        "--timeout-s",
        type=valued(seconds_or_zero),
        default=None,
        metavar="S",
        help=f"how long to wait for {waits_for}; default: for ever",
    )
    command.add_argument("--no-wait", action="store_true", help="don't wait at all")
    command.add_argument(
        "--grace-s",
        type=valued(seconds_or_zero),
        default=5.0,
        metavar="S",
        help=f"between SIGTERM and SIGKILL {grace}; default 5",
    )
    command.add_argument("--quiet", action="store_true", help="say nothing while waiting")
    command.add_argument("words", nargs="*", metavar="COMMAND", help="what to run, and its arguments")


def needs(options: argparse.Namespace) -> dict[str, int]:
    """Ends the program where they, or the command, make no sense."""
    if not options.words:
        options.parser.error("which command? Put it behind --")
    found = dict(options.needs)
    if len(found) < len(options.needs):
        options.parser.error("--needs names a device twice")
    return found


def device_bytes(text: str) -> tuple[str, int]:
    device, equals, count = text.rpartition("=")
    if not equals or not device or len(device) > 128:
        raise argparse.ArgumentTypeError(f"{text!r} is no amount of memory; allowed: DEVICE=BYTES such as host:0=4GiB")
    try:
        return device, size_bytes(count)
    except BadValue as error:
        raise argparse.ArgumentTypeError(str(error)) from None
