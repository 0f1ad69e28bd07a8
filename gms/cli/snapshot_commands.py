"""`gmsctl save` and `restore`: a model's weights from its devices to disk, and back. What a snapshot is stands in
`snapshot.py`.

All devices that have the model take part, in the order in which gms has them: the model's ranks. A restore can be said
again: a rank that is there already isn't read twice.
"""

import argparse
import contextlib
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gms.cli.transfer_commands import Bar, connected, region_unsaid, says_whom, timeout, told
from gms.client import GmsClient
from gms.observer import Observer
from gms.shell.transfer import CannotTransfer, summed
from gms.snapshot import Manifest, Snapshot, find, save
from sidecar.terminal.commands import Command
from sidecar.terminal.formatting import size
from sidecar.terminal.settings import Parser
from sidecar.terminal.terminal import say

SAVE = """\
Reads the weights of all devices that have them, beside the engines that read them, and writes them to DIR: raw shards,
and a manifest with their digests. The snapshot that was there before is there until all of the new one is on disk,
whatever is killed. With --json an object: region, place, bytes, seconds, devices, fingerprint.

exit codes: 0 saved; 1 it can't be; 2 no server; 3 not in time: nothing is committed

examples:
  gmsctl save /models/llama-3.snapshot
  gmsctl save /models/llama-3.snapshot --region llama-3
"""

RESTORE = """\
Reads a snapshot into the devices, one rank each, in the order in which gms has them. Digests are compared on the way,
and nothing is committed of a rank whose shards are damaged. Where these very weights are, nothing is done; where others
are, it is refused. With --json an object, as `save`.

exit codes: 0 the weights are there; 1 refused, or damaged; 2 no server; 3 not in time: a process reads or writes

examples:
  gmsctl restore /models/llama-3.snapshot
  gmsctl restore /models/llama-3.snapshot --region llama-3
"""


def add_commands(add: Callable[[str, Command, str, str], Parser]) -> None:
    command = add("save", save_to, "Writes a model's weights to a directory: a snapshot.", SAVE)
    command.add_argument("place", type=Path, metavar="DIR")
    timeout(command, "wait for weights")
    command = add("restore", restore, "Reads a snapshot into the devices.", RESTORE)
    command.add_argument("place", type=Path, metavar="DIR")
    timeout(command, "wait for processes that read or write")
    command.set_defaults(region=None)


def save_to(options: argparse.Namespace) -> int:
    with told() as outcome, contextlib.ExitStack() as stack:
        options.devices = devices_with(options)
        began, readers = time.monotonic(), []
        for device in options.devices:
            client = stack.enter_context(connected(options, device))
            with says_whom(options, device):
                readers.append(stack.enter_context(client.read(options.timeout_s)))
        with Bar("save", sum(sum(reader.sizes) for reader in readers)) as bar:
            manifest = save(readers, options.region, options.place, bar.add)
        _said(options, "saved", manifest, time.monotonic() - began)
    return outcome.code


def restore(options: argparse.Namespace) -> int:
    with told() as outcome:
        snapshot, began = find(options.place), time.monotonic()
        if snapshot is None:
            raise CannotTransfer(f"there is no snapshot at {options.place}: gmsctl save makes one")
        manifest = snapshot.manifest
        if len(options.devices) < len(manifest.ranks):
            raise CannotTransfer(
                f"the snapshot {options.place} has {len(manifest.ranks)} ranks, and there are {len(options.devices)} "
                f"devices for them: {', '.join(options.devices)}"
            )
        options.devices = options.devices[: len(manifest.ranks)]
        options.region = options.region or region_unsaid(options, manifest.key)
        with Bar("restore", manifest.bytes) as bar, ThreadPoolExecutor(len(manifest.ranks)) as ranks:

            def one(rank: int, device: str) -> None:
                with connected(options, device) as client:
                    _fill(options, client, snapshot, rank, bar)

            for done in [ranks.submit(one, *each) for each in enumerate(options.devices)]:
                done.result()
        _said(options, "restored", manifest, time.monotonic() - began)
    return outcome.code


def devices_with(options: argparse.Namespace) -> list[str]:
    """Raises NoServer."""
    found = []
    for device in options.devices:
        with Observer(options.run_dir, device, options.answer_timeout_s) as observer:
            regions = observer.status().regions
        if any(each.key == options.region and each.policy == "shared" and each.generation for each in regions):
            found.append(device)
    if not found:
        raise CannotTransfer(f"there are no weights of {options.region}: gmsctl status shows what there is")
    return found


def _fill(options: argparse.Namespace, client: GmsClient, snapshot: Snapshot, rank: int, bar: Bar) -> None:
    ours = snapshot.manifest.ranks[rank]
    if client.generation:
        same = client.hash == ours.hash
        if same:  # of layout; it was restored before, or is what was saved, if its contents are the same, too
            with says_whom(options, client.device):
                reader = client.read(options.timeout_s)
            with reader:
                sums = [summed(reader, slab, bar.add) for slab in range(len(reader.sizes))]
            same = sums == [shard.digest for shard in ours.shards]
        if not same:
            raise CannotTransfer(
                f"{client.device} has other weights under {options.region}: gmsctl clear takes them away"
            )
        return
    with says_whom(options, client.device):
        writer = client.write(options.timeout_s, bytes=ours.bytes)
    with writer:
        snapshot.fill(rank, writer, bar.add)


def _said(options: argparse.Namespace, what: str, manifest: Manifest, took_s: float) -> None:
    if options.json:
        picture = {"region": options.region, "place": str(options.place), "bytes": manifest.bytes}
        picture |= {"seconds": round(took_s, 3), "devices": options.devices, "fingerprint": manifest.fingerprint}
        say(json.dumps(picture))
    else:
        ranks = f" in {len(manifest.ranks)} ranks" if len(manifest.ranks) > 1 else ""
        say(f"{options.region} is {what}: {size(manifest.bytes)}{ranks}, {took_s:.1f} s ({options.place})")
