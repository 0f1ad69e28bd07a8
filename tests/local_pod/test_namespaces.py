"""Where the namespaces of a pod can't be made, local-pod says which setting forbids them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.local_pod.ordinary import PATIENCE_S, Place, words
from tests.support.processes import ROOT
from tests.support.waiting import until
from tools.local_pod import image, namespaces
from tools.local_pod.namespaces import forbidden


@pytest.mark.parametrize("path", list(namespaces.SETTINGS))
def test_the_setting_is_named_with_what_to_do(path: str) -> None:
    value, remedy = namespaces.SETTINGS[path]
    said = forbidden(root=False, attempt=lambda _: "EPERM", read=lambda asked: value if asked == path else None)
    assert path in said and remedy in said


def test_without_a_setting_a_profile_is_blamed() -> None:
    said = forbidden(root=False, attempt=lambda _: "unshare failed", read=lambda _: None)
    assert "unshare failed" in said and "seccomp" in said


def test_root_in_a_container_hears_of_its_capability() -> None:
    assert "CAP_SYS_ADMIN" in forbidden(root=True, attempt=lambda _: "EPERM", read=lambda _: "0")


def test_where_it_works_nothing_is_said() -> None:
    assert forbidden(root=False, attempt=lambda _: "", read=lambda _: "0") == ""


def test_a_machine_without_the_tools_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "missing_tools", lambda: ["nsenter"])
    assert forbidden(root=True) == "nsenter of util-linux isn't there: apt install util-linux mount"


def test_a_kernel_that_allows_none_really_says_so(here: Place) -> None:
    """A user namespace of our own in which no further one may be made: its limit is 0."""
    code = "import sys; from tools.local_pod.__main__ import main; sys.exit(main(sys.argv[1:]))"
    pod = here.directory / "pod.yaml"
    pod.write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: a, image: x, command: [x]}]}\n"
    )
    pod.chmod(0o644)
    command = words(["-c", code, "run", "--dir", str(here.pod), str(pod)], here.python)
    user = 2000 if os.getuid() == 0 else os.getuid()
    script = 'echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --inh-caps=-all --ambient-caps=-all "$@"'
    if os.getuid() == 0:
        # The interpreter is bound by root first; the namespace without further ones comes below it.
        *head, last = command
        before, _, after = last.rpartition(" && exec ")
        drop, _, rest = after.partition(" env -i ")
        inner = f"{drop} unshare --user --map-user={user} --keep-caps sh -c '{script}' sh env -i {rest}"
        command = [*head, f"{before} && exec {inner}"]
    else:
        command = ["unshare", "--user", f"--map-user={user}", "--keep-caps", "sh", "-c", script, "sh", *command]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False, timeout=60)
    assert done.returncode == 2, done
    assert (
        "user namespaces are forbidden by /proc/sys/user/max_user_namespaces = 0: as root, sysctl user.max"
        in done.stderr
    )


@pytest.mark.root
def test_the_whole_as_root_needs_no_user_namespace(tmp_path: Path) -> None:
    why = forbidden()
    if why:
        pytest.skip(why)
    pod = tmp_path / "pod.yaml"
    pod.write_text(
        """
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  securityContext: {runAsUser: 1234, runAsGroup: 1235, fsGroup: 1236}
  volumes: [{name: run, emptyDir: {medium: Memory}}]
  containers:
    - name: a
      image: x
      command:
        - sh
        - -c
        - |
          id; stat -c '%a %u %g' /run/pod; touch /run/pod/x; stat -c '%u %g' /run/pod/x; cat /proc/self/uid_map
          sleep 1000000
      volumeMounts: [{name: run, mountPath: /run/pod}]
    - name: b
      image: x
      command: [sh, -c, id -u; sleep 1000000]
      securityContext: {runAsUser: 4321}
"""
    )
    local_pod = [sys.executable, "-m", "tools.local_pod"]
    running = subprocess.Popen([*local_pod, "run", str(pod), "--dir", str(tmp_path / "d")], cwd=ROOT)
    logs = [tmp_path / "d" / "logs" / f"{name}.1.log" for name in "ab"]
    until(lambda: [log.exists() and log.read_text().count("\n") for log in logs] == [4, 1], "both have said theirs")
    subprocess.run([*local_pod, "down", "--dir", str(tmp_path / "d"), "--grace-s", "1"], cwd=ROOT, check=True)
    assert running.wait(PATIENCE_S) == 0
    said = logs[0].read_text().splitlines()
    assert said[0] == "uid=1234 gid=1235 groups=1235,1236"
    # As kubelet makes it: the mount is root's, open to the group, and files in it are the group's.
    assert said[1:3] == ["2777 0 1236", "1234 1236"]
    assert said[3].split() == ["0", "0", "4294967295"]
    assert logs[1].read_text() == "4321\n"
