"""Every inotify instance of the user is taken, by other containers of this uid: the servers serve, look every second,
and say so until there are instances again."""

import shutil
import subprocess
import sys

import pytest

from tests.chaos.house import House
from tests.gms.container import Container
from tests.support.seccomp import through
from tests.support.waiting import until

pytestmark = pytest.mark.chaos


@pytest.mark.parametrize("what", ["instances", "watches"])
def test_the_lock_server_starts_serves_and_says_so_until_there_are_some_again(house: House, what: str) -> None:
    limit = f"/proc/sys/user/max_inotify_{what}"
    # In a user namespace of its own, which has limits of its own: nothing is taken from any other program here.
    new = ["/usr/bin/env", "unshare", "--user", "--map-root-user"]
    without = [*new, "sh", "-c", f'echo 0 > {limit} && exec "$@"', "sh"]
    if subprocess.run([*without, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no user namespaces with limits of their own here")
    server = house.server(through=without)
    assert [f"raise fs.inotify.max_user_{what}" in alarm for alarm in server.status().alarms] == [True]
    a, b = house.engine("a"), house.engine("b")
    a.holds()
    b.wants(watching=[a])
    server.shows(lambda s: s.waiters)
    a.kill()
    assert b.granted()["dead"] == [True]
    inside = ["nsenter", "--user", "--preserve-credentials", "--target", str(server.pid)]
    subprocess.run([*inside, "sh", "-c", f"echo 128 > {limit}"], check=True)
    server.shows(lambda s: not s.alarms, "the kernel says it from now on")


def test_watches_that_run_out_while_the_server_serves_are_an_alarm_too(house: House) -> None:
    """The way to its directory changes when there are none left; from then on it looks by itself."""
    limit = "/proc/sys/user/max_inotify_watches"
    new = ["/usr/bin/env", "unshare", "--user", "--map-root-user"]
    if subprocess.run([*new, "sh", "-c", f"echo 9 > {limit}"], check=False, capture_output=True).returncode:
        pytest.skip("no user namespaces with limits of their own here")
    place, again = house.directory / "place", house.directory / "again"
    place.mkdir()
    house.run_dir.symlink_to(place)
    again.symlink_to(place)
    server = house.server(through=new)
    assert not server.status().alarms
    inside = ["nsenter", "--user", "--preserve-credentials", "--target", str(server.pid), "sh", "-c"]
    subprocess.run([*inside, f"echo 0 > {limit}"], check=True)
    again.rename(house.run_dir)
    server.shows(lambda s: any("raise fs.inotify.max_user_watches" in alarm for alarm in s.alarms), "an alarm")
    subprocess.run([*inside, f"echo 1000 > {limit}"], check=True)
    server.shows(lambda s: not s.alarms, "the kernel says it from now on")
    subprocess.run([*inside, f"echo 0 > {limit}"], check=True)
    again.symlink_to(place)
    again.rename(house.run_dir)
    server.shows(lambda s: s.alarms, "an alarm again")
    (place / "lock.sock").unlink()
    assert house.exit_code(server) == 1
    assert "was replaced" in house.log.read_text()


@pytest.mark.parametrize("refused", [{"inotify_init1": "EMFILE"}, {"inotify_add_watch": "EACCES"}])
def test_a_directory_that_is_replaced_is_noticed_all_the_same(house: House, refused: dict[str, str]) -> None:
    """EACCES: a directory above may be entered and not read, as /run/pair of mode 711. No limit helps: no alarm."""
    server = house.server(through=through(**refused))
    assert bool(server.status().alarms) == ("inotify_init1" in refused)
    shutil.move(house.run_dir, house.directory / "elsewhere")
    assert house.exit_code(server) == 1
    assert "was replaced" in house.log.read_text()


def test_gms_starts_and_says_so_and_writes_a_deleted_file_again(container: Container) -> None:
    command = (*through(inotify_init1="EMFILE"), sys.executable, "-m", "gms", "--run-dir", str(container.run_dir))
    gms = container.run(*command, "--devices", "host:0", "--capacity", "64MiB")
    gms.err.with_words(" ready ")
    container.writer()
    assert any("max_user_instances" in alarm for alarm in container.status().alarms)
    (file,) = (container.run_dir / "gms").glob("*.json")
    file.unlink()
    until(file.exists, "it is written again")
