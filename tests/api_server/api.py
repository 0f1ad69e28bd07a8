"""One request and its answer, without a socket: what is meant, who may, and what is read or deleted."""

import copy
import json
import time
from collections.abc import Callable
from typing import Any

from tests.api_server import answers, kinds, reading
from tests.api_server.answers import PageNotFound, Refused, conflict, invalid_options, named
from tests.api_server.asked import Answer, Asked, rfc3339
from tests.api_server.collector import FOREGROUND, ORPHAN
from tests.api_server.kinds import Resource
from tests.api_server.reading import Watch
from tests.api_server.store import Key
from tests.api_server.writes import Writes

Object = dict[str, Any]
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "GET": "get"}


class Api(Writes):
    def __init__(self, now: Callable[[], float] = time.time) -> None:
        super().__init__(now)

    def answer(self, asked: Asked) -> Answer | Watch:
        try:
            return self._answer(asked)
        except Refused as refused:
            retry = refused.status.get("details", {}).get("retryAfterSeconds")
            return Answer(refused.code, refused.status, {"Retry-After": str(retry)} if retry else {})
        except PageNotFound:
            return Answer(404, "404 page not found\n")

    def _answer(self, asked: Asked) -> Answer | Watch:
        if asked.path in ("/readyz", "/livez", "/healthz"):
            return Answer(200, "ok")
        asked.user = self.access.user(asked.headers.get("authorization", ""))
        verb = self._route(asked)
        if verb == "list" and asked.query.get("watch") == "true":
            verb = "watch"
        self.access.check(asked.user, verb, asked.resource, asked.sub, asked.namespace, asked.name)
        if "text/html" in asked.headers.get("accept", ""):
            raise Refused(406, "406: Not Acceptable", {})
        self._check_options(asked)
        if verb in ("list", "watch"):
            return reading.listed(self.store, asked) if verb == "list" else reading.watched(self.store, asked)
        if asked.sub == "eviction":
            raise Refused(500, "evictions aren't served here")
        code, body = getattr(self, f"_{verb}")(asked)
        headers = {"Warning": f"299 - {json.dumps(asked.warnings[0])}"} if asked.warnings else {}
        return Answer(code, reading.shaped(asked, body), headers)

    def _route(self, asked: Asked) -> str:
        """Finds what is meant, and returns the verb."""
        parts = asked.path.strip("/").split("/")
        if parts[0] == "api" and parts[1:2] == ["v1"]:
            group, parts = "", parts[2:]
        elif parts[0] == "apis" and len(parts) > 3:
            group, parts = parts[1], parts[3:]
        elif asked.path in ("/metrics", "/version"):
            raise Refused(403, f'forbidden: User "{asked.user.name}" cannot get path "{asked.path}"', {})
        else:
            raise PageNotFound
        if parts[0] == "namespaces" and len(parts) > 2:
            asked.namespace, parts = parts[1], parts[2:]
        if group not in {resource.group for resource in self.resources.values()}:
            raise PageNotFound
        plural, asked.name, asked.sub = [*parts, "", ""][:3]
        if plural == "bindings":
            plural, asked.sub, asked.name = "pods", "binding", json.loads(asked.body)["metadata"]["name"]
        found = self.resources.get(f"{plural}.{group}" if group else plural)
        if found is None or (asked.sub and asked.sub not in found.subresources):
            raise Refused(404, "the server could not find the requested resource", {}, reason="NotFound")
        asked.resource = found
        if asked.method == "POST" and asked.name and asked.sub not in ("binding", "token", "eviction"):
            raise Refused(405, "the server does not allow this method on the requested resource", {})
        if not asked.name:
            return {"GET": "list", "DELETE": "deletecollection"}.get(asked.method, "create")
        return _VERBS[asked.method]

    def _check_options(self, asked: Asked) -> None:
        kind = {"POST": "Create", "PUT": "Update", "PATCH": "Patch"}.get(asked.method, "Delete") + "Options"
        if asked.query.get("dryRun", "All") != "All":
            raise invalid_options(kind, kinds.UNSUPPORTED, "dryRun")
        if asked.query.get("fieldValidation", "Warn") not in ("Ignore", "Strict", "Warn"):
            raise invalid_options(kind, kinds.UNSUPPORTED, "fieldValidation")

    # -- reading and deleting what is named ------------------------------------------------------------------------

    def _get(self, asked: Asked) -> tuple[int, Object]:
        return 200, self.found(asked)

    def _deletecollection(self, asked: Asked) -> tuple[int, Object]:
        answer = reading.listed(self.store, asked)
        assert isinstance(answer.body, dict)
        for value in answer.body["items"]:
            self._delete_by(asked, asked.key._replace(name=value["metadata"]["name"]), {})
        return 200, answer.body

    def _delete(self, asked: Asked) -> tuple[int, Object]:
        self.found(asked)
        return 200, self._delete_by(asked, asked.key, json.loads(asked.body) if asked.body else {})

    def _delete_by(self, asked: Asked, key: Key, options: Object) -> Object:
        policy = options.get("propagationPolicy", asked.query.get("propagationPolicy", "Background"))
        both = "orphanDependents" in options and "propagationPolicy" in options
        if both or policy not in ("Foreground", "Background", "Orphan"):
            raise invalid_options("DeleteOptions", kinds.INVALID if both else kinds.UNSUPPORTED, "propagationPolicy")
        value, resource = self.store.objects[key], asked.resource
        for name in ("uid", "resourceVersion"):
            if options.get("preconditions", {}).get(name, value["metadata"][name]) != value["metadata"][name]:
                raise conflict(resource, key.name, f"the {name} in the precondition", kind=resource.kind)
        self.access.admit(asked.user, resource, "", None, value, "DELETE")
        grace = options.get("gracePeriodSeconds", asked.query.get("gracePeriodSeconds"))
        if asked.dry:
            return value if resource.answers else self._deleted(resource, value)
        return self._mark_and_delete(resource, key, policy, None if grace is None else int(grace))

    def _deleted(self, resource: Resource, value: Object) -> Object:
        return answers.success(named(resource, value["metadata"]["name"], uid=value["metadata"]["uid"]))

    def delete_now(self, resource: Resource, key: Key) -> None:
        """For the collector, which asks for no grace period."""
        self._mark_and_delete(resource, key, "Background", None)

    def _mark_and_delete(self, resource: Resource, key: Key, policy: str, grace: int | None) -> Object:
        value = self.store.objects[key]
        meta = copy.deepcopy(value["metadata"])
        finalizer = {"Foreground": FOREGROUND, "Orphan": ORPHAN}.get(policy)
        if finalizer and finalizer not in meta.get("finalizers", ()) and "deletionTimestamp" not in meta:
            meta["finalizers"] = [*meta.get("finalizers", ()), finalizer]
        before = meta.get("deletionGracePeriodSeconds")
        wanted = self._grace_s(value, grace) if resource is kinds.PODS else 0
        if before is not None and (grace is None or wanted >= before):
            wanted = before
        held = bool(meta.get("finalizers")) or wanted > 0 or resource is kinds.NAMESPACES
        if held or resource is kinds.PODS:
            if "deletionTimestamp" not in meta and meta.get("generation"):
                meta["generation"] += 1
            if before != wanted:
                meta |= {"deletionTimestamp": rfc3339(self.now() + wanted), "deletionGracePeriodSeconds": wanted}
            if resource is kinds.NAMESPACES:
                meta.pop("deletionGracePeriodSeconds")
                value = {**value, "status": {"phase": "Terminating"}}
            if meta != value["metadata"]:
                value = self._stored(key, {**value, "metadata": meta})
        if held:
            return value
        value = self.store.delete(key)
        self.collector.look()
        return value if resource.answers else self._deleted(resource, value)

    def _grace_s(self, pod: Object, wanted: int | None) -> int:
        if not pod["spec"].get("nodeName") or pod["status"]["phase"] in ("Failed", "Succeeded"):
            return 0
        own: int = pod["spec"]["terminationGracePeriodSeconds"]
        return own if wanted is None else 1 if wanted < 0 else wanted
