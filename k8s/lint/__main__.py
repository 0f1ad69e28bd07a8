"""`python -m k8s.lint`: the command. Files in, findings out; the rules are in `check.py` and below."""

from sidecar.terminal import starting

if starting.is_command(__name__, "k8s-lint"):
    starting.die_of_ctrl_c()

import argparse
import json
import re
import sys
from pathlib import Path

from sidecar.terminal.exit_codes import EX_INTERRUPTED, EX_USAGE
from sidecar.terminal.extras import how_to_get
from sidecar.terminal.settings import BadValue, Parser, valued
from sidecar.terminal.terminal import OutputLost, say

from . import server, structure
from .node import Finding, Level

EXAMPLES = """\
examples:
  python -m k8s.lint k8s/dra/one-gpu.yaml
  python -m k8s.lint k8s/dra                                every .yaml, .yml and .json in it
  python -m k8s.lint deployment.yaml claim.yaml             what one file lacks may be in another
  python -m k8s.lint --have Secret/huggingface pod.yaml     what the cluster has already
  python -m k8s.lint --server k8s/dra                       and asks the cluster that kubectl speaks to
  helm template k8s/chart | python -m k8s.lint -

exit codes: 0 no errors (there may be warnings), 1 errors, 2 a file can't be read or the server can't be asked, 64 wrong
usage
"""

PROGRAM = "python -m k8s.lint" if __package__ == "k8s.lint" else "k8s-lint"
NAME = PROGRAM.removeprefix("python -m ")
_SUFFIXES = (".yaml", ".yml", ".json")
"""What `kubectl apply -f DIRECTORY` takes, too."""


class NoText(Exception):
    """A file that can't be manifests; the text says why."""


class AChart(Exception):
    """A directory of templates: what is to be judged is what Helm makes of them."""


def have(text: str) -> tuple[str, str]:
    """A value of --have."""
    kind, slash, name = text.partition("/")
    if not slash or not kind or not name:
        raise BadValue(f"{text!r} is no object; allowed: KIND/NAME such as Secret/huggingface")
    return kind, name


def version(text: str) -> str:
    """A value of --kubernetes, also as `kubectl version` says it."""
    found = re.fullmatch(r"v?(\d+\.\d+)(\.\d+.*)?", text)
    return found[1] if found else text


def parser() -> Parser:
    p = Parser(
        prog=PROGRAM,
        description="Says what is wrong with manifests before a cluster does: their shape, the references between "
        "them, and what pods of gpu-failover need. What else the API refuses the API server itself says: --server.",
        epilog=EXAMPLES.replace("python -m k8s.lint", PROGRAM),
    )
    p.add_argument("files", nargs="+", metavar="FILE", help="manifests, directories of them, or - for standard input")
    p.add_argument(
        "--have", action="append", default=[], type=valued(have), metavar="KIND/NAME", help="an object on the cluster"
    )
    p.add_argument(
        "--kubernetes", default=structure.NEWEST, type=version, metavar="VERSION",
        help=f"its version (default {structure.NEWEST})",
    )  # fmt: skip
    p.add_argument(
        "--server",
        action="store_true",
        help="ask the API server, too: kubectl apply --dry-run=server makes nothing",
    )
    p.add_argument("--json", action="store_true", help="one JSON object")
    p.add_argument("--errors-only", action="store_true", help="no warnings")
    return p


def main(argv: list[str] | None = None) -> int:
    try:
        starting.loaded()
        return _main(argv)
    except OutputLost as error:
        return error.exit_code(NAME)
    except KeyboardInterrupt:
        return EX_INTERRUPTED


def _main(argv: list[str] | None) -> int:
    options = parser().parse_args(argv)
    try:
        from .check import check  # here, so that --help and --version need nothing
    except ModuleNotFoundError as error:
        if error.name != "yaml":
            raise
        print(f"{NAME}: it needs the package yaml: {how_to_get('k8s')}", file=sys.stderr)
        return 2
    try:
        texts = _texts(options.files)
    except OSError as error:
        print(f"{NAME}: {error.filename} can't be read: {error.strerror}", file=sys.stderr)
        return 2
    except AChart as chart:
        print(f"{NAME}: {chart} is a Helm chart: helm template {chart} | {PROGRAM} -", file=sys.stderr)
        return 2
    except NoText as error:
        print(f"{NAME}: {error}", file=sys.stderr)
        return 2
    if not texts:
        print(f"{NAME}: there is no .yaml in {', '.join(options.files)}", file=sys.stderr)
        return 2
    try:
        structure.schemas(options.kubernetes)
        shapes = ""
    except structure.NoSchemas as error:
        if structure.HOW_TO_GET_IT not in str(error):
            print(f"{NAME}: {error}\nsee: {PROGRAM} --help", file=sys.stderr)
            return EX_USAGE
        shapes = str(error)
    findings = check(texts, options.kubernetes, options.have)
    try:
        findings += server.check(texts) if options.server else []
    except server.NoServer as error:
        print(f"{NAME}: {error}", file=sys.stderr)
        return 2
    if options.errors_only:
        findings = [found for found in findings if found.level is Level.ERROR]
    errors = sum(found.level is Level.ERROR for found in findings)
    _say(options, texts, findings, errors, shapes)
    return 1 if errors else 0


def _texts(files: list[str]) -> list[tuple[str, str]]:
    """Raises OSError, NoText."""
    found = []
    for name in files:
        if name == "-":
            found.append(("-", _text("standard input", sys.stdin.buffer.read())))
            continue
        path = Path(name)
        if (path / "Chart.yaml").is_file():
            raise AChart(name)
        inside = sorted(each for each in path.iterdir() if each.suffix in _SUFFIXES) if path.is_dir() else [path]
        found += [(str(each), _text(str(each), each.read_bytes())) for each in inside]
    return found


def _text(name: str, data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise NoText(f"{name} is no text in UTF-8: byte {error.start} is {data[error.start]:#04x}") from None


def _say(
    options: argparse.Namespace, texts: list[tuple[str, str]], findings: list[Finding], errors: int, shapes: str
) -> None:
    if options.json:
        say(
            json.dumps(
                {
                    "ok": not errors,
                    "errors": errors,
                    "warnings": len(findings) - errors,
                    "kubernetes": options.kubernetes,
                    "schemas": not shapes,
                    "files": [file for file, _ in texts],
                    "findings": [
                        {
                            "level": found.level.value,
                            "file": found.file,
                            "line": found.line,
                            "object": found.object,
                            "path": found.path,
                            "message": found.message,
                        }
                        for found in findings
                    ],
                },
                indent=2,
            )
        )
        return
    if shapes:
        print(f"{NAME}: warning: {shapes}", file=sys.stderr)
    for found in findings:
        say(str(found))
    counted = [(len(texts), "file"), (errors, "error"), (len(findings) - errors, "warning")]
    files, wrong, doubtful = (f"{count} {word}{'' if count == 1 else 's'}" for count, word in counted)
    say(f"{files}: {wrong}, {doubtful}")


if __name__ == "__main__":
    sys.exit(main())
