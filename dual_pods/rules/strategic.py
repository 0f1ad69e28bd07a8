"""The server patch: a template that becomes YAML, and a strategic merge of it into a pod. Pure.

The API server has the merge's rules in its schema; here are those of a pod alone. `tests/dual_pods` holds the two
against each other.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from sidecar.terminal.formatting import size

MOST = 64 << 10
# By what a list's items are told apart: its field's name -> theirs. Any other list is replaced.
_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "env": "name",
    "ports": "containerPort",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "volumes": "name",
    "imagePullSecrets": "name",
    "resourceClaims": "name",
    "hostAliases": "ip",
    "schedulingGates": "name",
    "topologySpreadConstraints": "topologyKey",
}
_FIELD = re.compile(r"\{\{-?\s*\.(\w+)\s*-?\}\}")


class BadPatch(Exception):
    """A sentence about what the user has written."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence[:500])


def expanded(template: str, known: Mapping[str, str]) -> str:
    """FMA's patches are Go templates that know two words."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in known:
            raise BadPatch(f"it says {match[0]}, and only {', '.join('.' + name for name in known)} are known")
        return known[match[1]]

    text = _FIELD.sub(value, template)
    if "{{" in text:
        raise BadPatch("of Go's templates only {{ .NodeName }} and its like are understood here")
    return text


def mapping(text: str) -> dict[str, Any]:
    import yaml  # the controller has looked whether it is there

    if len(text) > MOST:  # it is read in a second for each 100 KiB, and nothing else happens meanwhile
        raise BadPatch(f"it has {size(len(text))}, and {size(MOST)} at most are read")

    class NoAliases(yaml.SafeLoader):  # type: ignore[misc]
        """An alias may stand for a thousand others: a few lines would become gigabytes."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise yaml.YAMLError("an alias (*) isn't taken here: write out what it stands for")
            return super().compose_node(parent, index)

    try:
        found = yaml.load(text, NoAliases)
    except yaml.YAMLError as error:
        raise BadPatch(f"it is no YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise BadPatch("it is nested too deeply") from None
    except (ValueError, OverflowError) as error:
        raise BadPatch(f"it has a date or a number that there is none of ({error}): put it in quotes") from None
    if not isinstance(found, dict):
        raise BadPatch("it is no mapping: it has to begin with a key and a colon")
    try:
        msgspec.json.encode(found)
    except (TypeError, ValueError) as error:
        raise BadPatch(f"it holds what JSON can't say: {error}") from None
    return found


def merged(old: Any, patch: Any) -> Any:
    """`patch` wins; null removes; lists with a key are merged item by item, new ones first."""
    if not isinstance(patch, dict):
        return patch
    directive = patch.get("$patch", "merge")
    found = dict(old) if isinstance(old, dict) and directive == "merge" else {}
    if directive not in ("merge", "replace", "delete"):
        raise BadPatch(f"$patch may be merge, replace or delete, and not {directive!r}")
    if "$retainKeys" in patch:
        found = {key: value for key, value in found.items() if key in patch["$retainKeys"]}
    if directive == "delete":
        return {}
    for key, value in patch.items():
        if not isinstance(key, str):
            raise BadPatch(f"a key is a text, and {key!r} isn't")
        if key.startswith("$"):
            if key not in ("$patch", "$retainKeys"):
                raise BadPatch(f"the directive {key} isn't understood here")
        elif value is None:
            found.pop(key, None)
        elif isinstance(value, list) and key in _KEYS:
            found[key] = _merged_list(key, found.get(key) or [], value)
        else:
            found[key] = merged(found.get(key), value)
    return found


def _merged_list(name: str, old: list[Any], patch: list[Any]) -> list[Any]:
    by = _KEYS[name]
    for entry in patch:
        if not isinstance(entry, dict) or (by not in entry and entry.get("$patch") != "replace"):
            raise BadPatch(f"each item of {name} needs its {by}")
    if any(entry.get("$patch") == "replace" for entry in patch):
        old, patch = [], [entry for entry in patch if "$patch" not in entry]
    gone = [entry[by] for entry in patch if entry.get("$patch") == "delete"]
    before = {entry[by]: entry for entry in old if entry[by] not in gone}
    after = {entry[by]: merged(before.get(entry[by]), entry) for entry in patch if entry[by] not in gone}
    return _in_order(list(before), list(after), before | after)


def _in_order(had: list[Any], said: list[Any], entries: dict[Any, Any]) -> list[Any]:
    """Those of the patch in its order, and each other one before the first of them that it stood before."""
    place = {key: number for number, key in enumerate(had)}
    kept = [key for key in had if key not in said]
    found: list[Any] = []
    while kept and said:
        first = said[0] in place and place[kept[0]] < place[said[0]]
        found.append((kept if first else said).pop(0))
    return [entries[key] for key in (*found, *kept, *said)]
