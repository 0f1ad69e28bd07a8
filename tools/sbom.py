"""The bill of materials of a wheel, in CycloneDX's JSON: what its core and the extra `all` bring, in the versions of
the lock file, with the licences that the installed packages name. torch, vLLM and Helm are others' to list.
"""

import hashlib
import json
import re
import uuid
import zipfile
from collections.abc import Mapping
from email.message import Message
from email.parser import Parser
from importlib.metadata import metadata, requires
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement


def spelled(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def of(wheel: Path, pins: Mapping[str, str]) -> str:
    """`pins`: package -> version."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
        ours = Parser().parsestr(archive.read(name).decode())
    lines: list[str] = ours.get_all("Requires-Dist", [])
    core: dict[str, list[str]] = {}
    needs: dict[str, list[str]] = {}
    direct = {extra: _wanted(lines, {extra}, ours["Name"], needs if extra else core) for extra in ("", "all")}
    root = _component(ours, ours["Version"]) | {"type": "application"}
    found = [_component(metadata(each), pins[each]) for each in sorted(needs | core)]  # type: ignore[arg-type]
    for each in found:
        each["scope"] = "required" if spelled(each["name"]) in core else "optional"
    refs = {spelled(each["name"]): each["bom-ref"] for each in found}
    tree = {root["bom-ref"]: direct["all"]} | {refs[each]: inner for each, inner in (needs | core).items()}
    said = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, hashlib.sha256(wheel.read_bytes()).hexdigest())}",
        "version": 1,
        "metadata": {"component": root},
        "components": found,
        "dependencies": [{"ref": ref, "dependsOn": [refs[each] for each in inner]} for ref, inner in tree.items()],
    }
    return json.dumps(said, indent=2) + "\n"


def _wanted(lines: list[str], extras: set[str], own: str, found: dict[str, list[str]]) -> list[str]:
    """What these requirements ask for here, and into `found` what that asks for in turn."""
    direct = set()
    for wanted in map(Requirement, lines):
        if wanted.marker is not None and not any(wanted.marker.evaluate({"extra": each}) for each in {"", *extras}):
            continue
        if spelled(wanted.name) == spelled(own):  # an extra made of others
            direct |= set(_wanted(lines, wanted.extras, own, found))
            continue
        direct.add(name := spelled(wanted.name))
        if name not in found:
            found[name] = []
            found[name] = _wanted(requires(name) or [], wanted.extras, name, found)
    return sorted(direct)


def _component(said: Message, version: str) -> dict[str, Any]:
    purl = f"pkg:pypi/{spelled(said['Name'])}@{version}"
    known = said["License-Expression"]
    named = [each.split(" :: ")[-1] for each in said.get_all("Classifier", []) if each.startswith("License ::")]
    short = [each for each in [said["License"] or ""] if each and "\n" not in each]
    licences = [{"expression": known}] if known else [{"license": {"name": each}} for each in (named or short)[:1]]
    one = {"type": "library", "bom-ref": purl, "name": said["Name"], "version": version, "purl": purl}
    return one | ({"licenses": licences} if licences else {})
