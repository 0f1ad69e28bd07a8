"""`local-pod run`: reads the manifest, makes the namespaces, and waits for the end of the loop inside them.

What this file may not do: know kubelet's rules (`machine.py`), or what happens inside (`kubelet.py`).
"""

import argparse
import contextlib
import fcntl
import os
import pickle
import secrets
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

from . import CHECKOUT, forwarding, image, manifest, namespaces, places, processes, wire
from .commands import CANT_RUN, FAILED, Mistake
from .linting import Level, Unreadable, check, read
from .machine import Settings
from .sandbox import CantMake, Order, users
from .spec import Pod


def run(options: argparse.Namespace) -> int:
    pod = read_pod(options)
    root = os.geteuid() == 0
    why = namespaces.forbidden(root=root)
    if why:
        raise Mistake(why, CANT_RUN)
    try:
        who = users(pod, root=root)
    except CantMake as error:
        raise Mistake(str(error), CANT_RUN) from None
    seed = options.seed or secrets.randbits(32)
    settings = Settings(options.back_off_s, relist_s=options.relist_s, seed=seed)
    directory: Path = options.dir.absolute()
    with _claimed(directory):
        (directory / places.POD).write_bytes(pickle.dumps(Order(pod, who, settings, options.json)))
        for what in pod.ignored:
            print(f"local-pod: {what}: in the manifest, and without meaning here", file=sys.stderr)
        return _inside(pod, root, directory, options)


def _inside(pod: Pod, root: bool, directory: Path, options: argparse.Namespace) -> int:
    who = users(pod, root=root)
    words = [
        image.find("setpriv") or "setpriv", "--pdeathsig", "KILL", "--", image.find("unshare") or "unshare",
        *namespaces.flags(who.uid, who.gid, root=root, network=not pod.host_network),
        "--", sys.executable, "-m", f"{__package__}.kubelet", str(directory),
    ]  # fmt: skip
    environment = dict(os.environ)
    if CHECKOUT:  # wherever it was started
        places_of_ours = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, places_of_ours))
    loop = subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)
    forwarders = [forwarding.listen(directory / places.CONTROL, each) for each in options.forward]
    asked = False

    def end(number: int, frame: object) -> None:
        nonlocal asked
        grace = 0 if asked else None
        asked = True
        with contextlib.suppress(wire.NoPod, wire.Refused):
            wire.ask(directory / places.CONTROL, {"do": "down", "grace_s": grace})
            return
        loop.kill()

    signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGTERM, end)
    code = processes.exit_code(loop.wait())
    for forwarder in forwarders:
        forwarder.close()
    return code


@contextlib.contextmanager
def _claimed(directory: Path) -> Iterator[None]:
    """One pod for each directory; what an earlier one left there goes."""
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        lock = os.open(directory / places.LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Mistake(f"{directory} can't be used: {error.strerror}; give another --dir", CANT_RUN) from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Mistake(f"a pod runs in {directory} already: local-pod down, or another --dir", FAILED) from None
        for name in (places.LOGS, places.MOUNTS):
            shutil.rmtree(directory / name, ignore_errors=True)
            (directory / name).mkdir()
        for name in (places.EVENTS, places.CONTROL):
            (directory / name).unlink(missing_ok=True)
        try:
            yield
        finally:
            (directory / places.CONTROL).unlink(missing_ok=True)  # ours: the lock is held here
    finally:
        os.close(lock)


def read_pod(options: argparse.Namespace) -> Pod:
    """The pod that the files describe. Raises Mistake."""
    text = _text(options.file)
    try:
        documents = [each.value for each in read(text, str(options.file)) if isinstance(each.value, dict)]
    except Unreadable as error:
        raise Mistake(f"{options.file}:{error.line}: {error}", FAILED) from None
    if not options.no_lint:
        errors = [found for found in check([(str(options.file), text)]) if found.level is Level.ERROR]
        if errors:
            said = "\n".join(str(found) for found in errors)
            raise Mistake(f"no cluster would run this:\n{said}\n(--no-lint runs it all the same)", FAILED)
    wishes = manifest.Wishes(
        object=options.object,
        volumes=dict(options.volume),
        uid=str(uuid.uuid4()),
        startup_period_s=options.startup_period_s,
    )
    try:
        return manifest.pod(documents, wishes)
    except manifest.BadManifest as error:
        raise Mistake(f"{options.file}: {error}", FAILED) from None


def _text(path: Path) -> str:
    try:
        return sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except OSError as error:
        raise Mistake(f"{path} can't be read: {error.strerror}", CANT_RUN) from None
    except UnicodeDecodeError as error:
        raise Mistake(f"{path} is no text in UTF-8: {error}", CANT_RUN) from None
