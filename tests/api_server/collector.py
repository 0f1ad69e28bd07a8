"""The garbage collector: what has lost all its owners is deleted; an owner waits for those that it may not leave."""

from typing import Any

from tests.api_server.kinds import Resource
from tests.api_server.store import Key, Store

Object = dict[str, Any]
FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"


def owners(value: Object) -> list[Object]:
    found: list[Object] = value["metadata"].get("ownerReferences", [])
    return found


class Collector:
    """One `look` does what one look shows; it is looked again after each change."""

    def __init__(self, store: Store, resources: dict[str, Resource], api: Any) -> None:
        self._store, self._resources, self._api = store, resources, api

    def look(self) -> None:
        for key, value in list(self._store.objects.items()):
            if self._store.objects.get(key) is value and owners(value):
                self._dependent(key, value)
        for key, value in list(self._store.objects.items()):
            finalizers = value["metadata"].get("finalizers", [])
            if "deletionTimestamp" not in value["metadata"]:
                continue
            waits = [d for d in self._dependents(value) if self._owner(d, value).get("blockOwnerDeletion")]
            if FOREGROUND in finalizers and not waits:
                self._finalized(key, value, FOREGROUND)
            elif ORPHAN in finalizers:
                for dependent in self._dependents(value):
                    kept = [o for o in owners(dependent) if o["uid"] != value["metadata"]["uid"]]
                    self._owned_by(dependent, kept)
                self._finalized(key, value, ORPHAN)

    def _dependent(self, key: Key, value: Object) -> None:
        there = [self._find(owner, key.namespace) for owner in owners(value)]
        lost = [owner for owner, found in zip(owners(value), there, strict=True) if found is None]
        leaves = [
            found is None or (found != {} and FOREGROUND in found["metadata"].get("finalizers", ())) for found in there
        ]
        if all(leaves):
            if "deletionTimestamp" not in value["metadata"]:
                self._api.delete_now(self._resources[key.resource], key)
        elif lost:
            self._owned_by(value, [owner for owner in owners(value) if owner not in lost])

    def _find(self, owner: Object, namespace: str) -> Object | None:
        """Empty: of a kind that isn't served here, so nothing is known of it."""
        group = owner["apiVersion"].rpartition("/")[0]
        for resource in self._resources.values():
            if (resource.group, resource.kind) == (group, owner["kind"]):
                place = namespace if resource.namespaced else ""
                found = self._store.objects.get(Key(resource.full_name, place, owner["name"]))
                return found if found is not None and found["metadata"]["uid"] == owner["uid"] else None
        return {}

    def _dependents(self, value: Object) -> list[Object]:
        return [each for each in self._store.objects.values() if self._owner(each, value)]

    def _owner(self, value: Object, owner: Object) -> Object:
        return next((o for o in owners(value) if o["uid"] == owner["metadata"]["uid"]), {})

    def _owned_by(self, value: Object, kept: list[Object]) -> None:
        self._change(value, {"ownerReferences": kept})

    def _finalized(self, key: Key, value: Object, finalizer: str) -> None:
        self._change(value, {"finalizers": [name for name in value["metadata"]["finalizers"] if name != finalizer]})

    def _change(self, value: Object, metadata: Object) -> None:
        self._api.change(value, metadata)
