"""The garbage collector: what has lost all its owners is deleted; an owner waits for those that it may not leave."""

from typing import Any

from tests.api_server.kinds import Resource
from tests.api_server.store import Key, Store

Object = dict[str, Any]
HOLDS = {"Foreground": "foregroundDeletion", "Orphan": "orphan"}
"""A finalizer for each way of deletion."""


def _owners(value: Object) -> list[Object]:
    found: list[Object] = value["metadata"].get("ownerReferences", [])
    return found


class Collector:
    """One `look` does what one look shows; it is looked again after each change."""

    def __init__(self, store: Store, resources: dict[str, Resource], api: Any) -> None:
        self._store, self._resources, self._api = store, resources, api

    def look(self) -> None:
        for key, value in list(self._store.objects.items()):
            if self._store.objects.get(key) is value and _owners(value):
                self._dependent(key, value)
        for key, value in list(self._store.objects.items()):
            meta = value["metadata"]
            if "deletionTimestamp" in meta and self._store.objects.get(key) is value:
                for finalizer in {*HOLDS.values()} & {*meta.get("finalizers", ())}:
                    self._owner(key, meta["uid"], finalizer)

    def _dependent(self, key: Key, value: Object) -> None:
        there = [(owner, self._find(owner, key.namespace)) for owner in _owners(value)]
        kept = [owner for owner, found in there if found is not None]
        if not any(found == {} or (found and not self._waits(found)) for _, found in there):
            if "deletionTimestamp" not in value["metadata"]:
                self._api.delete(self._resources[key.resource], key, "Background", None)
        elif len(kept) < len(there):
            self._api.change(key, ownerReferences=kept)

    def _waits(self, owner: Object) -> bool:
        return HOLDS["Foreground"] in owner["metadata"].get("finalizers", ())

    def _find(self, owner: Object, namespace: str) -> Object | None:
        """Empty: of a kind that isn't served here, so nothing is known of it."""
        group = owner["apiVersion"].rpartition("/")[0]
        for resource in self._resources.values():
            if (resource.group, resource.kind) == (group, owner["kind"]):
                place = namespace if resource.namespaced else ""
                found = self._store.objects.get(Key(resource.full_name, place, owner["name"]))
                return found if found is not None and found["metadata"]["uid"] == owner["uid"] else None
        return {}

    def _owner(self, key: Key, uid: str, finalizer: str) -> None:
        mine = {k: [o for o in _owners(v) if o["uid"] == uid] for k, v in self._store.objects.items()}
        if finalizer == HOLDS["Orphan"]:
            for each in [each for each, owners in mine.items() if owners]:
                kept = [owner for owner in _owners(self._store.objects[each]) if owner["uid"] != uid]
                self._api.change(each, ownerReferences=kept)
        elif any(owner.get("blockOwnerDeletion") for owners in mine.values() for owner in owners):
            return
        if key in self._store.objects:
            left = [name for name in self._store.objects[key]["metadata"]["finalizers"] if name != finalizer]
            self._api.change(key, finalizers=left)
