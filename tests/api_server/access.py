"""Who asks, and what they may: tokens, roles, and admission policies."""

from collections.abc import Iterator
from typing import Any

from tests.api_server.asked import Asked, Refused, User, named
from tests.api_server.store import Key, Store
from tests.support import cel

Object = dict[str, Any]
ADMINISTRATOR = "administrator"
"""The token of one that may do everything."""
_RBAC, _POLICIES = "rbac.authorization.k8s.io", "validatingadmissionpolicies.admissionregistration.k8s.io"
_POLICY_BINDINGS = "validatingadmissionpolicybindings.admissionregistration.k8s.io"


def _holds(rule: Object, wanted: tuple[tuple[str, str], ...]) -> bool:
    return all(value in rule.get(key, ()) for key, value in wanted)


class Access:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._tokens = {ADMINISTRATOR: User("kubernetes-admin")}

    def token(self, namespace: str, account: str) -> str:
        token = f"token-{namespace}-{account}-{self._store.suffix()}"
        self._tokens[token] = User(f"system:serviceaccount:{namespace}:{account}", namespace, account)
        return token

    def user(self, asked: Asked) -> User:
        authorization = asked.headers.get("authorization", "")
        found = self._tokens.get(authorization.removeprefix("Bearer ")) if authorization else asked.user
        if found is None:
            raise Refused(401, "Unauthorized")
        return found

    def check(self, asked: Asked, verb: str) -> None:
        what, group = asked.resource.plural + (f"/{asked.sub}" if asked.sub else ""), asked.resource.group
        wanted = (("verbs", verb), ("apiGroups", group), ("resources", what))
        rules = [rule for rule in self._rules(asked.user, asked.namespace) if _holds(rule, wanted)]
        if asked.user.name == "kubernetes-admin" or any(
            asked.name in r.get("resourceNames", [asked.name]) for r in rules
        ):
            return
        where = f'in the namespace "{asked.namespace}"' if asked.namespace else "at the cluster scope"
        message = f'User "{asked.user.name}" cannot {verb} resource "{what}" in API group "{group}" {where}'
        raise Refused(403, message, named(asked.resource, asked.name))

    def _rules(self, user: User, namespace: str) -> Iterator[Object]:
        account = {"kind": "ServiceAccount", "name": user.account, "namespace": user.namespace}
        for bindings in ("rolebindings", "clusterrolebindings"):
            place = namespace if bindings == "rolebindings" else ""
            for binding in self._store.listed(f"{bindings}.{_RBAC}", place) if place or bindings[0] == "c" else ():
                if account in binding["subjects"]:
                    kind, name = binding["roleRef"]["kind"], binding["roleRef"]["name"]
                    key = Key(f"{kind.lower()}s.{_RBAC}", place if kind == "Role" else "", name)
                    yield from self._store.objects.get(key, {}).get("rules", ())

    def admit(self, asked: Asked, new: Object | None, old: Object | None, verb: str) -> None:
        """Asks each policy that is bound. A DELETE has no new object, a CREATE no old one."""
        resource, subject = asked.resource, new or old or {}
        what = resource.plural + (f"/{asked.sub}" if asked.sub else "")
        wanted = (("resources", what), ("apiGroups", resource.group), ("operations", verb))
        for bound in self._store.listed(_POLICY_BINDINGS, ""):
            policy = self._store.objects.get(Key(_POLICIES, "", bound["spec"]["policyName"]))
            rules = policy["spec"]["matchConstraints"]["resourceRules"] if policy else ()
            if policy is None or not any(_holds(rule, wanted) for rule in rules):
                continue
            selector = bound["spec"].get("matchResources", {}).get("namespaceSelector", {}).get("matchLabels", {})
            namespace = self._store.objects.get(Key("namespaces", "", subject["metadata"].get("namespace", "")), {})
            if not selector.items() <= namespace.get("metadata", {}).get("labels", {}).items():
                continue
            request = {"userInfo": {"username": asked.user.name}, "operation": verb}
            known: Object = {"object": new, "oldObject": old, "request": request, "variables": {}}
            for variable in policy["spec"].get("variables", ()):
                known["variables"][variable["name"]] = cel.value(variable["expression"], known)
            for validation in policy["spec"]["validations"]:
                if cel.value(validation["expression"], known) is not True:
                    details = named(resource, subject["metadata"]["name"], causes=[{"message": validation["message"]}])
                    raise Refused(422, f"denied by {policy['metadata']['name']}: {validation['message']}", details)
