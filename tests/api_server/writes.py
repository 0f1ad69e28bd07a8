"""What a POST, a PUT, a patch and an apply make of an object, all on one way to the store (`_written`); and deletion.

The order of the checks is the real server's.
"""

import copy
import json
import time
from typing import Any

from tests.api_server import changes, kinds, schema
from tests.api_server.access import Access
from tests.api_server.asked import Asked, Refused, conflict, invalid, invalid_options, named, not_found, rfc3339
from tests.api_server.collector import HOLDS, Collector
from tests.api_server.kinds import Resource
from tests.api_server.store import Key, Store

Object = dict[str, Any]
_SERVER_OWNED = (
    "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "managedFields"
)  # fmt: skip
_KEPT = ("uid", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "namespace")
_FIXED = ("creationTimestamp", "resourceVersion", "managedFields")
_PATCHES = {"merge-patch+json", "strategic-merge-patch+json", "json-patch+json", "apply-patch+yaml"}


class Writes:
    """What changes an object: all that is stored goes through `_put`."""

    def __init__(self) -> None:
        self.store = Store()
        self.resources = dict(kinds.SERVED)
        self.access = Access(self.store)
        self._collector = Collector(self.store, self.resources, self)

    def found(self, asked: Asked) -> Object:
        found = self.store.objects.get(asked.key)
        if found is None:
            raise not_found(asked.resource, asked.name)
        return found

    def _create(self, asked: Asked) -> tuple[int, Object]:
        body = self._decoded(asked)
        if asked.sub == "binding":
            return 201, self._bind(asked, body)
        if asked.sub == "token":
            return 201, self._token(asked, body)
        return 201, self._written(asked, None, body)

    def _token(self, asked: Asked, body: Object) -> Object:
        now, token = time.time(), self.access.token(asked.namespace, asked.name)
        meta = {"name": asked.name, "namespace": asked.namespace, "uid": self.found(asked)["metadata"]["uid"]}
        spec = {"audiences": ["https://kubernetes.default"], "boundObjectRef": None, **body["spec"]}
        status = {"token": token, "expirationTimestamp": rfc3339(now + spec["expirationSeconds"])}
        kind = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1"}
        return {**kind, "metadata": meta | {"creationTimestamp": rfc3339(now)}, "spec": spec, "status": status}

    def _bind(self, asked: Asked, body: Object) -> Object:
        pod, target = self.found(asked), body.get("target", {}).get("name", "")
        if not target:
            raise Refused(500, "target.name: Required value")
        if body["metadata"].get("uid", pod["metadata"]["uid"]) != pod["metadata"]["uid"]:
            raise conflict(asked.resource, asked.name)
        for name, why in (("nodeName", "is already assigned to node"), ("schedulingGates", "has scheduling gates")):
            if pod["spec"].get(name):
                raise Refused(409, f"pod {asked.name} {why}", {"name": asked.name, "kind": "pods/binding"})
        new = copy.deepcopy(pod)
        new["spec"]["nodeName"] = target
        if body["metadata"].get("annotations"):
            new["metadata"].setdefault("annotations", {}).update(body["metadata"]["annotations"])
        scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None}
        others = [c for c in new["status"].get("conditions", ()) if c["type"] != "PodScheduled"]
        new["status"]["conditions"] = [*others, {**scheduled, "lastTransitionTime": rfc3339(time.time())}]
        self._put(asked.resource, asked.key, new)
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}

    def _decoded(self, asked: Asked) -> Object:
        if asked.headers.get("content-type", "") not in ("application/json", "application/yaml"):
            raise Refused(415, "the body of the request was in an unknown format")
        body: Object = self._loaded(asked, dict)
        if asked.sub in ("", "status"):
            self._check_shape(asked, body)
        return body

    def _loaded(self, asked: Asked, wanted: type) -> Any:
        try:
            found = json.loads(asked.body)
        except ValueError as error:
            raise Refused(400, f"the object provided is unrecognized: {error}") from None
        if not isinstance(found, wanted):
            raise Refused(400, "the object provided is of a wrong type")
        return found

    def _check_shape(self, asked: Asked, body: Object) -> None:
        wanted = {"kind": asked.resource.kind, "apiVersion": asked.resource.api_version}
        if any(body.get(key, value) != value for key, value in wanted.items()):
            raise Refused(400, f"{body.get('kind')} cannot be handled as a {asked.resource.kind}")
        found = list(schema.faults(asked.resource.node, body))
        unknown = [fault.path for fault in found if fault.unknown]
        if len(unknown) < len(found):
            raise Refused(400, f"cannot be handled as a {asked.resource.kind}: {found}")
        validation = asked.query.get("fieldValidation", "Warn")
        if unknown and validation == "Strict":
            raise Refused(400, f"strict decoding error: unknown fields {unknown}")
        asked.warnings = [f'unknown field "{path}"' for path in unknown if validation == "Warn"]

    def _update(self, asked: Asked) -> tuple[int, Object]:
        body, resource = self._decoded(asked), asked.resource
        meta = body.setdefault("metadata", {})
        self._check_name(asked, meta)
        old = self.store.objects.get(asked.key)
        if old is None and resource.put_creates:
            self.access.check(asked, "create")
            return 201, self._written(asked, None, body)
        if old is None:
            raise not_found(resource, asked.name)
        version = meta.get("resourceVersion", "")
        if version and not version.isdigit():
            raise Refused(500, f'parsing "{version}": invalid syntax')
        if not version and resource.needs_version:
            raise invalid(named(resource, asked.name), [(kinds.INVALID, "metadata.resourceVersion")])
        if meta.get("uid", old["metadata"]["uid"]) != old["metadata"]["uid"]:
            raise conflict(resource, asked.name, "Precondition failed: UID in precondition")
        return 200, self._written(asked, old, body)

    def _check_name(self, asked: Asked, meta: Object) -> None:
        if meta.get("name", asked.name) != asked.name:
            raise Refused(400, f"the name of the object ({meta['name']}) does not match the name on the URL")

    def _patch(self, asked: Asked) -> tuple[int, Object]:
        kind = asked.headers.get("content-type", "").removeprefix("application/")
        if kind not in _PATCHES or (asked.resource.custom and kind.startswith("strategic")):
            raise Refused(415, "415: Unsupported Media Type", {})
        patch = self._loaded(asked, list if kind == "json-patch+json" else dict)
        if kind == "apply-patch+yaml":
            return self._apply(asked, patch)
        old = self.found(asked)
        try:
            if kind == "merge-patch+json":
                new = changes.merge(old, patch)
            elif kind == "json-patch+json":
                new = changes.json_patch(old, patch)
            else:
                new = changes.strategic(asked.resource.node, old, patch)
        except changes.WrongPatch:
            raise Refused(422, "the server rejected our request due to an error in our request", {}) from None
        except changes.NotServed as error:
            raise Refused(500, str(error)) from None
        self._check_name(asked, new["metadata"])
        try:
            self._check_shape(asked, new)
        except Refused:
            raise invalid({}, [(kinds.INVALID, "patch")]) from None
        return 200, self._written(asked, old, new)

    def _apply(self, asked: Asked, patch: Object) -> tuple[int, Object]:
        resource, old = asked.resource, self.store.objects.get(asked.key)
        if not asked.query.get("fieldManager"):
            raise invalid_options("PatchOptions", kinds.REQUIRED, "fieldManager")
        meta = patch.setdefault("metadata", {})
        meta.setdefault("name", asked.name)
        if "managedFields" in meta:
            raise Refused(400, "metadata.managedFields must be nil")
        if (patch.get("kind"), patch.get("apiVersion")) != (resource.kind, resource.api_version):
            raise Refused(400, f"invalid object type: {patch.get('apiVersion')}, Kind={patch.get('kind')}")
        self._check_name(asked, meta)
        if any(True for _ in schema.faults(resource.node, patch)):
            raise Refused(500, "failed to create typed patch object: field not declared in schema")
        manager, force = self._manager(asked, "Apply"), asked.query.get("force") == "true"
        try:
            new, owned = changes.applied(resource.node, old, patch, manager, force=force)
        except changes.Conflicts as conflicts:
            causes = [{"reason": "FieldManagerConflict", "message": m.name, "field": f} for m, f in conflicts.found]
            raise Refused(409, f"Apply failed with {len(causes)} conflicts", {"causes": causes}) from None
        return 200 if old else 201, self._written(asked, old, new, owned)

    def _manager(self, asked: Asked, operation: str) -> changes.Manager:
        sub = "status" if asked.sub == "status" else ""
        return changes.Manager(asked.manager, operation, sub, asked.resource.api_version)

    # -- one way to the store --------------------------------------------------------------------------------------

    def _written(self, asked: Asked, old: Object | None, new: Object, owned: changes.Owned | None = None) -> Object:
        """What is stored when this is what a create, an update, a patch or an apply wants."""
        resource, now, was = asked.resource, rfc3339(time.time()), old or {}
        meta = self._new_metadata(asked, new, now) if old is None else self._metadata(asked, old["metadata"], new)
        new = {**new, "kind": resource.kind, "apiVersion": resource.api_version, "metadata": meta}
        if asked.sub == "status":
            kept = {"metadata": meta} if resource.status_takes_metadata else {}
            new = {**was, "status": new.get("status", {})} | kept
        elif "status" in resource.subresources:
            new = {key: value for key, value in {**new, "status": was.get("status")}.items() if value is not None}
        managed = was.get("metadata", {}).get("managedFields", [])
        new = copy.deepcopy(schema.cleaned(resource.node, new))
        kinds.default(resource, new, self.store.suffix, now, creates=old is None)
        if faulty := list(kinds.wrong(resource, new, old)):
            raise invalid(named(resource, meta.get("name", ""), kind=resource.kind), faulty)
        key = asked.key._replace(name=meta["name"])
        if old is None and key in self.store.objects:
            why = f'{resource.full_name} "{key.name}" already exists'
            raise Refused(409, why, named(resource, key.name), reason="AlreadyExists")
        if old is not None:
            new["metadata"]["managedFields"] = managed
            if resource.counts and _wishes(new) != _wishes(old):
                new["metadata"]["generation"] = was["metadata"]["generation"] + 1
        self.access.admit(asked, new, old, "UPDATE" if old else "CREATE")
        if owned is None:
            owned = changes.written(resource.node, old, new, self._manager(asked, "Update"), now)
        elif new != old:
            mine = self._manager(asked, "Apply")
            owned[mine] = owned[mine][0], now
        changes.put_owned(new, owned)
        if asked.dry or new == old:
            return new
        new, _ = self._put(resource, key, new)
        if resource is kinds.DEFINITIONS and old is None:
            made = kinds.custom(new)
            self.resources[made.full_name] = made
        return new

    def _new_metadata(self, asked: Asked, new: Object, now: str) -> Object:
        resource, meta = asked.resource, dict(new.get("metadata") or {})
        if meta.get("namespace", asked.namespace) != asked.namespace:
            raise Refused(400, "the namespace of the provided object does not match the namespace sent on the request")
        if meta.get("resourceVersion"):
            raise Refused(500, "resourceVersion should not be set on objects to be created")
        if resource.namespaced:
            namespace = self.store.objects.get(Key("namespaces", "", asked.namespace))
            if namespace is None:
                raise not_found(kinds.NAMESPACES, asked.namespace)
            if "deletionTimestamp" in namespace["metadata"]:
                causes = [{"reason": "NamespaceTerminating", "message": "", "field": "metadata.namespace"}]
                details = named(resource, meta.get("name", ""), causes=causes)
                raise Refused(403, "the namespace is being terminated", details)
            meta["namespace"] = asked.namespace
        meta = {key: value for key, value in meta.items() if key not in _SERVER_OWNED}
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = meta["generateName"][:58] + self.store.suffix()
        meta |= {"generation": 1} if resource.counts else {}
        return meta | {"uid": self.store.uid(), "creationTimestamp": now}

    def _metadata(self, asked: Asked, had: Object, new: Object) -> Object:
        meta = dict(new["metadata"])
        if meta.get("resourceVersion", had["resourceVersion"]) != had["resourceVersion"]:
            raise conflict(asked.resource, asked.name)
        meta |= {name: had[name] for name in _KEPT if not meta.get(name) and name in had}
        return meta | {name: had[name] for name in _FIXED if name in had}

    def _put(self, resource: Resource, key: Key, new: Object) -> tuple[Object, bool]:
        """Stores it, or takes it away where nothing holds what is marked for deletion: then True."""
        meta = new["metadata"]
        held = meta.get("finalizers") or meta.get("deletionGracePeriodSeconds") or resource is kinds.NAMESPACES
        gone = "deletionTimestamp" in meta and not held
        stored = self.store.write(key, new, gone=gone)
        self._collector.look()
        return new if gone else stored, gone

    def change(self, key: Key, **metadata: Any) -> None:
        """For the collector: what is empty goes."""
        value = self.store.objects[key]
        meta = {name: inner for name, inner in {**value["metadata"], **metadata}.items() if inner != []}
        self._put(self.resources[key.resource], key, {**value, "metadata": meta})

    # -- deletion --------------------------------------------------------------------------------------------------

    def delete(self, resource: Resource, key: Key, policy: str, grace: int | None) -> tuple[Object, bool]:
        """Marks it, and takes it away when nothing holds it: then True."""
        value = self.store.objects[key]
        meta = copy.deepcopy(value["metadata"])
        marked, finalizers, finalizer = "deletionTimestamp" in meta, meta.get("finalizers", []), HOLDS.get(policy)
        if finalizer and finalizer not in finalizers and not marked:
            meta["finalizers"] = [*finalizers, finalizer]
        before, wanted = meta.get("deletionGracePeriodSeconds"), 0
        if resource is kinds.PODS and value["spec"].get("nodeName"):
            own = value["spec"]["terminationGracePeriodSeconds"]
            wanted = own if grace is None else 1 if grace < 0 else grace
            wanted *= value["status"]["phase"] not in ("Failed", "Succeeded")
        if before is not None and (grace is None or wanted >= before):
            wanted = before
        held = bool(meta.get("finalizers")) or wanted > 0 or resource is kinds.NAMESPACES
        if held or resource is kinds.PODS:
            if not marked and meta.get("generation"):
                meta["generation"] += 1
            if before != wanted:
                end = rfc3339(time.time() + wanted)
                meta |= {"deletionTimestamp": end, "deletionGracePeriodSeconds": wanted}
            if resource is kinds.NAMESPACES:
                meta.pop("deletionGracePeriodSeconds")
                value = {**value, "status": {"phase": "Terminating"}}
            if meta != value["metadata"]:
                value = self.store.write(key, {**value, "metadata": meta})
                self._collector.look()
        if not held:
            value = self.store.write(key, value, gone=True)
            self._collector.look()
        return value, not held


def _wishes(value: Object) -> Object:
    return {key: inner for key, inner in value.items() if key not in ("metadata", "status")}
