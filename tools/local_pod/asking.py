"""Asks a probe once, as kubelet does: from within the pod's network, with a bound on the time it may take.

HTTP: 200 to 399 is well, whatever the body. TCP: a connection. Exec: exit code 0, in the container, as its user. What
this file may not do: count, or know what follows.
"""

import asyncio
import contextlib
import http.client
import os
import signal
from collections.abc import Mapping, Sequence

from .spec import Exec, Handler, Http, Sleep

_SHOWN = 120
_BODY_BYTES = 10 << 10


async def ask(handler: Handler, address: str, timeout_s: float, enter: Sequence[str],
              environment: Mapping[str, str]) -> tuple[bool, str]:  # fmt: skip
    """(well, why). `enter` is the command in the container, for exec."""
    try:
        async with asyncio.timeout(timeout_s):
            if isinstance(handler, Http):
                return await asyncio.to_thread(_http, handler, address, timeout_s)
            if isinstance(handler, Exec):
                return await _exec(enter, environment)
            if isinstance(handler, Sleep):
                await asyncio.sleep(handler.seconds)
                return True, ""
            return await _tcp(address, handler.port)
    except TimeoutError:
        return False, f"no answer in {timeout_s:g} s"


def _http(handler: Http, host: str, timeout_s: float) -> tuple[bool, str]:
    connection = http.client.HTTPConnection(host, handler.port, timeout=timeout_s)
    try:
        headers = {"User-Agent": "kube-probe/local-pod", "Accept": "*/*", "Connection": "close"}
        connection.request("GET", handler.path, headers=headers)
        answer = connection.getresponse()
        body = answer.read(_BODY_BYTES).decode("utf-8", "replace").strip()
        return 200 <= answer.status < 400, f"{answer.status} {body[:_SHOWN]}".strip()
    except (OSError, http.client.HTTPException) as error:
        return False, _said(error)
    finally:
        connection.close()


async def _tcp(host: str, port: int) -> tuple[bool, str]:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError as error:
        return False, _said(error)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True, "connected"


async def _exec(command: Sequence[str], environment: Mapping[str, str]) -> tuple[bool, str]:
    process = await asyncio.create_subprocess_exec(
        *command, env=dict(environment), start_new_session=True, stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        said, _ = await process.communicate()
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        raise
    text = said.decode("utf-8", "replace").strip().splitlines()
    return process.returncode == 0, f"exit code {process.returncode}" + (f": {text[-1][:_SHOWN]}" if text else "")


def _said(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
