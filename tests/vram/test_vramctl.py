"""`vramctl`: what it says of a real ledger, and a command under a lease."""

import signal

from tests.vram.programs import House

GPU, OTHER = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "GPU-11112222-d72c-4106-c12f-20bd9faed9f6"
TOTALS = ("--memory", "none", "--total", f"{GPU}=8MiB", "--total", f"{OTHER}=8MiB")
SHOWS = ("sh", "-c", "echo $CUDA_VISIBLE_DEVICES; read line")


def test_a_gpu_by_its_number_is_known_once_there_is_a_ledger(house: House) -> None:
    """It was started before that."""
    held = house.vramctl("hold", "--needs", "GPU-0=1MiB", "--needs", "GPU-1111=2MiB", "--", *SHOWS)
    assert f"waiting: no ledger at {house.host_dir}: start one (vram --run-dir DIR)" in held.err.next()
    house.serve(*TOTALS)
    assert held.out.next() == f"{GPU},{OTHER}"
    seen = house.until(lambda status: status.leases, "it is leased")
    assert seen.leases[0].bytes == {GPU: 1 << 20, OTHER: 2 << 20}


def test_two_of_the_same_program_have_a_lease_each_and_two_of_the_same_name_one_after_the_other(house: House) -> None:
    house.serve(*TOTALS)
    first, second = (house.vramctl("hold", "--needs", "GPU-0=1MiB", "--", *SHOWS) for _ in range(2))
    assert first.out.next() == second.out.next() == GPU
    assert all(lease.name.startswith("sh.") for lease in house.until(lambda status: status.leases, "them").leases)
    named = ("hold", "--name", "train", "--needs", "GPU-0=1MiB")
    assert house.vramctl(*named, "--", *SHOWS).out.next() == GPU
    code, _, said = house.ask(*named, "--no-wait", "--", "true")
    assert code == 75 and "train holds it" in said


def test_what_names_no_device_is_refused_with_those_that_there_are(house: House) -> None:
    house.serve(*TOTALS)
    code, _, said = house.ask("hold", "--needs", "GPU-2=1MiB", "--", "true")
    assert code == 69 and f"refused: no device 'GPU-2' is known here; there are: {OTHER}, {GPU}" in said


def test_without_a_ledger_it_waits_as_long_as_it_was_told_or_not_at_all(house: House) -> None:
    code, _, said = house.ask("hold", "--needs", "GPU-0=1MiB", "--timeout-s", "0.2", "--", "true")
    assert code == 75 and f"not acquired within 0.2 s: no ledger at {house.host_dir}" in said
    code, _, said = house.ask("hold", "--needs", "GPU-0=1MiB", "--no-wait", "--", "true")
    assert code == 69 and f"no ledger at {house.host_dir}" in said


def test_a_signal_ends_it_while_it_waits_for_a_ledger(house: House) -> None:
    held = house.vramctl("hold", "--needs", "GPU-0=1MiB", "--", "true")
    assert "waiting: no ledger" in held.err.next()
    held.send(signal.SIGTERM)
    assert held.ends() == -signal.SIGTERM
