"""From a manifest to a pod: commands, environment, probes, volumes; what is refused, and what is said to be ignored."""

from typing import Any

import pytest

from tools.local_pod import manifest
from tools.local_pod.manifest import PATH, BadManifest, Wishes
from tools.local_pod.spec import Exec, Http, Kind, Mount, Pod, Probe, Role, Sleep, Tcp, Volume

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
    config = {"kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"k": "v"}}
    secret = {"kind": "Secret", "metadata": {"name": "s"}, "data": {"k": "c2VjcmV0"}, "stringData": {"t": "text"}}
    env = [
        {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
        {"name": "UID_", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
        {"name": "APP", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "ACCOUNT", "valueFrom": {"fieldRef": {"fieldPath": "spec.serviceAccountName"}}},
        {"name": "CONFIG", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
        {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        {"name": "TEXT", "valueFrom": {"secretKeyRef": {"name": "s", "key": "t"}}},
        {"name": "NOTHING", "valueFrom": {"configMapKeyRef": {"name": "nope", "key": "k", "optional": True}}},
    ]
    found = first(made({"env": env}, config, secret, wishes=Wishes(uid="u", address="10.1.1.1"))).environment
    assert found == {
        "PATH": PATH, "HOSTNAME": "p", "NAME": "p", "NAMESPACE": "n", "UID_": "u", "APP": "x", "IP": "10.1.1.1",
        "NODE": "local-pod", "ACCOUNT": "default", "CONFIG": "v", "SECRET": "secret", "TEXT": "text",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"httpGet": {"port": "web"}}, Probe(Kind.LIVENESS, Http(8000))),
        ({"httpGet": {"port": 1, "path": "/x", "scheme": "HTTP"}}, Probe(Kind.LIVENESS, Http(1, "/x"))),
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
    volumes = [
        {"name": "m", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}},
        {"name": "d", "emptyDir": {}},
        {"name": "h", "hostPath": {"path": "/srv"}},
        {"name": "v", "persistentVolumeClaim": {"claimName": "x"}},
        {"name": "unused", "persistentVolumeClaim": {"claimName": "x"}},
    ]
    mounts = [{"name": name, "mountPath": f"/{name}/", "readOnly": name == "v"} for name in "mdhv"]
    pod = made({"volumeMounts": mounts}, volumes=volumes, wishes=Wishes(volumes={"v": "/data"}))
    assert pod.volumes == (
        Volume("m", "memory", 64 << 20), Volume("d", "disk"),
        Volume("h", "host", directory="/srv"), Volume("v", "host", directory="/data"),
    )  # fmt: skip
    assert first(pod).mounts[-1] == Mount("v", "/v", True)


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
        (
            {"env": [{"name": "X", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}]},
            {},
            "can't come from",
        ),
        ({"envFrom": [{"configMapRef": {"name": "c"}}]}, {}, "has envFrom"),
        ({"lifecycle": {"postStart": {"sleep": {"seconds": 1}}}}, {}, "a has a postStart hook"),
        ({"livenessProbe": {"httpGet": {"port": 1, "scheme": "HTTPS"}}}, {}, "httpGet with HTTPS"),
        ({"livenessProbe": {"httpGet": {"port": 1, "httpHeaders": []}}}, {}, "httpGet with httpHeaders"),
        ({}, {"restartPolicy": "Never"}, "restartPolicy Never can't be had here"),
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
