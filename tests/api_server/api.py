"""One request and its answer, without a socket: what is meant, who may, and what is read or deleted."""

import json
from typing import Any

from tests.api_server import kinds, reading
from tests.api_server.asked import Answer, Asked, Refused, conflict, invalid_options, named
from tests.api_server.reading import Watch
from tests.api_server.store import Key
from tests.api_server.writes import Writes

Object = dict[str, Any]
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "GET": "get"}


class Api(Writes):
    def answer(self, asked: Asked) -> Answer | Watch:
        try:
            return self._answer(asked)
        except Refused as refused:
            retry = refused.status.get("details", {}).get("retryAfterSeconds")
            return Answer(refused.code, refused.status, {"Retry-After": str(retry)} if retry else {})

    def _answer(self, asked: Asked) -> Answer | Watch:
        if asked.path in ("/readyz", "/livez", "/healthz"):
            return Answer(200, "ok")
        asked.user = self.access.user(asked)
        verb = self._route(asked)
        if not verb:  # not even the group is known
            return Answer(404, "404 page not found\n")
        self.access.check(asked, verb)
        if "text/html" in asked.headers.get("accept", ""):
            raise Refused(406, "406: Not Acceptable", {})
        kind = {"POST": "Create", "PUT": "Update", "PATCH": "Patch"}.get(asked.method, "Delete") + "Options"
        for name, known in (("dryRun", ("All",)), ("fieldValidation", ("Ignore", "Strict", "Warn"))):
            if asked.query.get(name, known[0]) not in known:
                raise invalid_options(kind, kinds.UNSUPPORTED, name)
        if verb in ("list", "watch"):
            return reading.listed(self.store, asked) if verb == "list" else Watch(self.store, asked)
        if asked.sub == "eviction":
            raise Refused(500, "evictions aren't served here")
        code, body = getattr(self, f"_{verb}")(asked)
        headers = {"Warning": f"299 - {json.dumps(asked.warnings[0])}"} if asked.warnings else {}
        return Answer(code, reading.shaped(asked, body), headers)

    def _route(self, asked: Asked) -> str:
        """Finds what is meant, and returns the verb; empty where nothing is."""
        groups = {resource.group for resource in self.resources.values()}
        root, *parts = asked.path.strip("/").split("/")
        if root in ("metrics", "version"):
            raise Refused(403, f'forbidden: User "{asked.user.name}" cannot get path "{asked.path}"', {})
        group = parts.pop(0) if root == "apis" and parts else ""
        if root not in ("api", "apis") or len(parts) < 2 or (group and group not in groups):
            return ""
        parts = parts[1:]
        if parts[0] == "namespaces" and len(parts) > 2:
            asked.namespace, parts = parts[1], parts[2:]
        plural, asked.name, asked.sub = [*parts, "", ""][:3]
        if plural == "bindings":
            plural, asked.sub, asked.name = "pods", "binding", json.loads(asked.body)["metadata"]["name"]
        found = self.resources.get(f"{plural}.{group}" if group else plural)
        if found is None or (asked.sub and asked.sub not in found.subresources):
            raise Refused(404, "the server could not find the requested resource", {})
        asked.resource = found
        if asked.method == "POST" and asked.name and asked.sub not in ("binding", "token", "eviction"):
            raise Refused(405, "the server does not allow this method on the requested resource", {})
        if asked.name:
            return _VERBS[asked.method]
        reads = "watch" if asked.query.get("watch") == "true" else "list"
        return {"GET": reads, "DELETE": "deletecollection"}.get(asked.method, "create")

    # -- reading and deleting what is named ------------------------------------------------------------------------

    def _get(self, asked: Asked) -> tuple[int, Object]:
        return 200, self.found(asked)

    def _deletecollection(self, asked: Asked) -> tuple[int, Object]:
        body = reading.listed(self.store, asked).body
        assert isinstance(body, dict)
        for value in body["items"]:
            self._delete_by(asked, asked.key._replace(name=value["metadata"]["name"]), {})
        return 200, body

    def _delete(self, asked: Asked) -> tuple[int, Object]:
        self.found(asked)
        return 200, self._delete_by(asked, asked.key, json.loads(asked.body or "{}"))

    def _delete_by(self, asked: Asked, key: Key, options: Object) -> Object:
        policy = options.get("propagationPolicy", asked.query.get("propagationPolicy", "Background"))
        both = "orphanDependents" in options and "propagationPolicy" in options
        if both or policy not in ("Foreground", "Background", "Orphan"):
            raise invalid_options("DeleteOptions", kinds.INVALID if both else kinds.UNSUPPORTED, "propagationPolicy")
        value, resource = self.store.objects[key], asked.resource
        for name in ("uid", "resourceVersion"):
            if options.get("preconditions", {}).get(name, value["metadata"][name]) != value["metadata"][name]:
                raise conflict(resource, key.name, f"the {name} in the precondition", kind=resource.kind)
        self.access.admit(asked, None, value, "DELETE")
        grace = options.get("gracePeriodSeconds", asked.query.get("gracePeriodSeconds"))
        gone = asked.dry
        if not asked.dry:
            value, gone = self.delete(resource, key, policy, None if grace is None else int(grace))
        if resource.answers or not gone:
            return value
        details = named(resource, value["metadata"]["name"], uid=value["metadata"]["uid"])
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
