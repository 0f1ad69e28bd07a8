"""Asks the API server of the cluster that kubectl speaks to: what it would say, without doing anything (--server).

Its verdict is the last one on everything that the API itself validates. Its lines are handed on as they are.
"""

import shutil
import subprocess
from collections.abc import Iterable

from .node import Finding, Level

COMMAND = ("apply", "--dry-run=server", "--validate=strict", "--output=name", "-f", "-")
PATIENCE_S = 120
_NO_ANSWER = (
    "Unable to connect to the server", "The connection to the server", "no configuration has been provided",
    "failed to download openapi",
)  # fmt: skip


class NoServer(Exception):
    """It can't be asked; the text says why, and what to do."""


def check(texts: Iterable[tuple[str, str]]) -> list[Finding]:
    """Raises NoServer."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise NoServer("--server needs kubectl, and there is none in PATH: https://kubernetes.io/docs/tasks/tools")
    findings = []
    for file, text in texts:
        try:
            done = subprocess.run(
                [kubectl, *COMMAND], input=text, capture_output=True, text=True, check=False, timeout=PATIENCE_S
            )
        except subprocess.TimeoutExpired:
            raise NoServer(f"kubectl got no answer from the server in {PATIENCE_S} s") from None
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        if any(reason in line for line in lines for reason in _NO_ANSWER):
            raise NoServer(f"kubectl can't ask its server: {lines[-1].partition('; if you choose')[0]}")
        if done.returncode and not lines:
            lines = [f"kubectl ended with {done.returncode}"]
        for line in lines:
            level = Level.WARNING if line.startswith("Warning:") or not done.returncode else Level.ERROR
            findings.append(Finding(level, file, 1, "", "", f"the API server says: {line}"))
    return findings
