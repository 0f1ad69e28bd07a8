"""From a manifest to a pod: commands, environment, probes, volumes; what is refused, and what is said to be ignored."""

from typing import Any

import pytest
import yaml

from tools.local_pod import manifest, merging
from tools.local_pod.manifest import PATH, BadManifest, Wishes
from tools.local_pod.spec import Exec, Http, Kind, Mount, Pod, Policy, Probe, Role, Sleep, Tcp, Volume

CONTAINER: dict[str, Any] = {"name": "a", "image": "x", "command": ["run"]}


def made(
    container: dict[str, Any] | None = None, *more: dict[str, Any], wishes: Wishes | None = None, **spec: Any
) -> Pod:
    document = {
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "n", "labels": {"app": "x"}, "annotations": {"note": "y"}},
        "spec": {"enableServiceLinks": False, "containers": [{**CONTAINER, **(container or {})}], **spec},
    }
    return manifest.pod([document, *more], wishes or Wishes())


def first(pod: Pod) -> Any:
    return pod.mains[0]


def test_kinds_of_containers_in_their_order() -> None:
    inits = [{**CONTAINER, "name": "i"}, {**CONTAINER, "name": "s", "restartPolicy": "Always"}]
    pod = made(initContainers=inits)
    assert [(each.name, each.role) for each in pod.containers] == [
        ("i", Role.INIT),
        ("s", Role.SIDECAR),
        ("a", Role.MAIN),
    ]
    assert [each.policy(pod) for each in pod.containers] == [Policy.ON_FAILURE, Policy.ALWAYS, Policy.ALWAYS]


def test_the_template_of_a_deployment() -> None:
    document = {
        "kind": "Deployment",
        "metadata": {"name": "d"},
        "spec": {"template": {"spec": {"containers": [CONTAINER]}}},
    }
    pod = manifest.pod([document, {"kind": "Service", "metadata": {"name": "d"}}], Wishes())
    assert (pod.name, pod.hostname, pod.grace_s) == ("d-0", "d-0", 30)


def test_command_and_arguments_know_the_variables() -> None:
    env = [{"name": "X", "value": "1"}, {"name": "Y", "value": "$(X)$(Z)"}, {"name": "Z", "value": "2"}]
    pod = made({"command": ["run", "$(X)"], "args": ["$(NOPE)", "$$(X)", "$(Y)"], "env": env})
    assert first(pod).command == ("run", "1", "$(NOPE)", "$(X)", "1$(Z)")


def test_where_variables_come_from() -> None:
    config = {"kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"k": "v"}, "binaryData": {"b": "Ym9v"}}
    secret = {"kind": "Secret", "metadata": {"name": "s"}, "data": {"k": "c2VjcmV0"}, "stringData": {"t": "text"}}
    env = [
        {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
        {"name": "UID_", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
        {"name": "APP", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
        {"name": "NOTE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['note']"}}},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "ACCOUNT", "valueFrom": {"fieldRef": {"fieldPath": "spec.serviceAccountName"}}},
        {"name": "MEMORY", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
        {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "requests.cpu"}}},
        {"name": "CONFIG", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
        {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        {"name": "NOTHING", "valueFrom": {"configMapKeyRef": {"name": "nope", "key": "k", "optional": True}}},
    ]
    container = {
        "env": env,
        "envFrom": [{"configMapRef": {"name": "c"}, "prefix": "C_"}, {"secretRef": {"name": "s"}}],
        "resources": {"limits": {"memory": "2Gi", "cpu": "1500m"}},
    }
    found = first(made(container, config, secret, wishes=Wishes(uid="u", address="10.1.1.1"))).environment
    assert found == {
        "PATH": PATH, "HOSTNAME": "p", "NAME": "p", "NAMESPACE": "n", "UID_": "u", "APP": "x", "NOTE": "y",
        "IP": "10.1.1.1", "NODE": "local-pod", "ACCOUNT": "default", "MEMORY": "2048", "CPU": "2", "CONFIG": "v",
        "SECRET": "secret", "C_k": "v", "C_b": "boo", "k": "secret", "t": "text",
    }  # fmt: skip


def test_services_become_variables_unless_they_are_turned_off() -> None:
    """The one that is named vllm is why the manifests turn them off."""
    service = {"kind": "Service", "metadata": {"name": "vllm"}, "spec": {"ports": [{"name": "http", "port": 80}]}}
    on = first(made({}, service, enableServiceLinks=True)).environment
    assert on["VLLM_PORT"] == "tcp://10.96.0.10:80"
    assert on["VLLM_SERVICE_PORT_HTTP"] == on["VLLM_PORT_80_TCP_PORT"] == "80"
    assert not any(name.startswith("VLLM") for name in first(made({}, service)).environment)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"httpGet": {"port": "web"}}, Probe(Kind.LIVENESS, Http(8000))),
        (
            {"httpGet": {"port": 1, "path": "/x", "scheme": "HTTPS", "httpHeaders": [{"name": "A", "value": "b"}]}},
            Probe(Kind.LIVENESS, Http(1, "/x", "HTTPS", "", (("A", "b"),))),
        ),
        ({"tcpSocket": {"port": 1}, "periodSeconds": 3}, Probe(Kind.LIVENESS, Tcp(1), period_s=3)),
        (
            {"exec": {"command": ["a", "$(X)"]}, "timeoutSeconds": 5, "failureThreshold": 60, "initialDelaySeconds": 2},
            Probe(Kind.LIVENESS, Exec(("a", "$(X)")), timeout_s=5, failure_threshold=60, initial_delay_s=2),
        ),
        ({"tcpSocket": {"port": 1}, "terminationGracePeriodSeconds": 2}, Probe(Kind.LIVENESS, Tcp(1), grace_s=2)),
    ],
)
def test_probes(given: dict[str, Any], wanted: Probe) -> None:
    pod = made({"livenessProbe": given, "ports": [{"name": "web", "containerPort": 8000}]})
    assert first(pod).probes == {Kind.LIVENESS: wanted}


