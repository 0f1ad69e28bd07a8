"""Who asks, and what they may: tokens, roles, and admission policies."""

from collections.abc import Iterator
from typing import Any

from tests.api_server import kinds
from tests.api_server.answers import Refused, named
from tests.api_server.asked import NOBODY, User
from tests.api_server.kinds import Resource
from tests.api_server.store import Key, Store
from tests.support import cel

Object = dict[str, Any]
ADMINISTRATOR = "administrator"
"""The token of one that may do everything."""


class Access:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._tokens = {ADMINISTRATOR: User("kubernetes-admin")}

    def token(self, namespace: str, account: str) -> str:
        token = f"token-{namespace}-{account}-{self._store.suffix()}"
        self._tokens[token] = User(f"system:serviceaccount:{namespace}:{account}", namespace, account)
        return token

    def user(self, authorization: str) -> User:
        if not authorization:
            return NOBODY
        found = self._tokens.get(authorization.removeprefix("Bearer "))
        if found is None:
            raise Refused(401, "Unauthorized")
        return found

    def check(self, user: User, verb: str, resource: Resource, sub: str, namespace: str, name: str) -> None:
        what = f"{resource.plural}/{sub}" if sub else resource.plural
        if user.name == "kubernetes-admin":
            return
        for rule in self._rules(user, namespace):
            if (
                verb in rule["verbs"]
                and resource.group in rule.get("apiGroups", ())
                and what in rule.get("resources", ())
                and (not rule.get("resourceNames") or name in rule["resourceNames"])
            ):
                return
        where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
        group = f'in API group "{resource.group}"'
        message = f'{what} is forbidden: User "{user.name}" cannot {verb} resource "{what}" {group} {where}'
        raise Refused(403, message, named(resource, name))

    def _rules(self, user: User, namespace: str) -> Iterator[Object]:
        objects = self._store.objects
        for resource, place in ((kinds.ROLE_BINDINGS, namespace), (kinds.CLUSTER_ROLE_BINDINGS, "")):
            for binding in self._store.listed(resource, place) if place or not resource.namespaced else ():
                account = {"kind": "ServiceAccount", "name": user.account, "namespace": user.namespace}
                if account not in binding["subjects"]:
                    continue
                role = kinds.ROLES if binding["roleRef"]["kind"] == "Role" else kinds.CLUSTER_ROLES
                found = objects.get(Key(role.full_name, place if role.namespaced else "", binding["roleRef"]["name"]))
                yield from found.get("rules", ()) if found else ()

    def admit(
        self, user: User, resource: Resource, sub: str, new: Object | None, old: Object | None, verb: str
    ) -> None:
        """Asks each policy that is bound. A DELETE has no new object, a CREATE no old one."""
        subject = new or old or {}
        what = f"{resource.plural}/{sub}" if sub else resource.plural
        for bound in self._store.listed(kinds.BINDINGS, ""):
            policy = self._store.objects.get(Key(kinds.POLICIES.full_name, "", bound["spec"]["policyName"]))
            if policy is None or not any(
                what in rule["resources"] and resource.group in rule["apiGroups"] and verb in rule["operations"]
                for rule in policy["spec"]["matchConstraints"]["resourceRules"]
            ):
                continue
            wanted = bound["spec"].get("matchResources", {}).get("namespaceSelector", {}).get("matchLabels", {})
            namespace = self._store.objects.get(Key("namespaces", "", subject["metadata"].get("namespace", "")), {})
            labels = namespace.get("metadata", {}).get("labels", {})
            if any(labels.get(key) != value for key, value in wanted.items()):
                continue
            request = {"userInfo": {"username": user.name}, "operation": verb}
            known: Object = {"object": new, "oldObject": old, "request": request, "variables": {}}
            for variable in policy["spec"].get("variables", ()):
                known["variables"][variable["name"]] = cel.value(variable["expression"], known)
            for validation in policy["spec"]["validations"]:
                if cel.value(validation["expression"], known) is not True:
                    details = named(resource, subject["metadata"]["name"], causes=[{"message": validation["message"]}])
                    raise Refused(422, f"denied by {policy['metadata']['name']}: {validation['message']}", details)
