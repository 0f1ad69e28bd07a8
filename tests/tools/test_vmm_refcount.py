"""`python -m tools.vmm_refcount`: what it says of host memory and of the emulated driver, that it notices wrong
semantics, and that it leaves nothing behind."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from sidecar.kernel import host_usage
from tests import emulated_driver
from tests.support.processes import ROOT, Process, run_here
from tests.support.waiting import DEADLINE_S, until
from tools.vmm_refcount import stage as stage_module
from tools.vmm_refcount import stories
from tools.vmm_refcount.__main__ import main
from tools.vmm_refcount.meters import Meter
from tools.vmm_refcount.stage import Stage

MIB = 1 << 20
UUID = "GPU-656d756c-6174-6564-0000-000000000000"


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tools.vmm_refcount", *arguments]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )


@pytest.fixture
def gpu() -> Iterator[Mapping[str, str]]:
    yield from emulated_driver.one_gpu(capacity=64 * MIB)


def steps(figures: dict[str, Any], story: str) -> list[tuple[str, int]]:
    return [(step["what"], step["seen_bytes"]) for step in figures["steps"] if step["story"].startswith(story)]


# --- what it says


def test_host_memory_is_counted_as_decision_7_saw_it_on_a_gpu_and_each_story_ends_with_it_free() -> None:
    done = run("--memory", "host", "--size", "16MiB", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    figures = json.loads(done.stdout)
    assert figures["as_expected"] and all(step["fits"] for step in figures["steps"])
    assert steps(figures, "Decision 7") == [
        ("nothing on the device yet", 0),
        ("alloc + client import", 16 * MIB),
        ("the server releases its handle", 0),
        ("the client releases its handle", -16 * MIB),
        ("both processes are killed", 0),
    ]
    last = {step["story"]: step["used_bytes"] for step in figures["steps"]}
    assert len(last) == len(stories.STORIES) == 9 and set(last.values()) == {0}


@pytest.mark.slow
def test_the_emulated_driver_counts_the_same_and_is_called_emulated(gpu: Mapping[str, str]) -> None:
    context = {"EMULATED_CUDA_CONTEXT_BYTES": str(4 * MIB)}
    done = run("--memory", "cuda", "--size", "16MiB", "--json", **gpu, **context)
    figures = json.loads(done.stdout)
    assert (done.returncode, figures["as_expected"], figures["emulated"]) == (0, True, True)
    assert "EMULATED" in figures["measured_by"]
    assert figures["device"] == UUID


# --- what it notices


@pytest.mark.slow
def test_a_driver_that_cant_map_at_an_offset_is_named_and_the_other_stories_are_told(gpu: Mapping[str, str]) -> None:
    done = run("--memory", "cuda", "--size", "16MiB", "--device", UUID, **gpu, EMULATED_CUDA_OFFSETS="no")
    assert done.returncode == 1 and "EMULATED" in done.stdout
    assert "CUDA_ERROR_NOT_SUPPORTED" in done.stdout
    assert done.stdout.count("differs:") == 1
    assert "differs: mapping at an offset" in done.stdout


def test_memory_that_isnt_freed_is_noticed(gpu: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_module, "SETTLE_S", 0.5)
    told = _told(stories.descriptor_only, {**gpu, "EMULATED_CUDA_LEAKS": "yes"})
    assert told["the server closes the descriptor"] == (0, False)


def test_memory_that_is_freed_too_soon_is_noticed(gpu: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_module, "SETTLE_S", 0.5)
    # The measure forgets everything as soon as no handle is left: the semantics that GMS can't live with.
    seen: list[int] = []

    def forgetful(used: int) -> int:
        seen.append(used)
        return used if len(seen) < 8 else 0

    told = _told(stories.descriptor_only, gpu, forgetful)
    assert not all(fits for _, fits in told.values())


def _told(
    story: Callable[[Stage], None], gpu: Mapping[str, str], measured: Callable[[int], int] = lambda used: used
) -> dict[str, tuple[int, bool]]:
    file = Path(gpu["EMULATED_CUDA_DIR"]) / UUID
    file.touch()
    os.truncate(file, 64 * MIB)

    def used() -> int:
        free, in_all = host_usage.read_device(file)
        return measured(in_all - free)

    meter = Meter(used, "the locks on the device's file", exact=True, emulated=True)
    stage = Stage("cuda", UUID, 8 * MIB, 4 * MIB, meter, {**os.environ, **gpu})
    story(stage)
    return {step.what: (step.seen_bytes, step.fits) for step in stage.steps}


# --- mistakes, and the end


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--memory", "host", "--size", "3MiB"], "multiples of 2 MiB"),
        (["--memory", "host", "--size", "2MiB"], "at least 4 MiB"),
        (["--memory", "host", "--size", "lots"], "no size"),
        (["--memory", "floppy"], "host, cuda"),
        (["--memory", "host", "--device", "GPU-1"], "--device is for --memory cuda"),
        ([], "--memory"),
    ],
)
def test_wrong_usage_is_one_sentence(arguments: list[str], said: str) -> None:
    code, out, err = run_here(main, *arguments)
    assert (code, out) == (64, "") and said in err


def test_where_there_is_no_gpu_it_says_so() -> None:
    done = run("--memory", "cuda", CUDA_VISIBLE_DEVICES="", LD_LIBRARY_PATH="")
    assert (done.returncode, done.stdout) == (2, "")
    assert "driver" in done.stderr and "Traceback" not in done.stderr


def test_too_little_memory_is_said_before_anything_is_measured(gpu: Mapping[str, str]) -> None:
    done = run("--memory", "cuda", "--size", "64MiB", **gpu)
    assert (done.returncode, done.stdout) == (2, "")
    assert "66 MiB" in done.stderr and "64 MiB are free" in done.stderr


def test_help_has_examples_and_exit_codes() -> None:
    code, out, _ = run_here(main, "--help")
    assert code == 0 and "examples:" in out and "exit codes:" in out


def begun() -> tuple[subprocess.Popen[str], list[Process], Path]:
    """The experiment in the middle of a story, its children, and where its device is."""
    process = subprocess.Popen(
        command("--memory", "host", "--size", "4MiB"),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    lines = iter(process.stdout.readline, "")
    measured = next(line for line in lines if line.startswith("measured by"))
    next(line for line in lines if line.strip().startswith("alloc"))
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")

    def living() -> list[Process]:
        with contextlib.suppress(ProcessLookupError):  # a story ends as it is looked at, and the next one begins
            return [Process(int(pid)) for pid in children.read_text().split()]
        return []

    return process, until(living, "it has children"), Path(measured.split(" locks on ")[1].strip()).parent


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_it_leaves_no_process_and_no_device(number: signal.Signals, status: int) -> None:
    process, children, directory = begun()
    process.send_signal(number)
    _, said = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == status
    assert "Traceback" not in said
    assert not directory.exists()
    for child in children:
        child.wait()


def test_killed_it_takes_its_processes_along() -> None:
    process, children, directory = begun()
    process.kill()
    process.communicate(timeout=DEADLINE_S)
    for child in children:
        child.wait()
    for file in directory.iterdir():
        file.unlink()
    directory.rmdir()