def test_hooks_and_a_quicker_startup_probe() -> None:
    pod = made(
        {
            "lifecycle": {"preStop": {"sleep": {"seconds": 5}}},
            "startupProbe": {"tcpSocket": {"port": 1}, "periodSeconds": 10},
        },
        wishes=Wishes(startup_period_s=0.1),
    )
    assert first(pod).pre_stop == Sleep(5)
    startup = first(pod).probes[Kind.STARTUP]
    assert (startup.period_s, startup.failure_threshold) == (0.1, 300)  # 3 x 10 s, as before


def test_users_and_roots_come_from_the_container_first() -> None:
    pod = made(
        {"securityContext": {"runAsUser": 5, "readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False}},
        securityContext={"runAsUser": 7, "runAsGroup": 8, "fsGroup": 9},
    )
    it = first(pod)
    assert (it.run_as_user, it.run_as_group, it.read_only_root, it.new_privileges, pod.fs_group) == (
        5,
        8,
        True,
        False,
        9,
    )


def test_volumes() -> None:
    config = {"kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"k": "v", "l": "w"}}
    volumes = [
        {"name": "m", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}},
        {"name": "d", "emptyDir": {}},
        {"name": "c", "configMap": {"name": "c", "items": [{"key": "k", "path": "sub/k"}], "defaultMode": 0o600}},
        {"name": "i", "downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
        {"name": "p", "projected": {"sources": [{"configMap": {"name": "c"}}, {"serviceAccountToken": {"path": "t"}}]}},
        {"name": "h", "hostPath": {"path": "/srv"}},
        {"name": "v", "persistentVolumeClaim": {"claimName": "x"}},
        {"name": "unused", "persistentVolumeClaim": {"claimName": "x"}},
    ]
    mounts = [{"name": name, "mountPath": f"/{name}/", "readOnly": name == "v"} for name in "mdciphv"]
    pod = made({"volumeMounts": mounts}, config, volumes=volumes, wishes=Wishes(volumes={"v": "/data"}))
    assert pod.volumes == (
        Volume("m", "memory", 64 << 20), Volume("d", "disk"), Volume("c", "files", files={"sub/k": "v"}, mode=0o600),
        Volume("i", "files", files={"labels": 'app="x"\n'}), Volume("p", "files", files={"k": "v", "l": "w"}),
        Volume("h", "host", directory="/srv"), Volume("v", "host", directory="/data"),
    )  # fmt: skip
    assert first(pod).mounts[-1] == Mount("v", "/v", True)
    assert "serviceAccountToken" in pod.ignored


def test_what_means_nothing_here_is_named() -> None:
    pod = made(
        {"resources": {"limits": {"cpu": 1}}}, tolerations=[{"operator": "Exists"}], resourceClaims=[{"name": "g"}]
    )
    assert set(pod.ignored) == {"resources", "tolerations", "resourceClaims"}


@pytest.mark.parametrize(
    ("container", "spec", "says"),
    [
        ({"command": []}, {}, "has no command"),
        ({}, {"containers": []}, "at least one container"),
        ({"livenessProbe": {"httpGet": {"port": "nope"}}}, {}, "declares no port 'nope'"),
        ({"livenessProbe": {"grpc": {"port": 1}}}, {}, "can't be done here: grpc"),
        ({"volumeMounts": [{"name": "x", "mountPath": "/x"}]}, {}, "no volume x"),
        ({"volumeMounts": [{"name": "x", "mountPath": "x"}]}, {}, "no absolute path"),
        (
            {"volumeMounts": [{"name": "x", "mountPath": "/x"}]},
            {"volumes": [{"name": "x", "persistentVolumeClaim": {"claimName": "c"}}]},
            "--volume x=DIRECTORY",
        ),
        ({"env": [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "nope"}}}]}, {}, "can't be had"),
        ({"env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}, {}, "no Secret s"),
        ({"env": [{"name": "X", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}]}, {}, "isn't set in a"),
        ({}, {"hostPID": True}, "hostPID and hostIPC"),
    ],
)
def test_what_cannot_be_had_is_refused(container: dict[str, Any], spec: dict[str, Any], says: str) -> None:
    with pytest.raises(BadManifest, match=says):
        made(container, **spec)


def test_one_of_several_has_to_be_chosen() -> None:
    pods = [{"kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [CONTAINER]}} for name in "ab"]
    with pytest.raises(BadManifest, match="choose one: --object Pod/a"):
        manifest.pod(pods, Wishes())
    assert manifest.pod(pods, Wishes(object="Pod/b")).name == "b"
    with pytest.raises(BadManifest, match="no Pod/c"):
        manifest.pod(pods, Wishes(object="Pod/c"))
    with pytest.raises(BadManifest, match="no pod in it"):
        manifest.pod([{"kind": "Service"}], Wishes())


BASE = [{"kind": "Pod", "metadata": {"name": "p"}, "spec": {"a": 1, "b": 2, "containers": [
    {"name": "x", "args": [1, 2], "env": [{"name": "E", "value": "1"}]}, {"name": "y"}]}}]  # fmt: skip


@pytest.mark.parametrize(
    ("patch", "spec"),
    [
        ({"a": 5, "b": None}, {"a": 5, "containers": BASE[0]["spec"]["containers"]}),  # type: ignore[index]
        ({"containers": [{"name": "y", "$patch": "delete"}]}, {"a": 1, "b": 2, "containers": [BASE[0]["spec"]["containers"][0]]}),  # type: ignore[index]
        (
            {"containers": [{"name": "x", "args": [3], "env": [{"name": "E", "value": "2"}, {"name": "F"}]}, {"name": "z"}]},
            {"a": 1, "b": 2, "containers": [{"name": "x", "args": [3], "env": [{"name": "E", "value": "2"}, {"name": "F"}]},
                                            {"name": "y"}, {"name": "z"}]},
        ),
        ({"$patch": "replace", "c": 1}, {"c": 1}),
    ],
)  # fmt: skip
def test_an_overlay(patch: dict[str, Any], spec: dict[str, Any]) -> None:
    (found,) = merging.overlaid(BASE, [{"kind": "Pod", "metadata": {"name": "p"}, "spec": patch}])
    assert found["spec"] == spec


def test_an_overlay_adds_takes_out_and_says_what_it_is_for() -> None:
    assert merging.overlaid(BASE, [{"kind": "Pod", "$patch": "delete"}]) == []
    assert len(merging.overlaid(BASE, [{"kind": "Service", "metadata": {"name": "s"}}])) == 2
    with pytest.raises(merging.CantMerge, match="for a Service, and there is none"):
        merging.overlaid(BASE, [{"kind": "Service"}])
    with pytest.raises(merging.CantMerge, match="has no name"):
        merging.overlaid(BASE, [{"kind": "Pod", "spec": {"containers": [{"image": "x"}]}}])


def test_a_kustomization_with_patches_is_an_overlay_too() -> None:
    text = "kind: Kustomization\npatches:\n  - target: {kind: Pod}\n    patch: |\n      spec: {a: 7}\n"
    patches = merging.patches_of(list(yaml.safe_load_all(text)), yaml.safe_load_all)
    assert merging.overlaid(BASE, patches)[0]["spec"]["a"] == 7
