"""Creating and changing: what a POST, a PUT, a patch and an apply make of an object.

The order of the checks is the real server's.
"""

import copy
import json
from collections.abc import Callable
from typing import Any

from tests.api_server import apply, kinds, patches, schema
from tests.api_server.access import Access
from tests.api_server.answers import Refused, conflict, invalid, invalid_options, named, not_found
from tests.api_server.asked import Asked, rfc3339
from tests.api_server.collector import Collector
from tests.api_server.kinds import Resource
from tests.api_server.store import Key, Store

Object = dict[str, Any]
_SERVER_OWNED = (
    "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "managedFields"
)  # fmt: skip
_PATCHES = {"merge-patch+json", "strategic-merge-patch+json", "json-patch+json", "apply-patch+yaml"}


class Writes:
    """What changes an object: all that is stored goes through `_stored`."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.store = Store()
        self.resources = dict(kinds.SERVED)
        self.access = Access(self.store)
        self.collector = Collector(self.store, self.resources, self)

    def delete_now(self, resource: Resource, key: Key) -> None:
        raise NotImplementedError

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
            token = self.access.token(asked.namespace, asked.name)
            account = self.found(asked)["metadata"]
            meta = {"name": asked.name, "namespace": asked.namespace, "uid": account["uid"]}
            spec = {"audiences": ["https://kubernetes.default"], "boundObjectRef": None, **body["spec"]}
            status = {"token": token, "expirationTimestamp": rfc3339(self.now() + spec["expirationSeconds"])}
            meta |= {"creationTimestamp": rfc3339(self.now())}
            kind = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1"}
            return 201, {**kind, "metadata": meta, "spec": spec, "status": status}
        return 201, self._made(asked, body, apply.Manager(asked.manager, "Update", asked.resource.api_version))

    def _decoded(self, asked: Asked) -> Object:
        if asked.headers.get("content-type", "") not in ("application/json", "application/yaml"):
            raise Refused(415, "the body of the request was in an unknown format")
        try:
            body = json.loads(asked.body)
        except ValueError as error:
            raise Refused(400, f"the object provided is unrecognized: {error}") from None
        if not asked.sub or asked.sub == "status":
            self._check_kind(asked, body)
            self._check_fields(asked, body)
        return dict(body)

    def _check_kind(self, asked: Asked, body: Object) -> None:
        wanted = {"kind": asked.resource.kind, "apiVersion": asked.resource.api_version}
        if any(body.get(key, value) != value for key, value in wanted.items()):
            raise Refused(400, f"{body.get('kind')} cannot be handled as a {asked.resource.kind}")

    def _check_fields(self, asked: Asked, body: Object) -> None:
        found = list(schema.faults(asked.resource.node, body))
        unknown = [fault.path for fault in found if fault.unknown]
        if len(unknown) < len(found):
            raise Refused(400, f"cannot be handled as a {asked.resource.kind}: {found}")
        validation = asked.query.get("fieldValidation", "Warn")
        if unknown and validation == "Strict":
            raise Refused(400, f"strict decoding error: unknown fields {unknown}")
        asked.warnings = [f'unknown field "{path}"' for path in unknown if validation == "Warn"]

    def _made(self, asked: Asked, body: Object, manager: apply.Manager, owned: apply.Owned | None = None) -> Object:
        resource, now = asked.resource, rfc3339(self.now())
        meta = dict(body.get("metadata") or {})
        if meta.get("namespace", asked.namespace) != asked.namespace:
            raise Refused(400, "the namespace of the provided object does not match the namespace sent on the request")
        if meta.get("resourceVersion"):
            raise Refused(500, "resourceVersion should not be set on objects to be created")
        self._check_namespace(asked, meta.get("name", ""))
        meta = {key: value for key, value in meta.items() if key not in _SERVER_OWNED}
        if resource.namespaced:
            meta["namespace"] = asked.namespace
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = meta["generateName"][:58] + self.store.suffix()
        meta |= {"uid": self.store.uid(), "creationTimestamp": now} | ({"generation": 1} if resource.counts else {})
        kind = {"kind": resource.kind, "apiVersion": resource.api_version}
        new = schema.cleaned(resource.node, {**kind, **body, "metadata": meta})
        if "status" in resource.subresources:
            new.pop("status", None)
        self._admit_pod(asked, new)
        if resource is kinds.NAMESPACES:
            kinds.fill(new, {"metadata": {"labels": {}}})
        faulty = list(kinds.wrong(resource, new, None))
        if faulty:
            raise invalid(named(resource, meta.get("name", ""), kind=resource.kind), faulty)
        kinds.default(resource, new, self.store.suffix, now, creates=True)
        key = asked.key._replace(name=meta["name"])
        if key in self.store.objects:
            why = f'{resource.full_name} "{key.name}" already exists'
            raise Refused(409, why, named(resource, key.name), reason="AlreadyExists")
        self.access.admit(asked.user, resource, "", new, None, "CREATE")
        apply.put_owned(new, owned or apply.written(resource.node, None, new, manager, now))
        if asked.dry:
            return dict(new)
        new = self._stored(key, new)
        if resource is kinds.DEFINITIONS:
            made = kinds.custom(new)
            self.resources[made.full_name] = made
        return new

    def _check_namespace(self, asked: Asked, name: str) -> None:
        if not asked.resource.namespaced:
            return
        namespace = self.store.objects.get(Key("namespaces", "", asked.namespace))
        if namespace is None:
            raise not_found(kinds.NAMESPACES, asked.namespace)
        if "deletionTimestamp" in namespace["metadata"]:
            causes = [{"reason": "NamespaceTerminating", "message": "", "field": "metadata.namespace"}]
            raise Refused(403, "the namespace is being terminated", named(asked.resource, name, causes=causes))

    def _admit_pod(self, asked: Asked, pod: Object) -> None:
        if asked.resource is kinds.PODS:
            account = pod.get("spec", {}).get("serviceAccountName", "default")
            if Key("serviceaccounts", asked.namespace, account) not in self.store.objects:
                name = pod["metadata"].get("name", "")
                raise Refused(403, f'serviceaccount "{account}" not found', named(asked.resource, name))

    def _update(self, asked: Asked) -> tuple[int, Object]:
        body, resource = self._decoded(asked), asked.resource
        meta = body.setdefault("metadata", {})
        self._check_name(asked, meta)
        old = self.store.objects.get(asked.key)
        if old is None and resource.put_creates:
            self.access.check(asked.user, "create", resource, asked.sub, asked.namespace, asked.name)
            return 201, self._create(asked)[1]
        if old is None:
            raise not_found(resource, asked.name)
        version = meta.get("resourceVersion", "")
        if version and not version.isdigit():
            raise Refused(500, f'parsing "{version}": invalid syntax')
        if not version and resource.needs_version:
            raise invalid(named(resource, asked.name), [(kinds.INVALID, "metadata.resourceVersion")])
        if meta.get("uid", old["metadata"]["uid"]) != old["metadata"]["uid"]:
            raise conflict(resource, asked.name, "Precondition failed: UID in precondition")
        return 200, self._changed(asked, old, body)

    def _check_name(self, asked: Asked, meta: Object) -> None:
        if meta.get("name", asked.name) != asked.name:
            raise Refused(400, f"the name of the object ({meta['name']}) does not match the name on the URL")

    def _patch(self, asked: Asked) -> tuple[int, Object]:
        kind = asked.headers.get("content-type", "").removeprefix("application/")
        if kind not in _PATCHES or (asked.resource.custom and kind.startswith("strategic")):
            raise Refused(415, "415: Unsupported Media Type", {})
        try:
            patch = json.loads(asked.body)
        except ValueError as error:
            raise Refused(400, f"error decoding patch: {error}") from None
        if isinstance(patch, list) != (kind == "json-patch+json") or not isinstance(patch, dict | list):
            raise Refused(400, "error decoding patch: it is of a wrong type")
        if isinstance(patch, dict) and kind == "apply-patch+yaml":
            return self._apply(asked, patch)
        old = self.found(asked)
        try:
            if kind == "merge-patch+json":
                new = patches.merge(old, patch)
            elif isinstance(patch, list):
                new = patches.json_patch(old, patch)
            else:
                new = patches.strategic(asked.resource.node, old, patch)
        except patches.WrongPatch:
            raise Refused(422, "the server rejected our request due to an error in our request", {}) from None
        except patches.NotServed as error:
            raise Refused(500, str(error)) from None
        self._check_name(asked, new["metadata"])
        try:
            self._check_kind(asked, new)
            self._check_fields(asked, new)
        except Refused:
            raise invalid({}, [(kinds.INVALID, "patch")]) from None
        return 200, self._changed(asked, old, new)

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
        if meta.get("resourceVersion") not in (None, old["metadata"]["resourceVersion"] if old else None):
            raise conflict(resource, asked.name)
        manager = apply.Manager(asked.manager, "Apply", resource.api_version, asked.sub)
        try:
            new, owned = apply.applied(resource.node, old, patch, manager, force=asked.query.get("force") == "true")
        except apply.Conflicts as conflicts:
            causes = [{"reason": "FieldManagerConflict", "message": m.name, "field": f} for m, f in conflicts.found]
            raise Refused(409, f"Apply failed with {len(causes)} conflicts", {"causes": causes}) from None
        if old is None:
            owned[manager] = owned[manager][0], rfc3339(self.now())
            return 201, self._made(asked, new, manager, owned)
        return 200, self._changed(asked, old, new, owned)

    def _changed(self, asked: Asked, old: Object, new: Object, owned: apply.Owned | None = None) -> Object:
        """What is stored when this is what an update, a patch or an apply wants."""
        resource, now = asked.resource, rfc3339(self.now())
        had, meta = old["metadata"], dict(new["metadata"])
        if meta.get("resourceVersion", had["resourceVersion"]) != had["resourceVersion"]:
            raise conflict(resource, asked.name)
        for name in ("uid", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "namespace"):
            if not meta.get(name) and name in had:
                meta[name] = had[name]
        meta |= {name: had[name] for name in ("creationTimestamp", "resourceVersion", "managedFields") if name in had}
        new = {**new, "kind": resource.kind, "apiVersion": resource.api_version, "metadata": meta}
        if asked.sub == "status":
            kept = {"metadata": meta} if resource.status_takes_metadata else {}
            new = {**old, "status": new.get("status", {})} | kept
        elif "status" in resource.subresources:
            new = {key: value for key, value in new.items() if key != "status"}
            new |= {"status": old["status"]} if "status" in old else {}
        managed = had.get("managedFields", [])
        new = copy.deepcopy(schema.cleaned(resource.node, new))
        kinds.default(resource, new, self.store.suffix, now, creates=False)
        faulty = list(kinds.wrong(resource, new, old))
        if faulty:
            raise invalid(named(resource, asked.name, kind=resource.kind), faulty)
        new["metadata"]["managedFields"] = managed
        if resource.counts and _wishes(new) != _wishes(old):
            new["metadata"]["generation"] = had["generation"] + 1
        self.access.admit(asked.user, resource, asked.sub, new, old, "UPDATE")
        manager = apply.Manager(asked.manager, "Update", resource.api_version, asked.sub)
        if owned is None:
            owned = apply.written(resource.node, old, new, manager, now)
        elif new != old:
            mine = apply.Manager(asked.manager, "Apply", resource.api_version, asked.sub)
            owned[mine] = owned[mine][0], now
        apply.put_owned(new, owned)
        return new if asked.dry else self._write(resource, asked.key, new, old)

    def _write(self, resource: Resource, key: Key, new: Object, old: Object) -> Object:
        if new == old:
            return old
        meta = new["metadata"]
        held = meta.get("finalizers") or meta.get("deletionGracePeriodSeconds") or resource is kinds.NAMESPACES
        if "deletionTimestamp" in meta and not held:
            self.store.delete(key)
            self.collector.look()
            return new
        return self._stored(key, new)

    def _stored(self, key: Key, value: Object) -> Object:
        stored = self.store.write(key, value)
        self.collector.look()
        return stored

    def change(self, value: Object, metadata: Object) -> None:
        """For the collector."""
        for key, each in self.store.objects.items():
            if each is value:
                new = {**value, "metadata": {k: v for k, v in {**value["metadata"], **metadata}.items() if v != []}}
                self._write(self.resources[key.resource], key, new, value)
                return

    def _bind(self, asked: Asked, body: Object) -> Object:
        pod, target = self.found(asked), body.get("target", {}).get("name", "")
        place = {"name": asked.name, "kind": "pods/binding"}
        if not target:
            raise Refused(500, "target.name: Required value")
        if body["metadata"].get("uid", pod["metadata"]["uid"]) != pod["metadata"]["uid"]:
            raise conflict(asked.resource, asked.name)
        if pod["spec"].get("nodeName"):
            raise Refused(409, f"pod {asked.name} is already assigned to node", place)
        if pod["spec"].get("schedulingGates"):
            raise Refused(409, f"pod {asked.name} has non-empty .spec.schedulingGates", place)
        new = copy.deepcopy(pod)
        new["spec"]["nodeName"] = target
        if body["metadata"].get("annotations"):
            new["metadata"].setdefault("annotations", {}).update(body["metadata"]["annotations"])
        scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None}
        others = [c for c in new["status"].get("conditions", ()) if c["type"] != "PodScheduled"]
        new["status"]["conditions"] = [*others, {**scheduled, "lastTransitionTime": rfc3339(self.now())}]
        self._stored(asked.key, new)
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


def _wishes(value: Object) -> Object:
    return {key: inner for key, inner in value.items() if key not in ("metadata", "status")}
