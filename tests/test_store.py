"""The run folder under kills, damage, a full disk and a second process. Run as a program, this file is the victim."""

from __future__ import annotations

import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from gruppo.errors import CheckpointError, StoreError
from gruppo.store import Run, fingerprint

CONFIG = '[model]\nbase = "tiny"  # così\n'


def weights(step: int) -> bytes:
    return random.Random(step).randbytes(20_000)


def save(run: Run, step: int) -> None:
    def write(folder: Path) -> None:
        (folder / "policies").mkdir()
        (folder / "policies" / "planner.bin").write_bytes(weights(step))

    run.save_checkpoint(step, write, {"step": step, "mean": 0.1 + 0.2})


def loads(run: Run, step: int) -> bool:
    checkpoint = run.latest_checkpoint()
    assert checkpoint is not None
    assert checkpoint.state == {"step": step, "mean": 0.1 + 0.2}
    return checkpoint.step == step and (checkpoint.path / "policies" / "planner.bin").read_bytes() == weights(step)


def leftovers(run: Run) -> list[str]:
    return [path.name for path in run.path.rglob(".*")]


def start(job: str, path: Path) -> subprocess.Popen[str]:
    """Run one of the victims below in a process of its own."""
    return subprocess.Popen(
        [sys.executable, __file__, job, str(path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def run(tmp_path: Path) -> Any:
    with Run.create(tmp_path / "run", CONFIG) as run:
        yield run


# The folder ----------------------------------------------------------------------------------------------------------


def test_create_refuses_a_folder_with_a_run_and_resume_one_without(tmp_path: Path) -> None:
    with Run.create(tmp_path / "a" / "run", CONFIG) as run:
        assert run.config_toml == CONFIG
    with pytest.raises(StoreError, match="holds a run; pass --resume or another --out"):
        Run.create(run.path, CONFIG)
    with Run.resume(str(run.path)) as run:
        assert run.config_toml == CONFIG
    assert Run.open(run.path).config_toml == CONFIG
    with pytest.raises(StoreError, match="no run to resume"):
        Run.resume(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="not a run folder"):
        Run.open(tmp_path / "elsewhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="can't write"):
        Run.create(tmp_path / "file", CONFIG)


def test_create_refuses_checkpoints_of_an_older_run(tmp_path: Path) -> None:  # they would win over the new ones
    (tmp_path / "checkpoints" / "step-001000").mkdir(parents=True)
    with pytest.raises(StoreError, match="holds a run"):
        Run.create(tmp_path, CONFIG)


def test_a_run_opened_to_be_read_can_not_be_written(run: Run) -> None:
    with pytest.raises(AssertionError, match="opened to be read"):
        Run.open(run.path).append_metrics({"step": 1})
    run.close()
    with pytest.raises(AssertionError, match="closed"):
        save(run, 1)


def test_the_lock_names_its_owner_and_dies_with_it_even_if_a_forked_worker_lives_on(tmp_path: Path) -> None:
    owner = start("hold", tmp_path / "run")
    assert owner.stdout is not None
    worker = int(owner.stdout.readline())
    try:
        with pytest.raises(StoreError, match=f"in use by process {owner.pid} on "):
            Run.resume(tmp_path / "run")
        assert Run.open(tmp_path / "run").latest_checkpoint() is None
        owner.kill()
        owner.wait()
        Run.resume(tmp_path / "run").close()
    finally:
        os.kill(worker, signal.SIGKILL)
        owner.communicate()


def test_json_files_are_replaced_whole(run: Run) -> None:
    run.write_json("evaluation.json", {"accuracy": 0.1 + 0.2, "loss": float("nan"), "best": [float("-inf"), "è"]})
    assert run.read_json("evaluation.json") == {"accuracy": 0.1 + 0.2, "loss": None, "best": [None, "è"]}
    with pytest.raises(TypeError):
        run.write_json("evaluation.json", {"accuracy": object()})
    assert run.read_json("evaluation.json")["loss"] is None
    assert leftovers(run) == []
    with pytest.raises(StoreError, match=re.escape("has no report.json")):
        run.read_json("report.json")
    (run.path / "report.json").write_text("{")
    with pytest.raises(StoreError, match="not JSON"):
        run.read_json("report.json")


def test_fingerprints_depend_on_content_only(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert fingerprint(tmp_path / "a") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert fingerprint({"a": 1, "b": [2]}) == fingerprint({"b": [2], "a": 1}) != fingerprint({"a": 1, "b": [3]})


# Metrics -------------------------------------------------------------------------------------------------------------


def test_metrics_survive_a_torn_tail_and_have_no_bare_nan(run: Run) -> None:
    assert run.read_metrics() == []
    run.append_metrics({"step": 1, "loss": float("nan"), "by_role": {"planner": float("inf")}})
    run.append_metrics({"step": 2, "loss": 0.1 + 0.2})
    metrics = run.path / "metrics.jsonl"
    assert "NaN" not in metrics.read_text() and "Infinity" not in metrics.read_text()
    with metrics.open("ab") as file:
        file.write('{"step": 3, "note": "è'.encode()[:-1])
    first_two = [{"step": 1, "loss": None, "by_role": {"planner": None}}, {"step": 2, "loss": 0.1 + 0.2}]
    assert Run.open(run.path).read_metrics() == first_two
    run.close()
    with Run.resume(run.path) as resumed:
        resumed.append_metrics({"step": 3})
        assert resumed.read_metrics() == [*first_two, {"step": 3}]
        resumed.truncate_metrics(lambda record: record["step"] <= 1)
        assert resumed.read_metrics() == first_two[:1]


def test_metrics_damaged_in_the_middle_are_not_passed_over(run: Run) -> None:
    run.append_metrics({"step": 1})
    run.append_metrics({"step": 2})
    metrics = run.path / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace("1}", "1"))
    with pytest.raises(StoreError, match="damaged"):
        run.read_metrics()


# Checkpoints ---------------------------------------------------------------------------------------------------------


def test_the_newest_checkpoint_is_found_by_number_among_foreign_names(run: Run) -> None:
    assert run.latest_checkpoint() is None
    for step in (800, 9000, 1_000_000):
        save(run, step)
    for name in ("best", "step-final", "step-2000000.bak", "step_3000000"):
        (run.path / "checkpoints" / name).mkdir()
    assert run.list_checkpoints() == [800, 9000, 1_000_000]
    assert loads(run, 1_000_000)
    assert run.checkpoint(800).state["step"] == 800
    with pytest.raises(CheckpointError, match="step-000801 is missing"):
        run.checkpoint(801)


def truncate(folder: Path) -> None:
    os.truncate(folder / "policies" / "planner.bin", 10_000)


def flip(folder: Path) -> None:
    file = folder / "policies" / "planner.bin"
    content = bytearray(file.read_bytes())
    content[10_000] ^= 1
    file.write_bytes(content)


def lose_a_file(folder: Path) -> None:
    (folder / "policies" / "planner.bin").unlink()


def edit_the_state(folder: Path) -> None:
    (folder / "state.json").write_text('{"step": 3}')


def lose_the_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def flip_the_manifest(folder: Path) -> None:
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace("files", "fides"))


def age_the_manifest(folder: Path) -> None:
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"schema_version": 1', '"schema_version": 0'))


DAMAGES = (truncate, flip, lose_a_file, edit_the_state, lose_the_manifest, flip_the_manifest, age_the_manifest)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(run: Run, damage: Any) -> None:
    save(run, 1)
    save(run, 2)
    damage(run.path / "checkpoints" / "step-000002")
    with pytest.warns(UserWarning, match="step-000002 is missing or damaged.*trying the checkpoint before"):
        assert loads(run, 1)
    # The replay must not lose to the damaged one, neither as the newest nor in the rotation.
    save(run, 2)
    run.prune(keep_last=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert loads(run, 2) and leftovers(run) == []


def test_a_run_whose_checkpoints_are_all_damaged_does_not_start_anew(run: Run) -> None:
    save(run, 1)
    flip(run.path / "checkpoints" / "step-000001")
    with pytest.warns(UserWarning), pytest.raises(CheckpointError, match="every checkpoint in"):
        run.latest_checkpoint()


def test_a_save_that_fails_leaves_the_one_before_and_no_litter(run: Run) -> None:
    save(run, 1)

    def fail(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise RuntimeError("the learner failed")

    for step in (1, 2):
        with pytest.raises(RuntimeError, match="the learner failed"):
            run.save_checkpoint(step, fail, {})
    for state in ({"rng": (1, 2)}, {"by_id": {3: 0.5}}, {"best": float("-inf")}):
        with pytest.raises(ValueError):
            run.save_checkpoint(2, lambda folder: None, state)
    assert leftovers(run) == [] and run.list_checkpoints() == [1] and loads(run, 1)


def test_a_kill_between_the_two_renames_of_a_replacement_is_undone(run: Run) -> None:
    save(run, 1)
    folder = run.path / "checkpoints"
    (folder / "step-000001").rename(folder / ".old-step-000001")
    (folder / ".tmp-1-0123").mkdir()
    run.close()
    with Run.resume(run.path) as resumed:
        assert loads(resumed, 1) and leftovers(resumed) == []


def kept(run: Run, keep_last: int | None, best: int | None = None) -> list[int]:
    run.prune(keep_last, best)
    return run.list_checkpoints()


def test_rotation_keeps_the_newest_and_the_best(run: Run) -> None:
    for step in (1, 2, 3, 4):
        save(run, step)
    assert kept(run, None) == kept(run, -1) == kept(run, 9) == [1, 2, 3, 4]
    for refused in (0, -2):
        with pytest.raises(ValueError, match=f"keep_last is {refused}; use 1 or more, or -1"):
            run.prune(refused)
    assert kept(run, 2, best=1) == [1, 3, 4]
    assert kept(run, 1, best=1) == [1, 4]
    assert kept(run, 1, best=4) == kept(run, 1, best=7) == [4]
    assert leftovers(run) == []


def test_a_checkpoint_of_a_later_step_does_not_push_the_new_one_out(run: Run) -> None:
    save(run, 1000)
    save(run, 10)
    assert kept(run, 1) == [10] and loads(run, 10)


def test_killed_at_random_moments_the_last_completed_checkpoint_loads(tmp_path: Path) -> None:
    Run.create(tmp_path / "run", CONFIG).close()
    killer = start("kill_savers", tmp_path / "run")
    _, errors = killer.communicate(timeout=60)
    assert killer.returncode == 0, errors


@pytest.mark.parametrize("job", ["fill_the_disk", "fill_the_device"])
def test_a_full_disk_is_named_and_earlier_checkpoints_load(tmp_path: Path, job: str) -> None:
    with Run.create(tmp_path / "run", CONFIG) as run:
        save(run, 1)
    _, errors = start(job, run.path).communicate(timeout=60)
    assert re.search(r"StoreError: no space left on \S+ while writing step-000002; earlier", errors)
    assert loads(Run.open(run.path), 1) and leftovers(run) == []


# The victims ---------------------------------------------------------------------------------------------------------


def hold(path: Path) -> None:
    """Lock a run, leave a forked worker behind, wait to be killed."""
    run = Run.create(path, CONFIG)
    worker = os.fork()
    if worker:
        print(worker, flush=True)
    time.sleep(60)
    run.close()


def fill_the_disk(path: Path) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
    save(Run.resume(path), 2)


def fill_the_device(path: Path) -> None:
    Run.resume(path).save_checkpoint(2, lambda folder: write_to_full_device(), {})


def write_to_full_device() -> None:
    with open("/dev/full", "wb", buffering=0) as file:
        file.write(b"weights")


def save_for_ever(path: Path, completed: int) -> None:
    """Save each step twice, so that a replacement is hit too, and report each step that is done."""
    run = Run.resume(path)
    latest = run.latest_checkpoint()
    step = latest.step + 1 if latest else 1
    while True:
        save(run, step)
        save(run, step)
        os.write(completed, b"%d\n" % step)
        run.prune(keep_last=2)
        step += 1


def kill_savers(path: Path) -> None:
    warnings.simplefilter("error")  # a damaged checkpoint
    moments, last = random.Random(0), 0
    for _ in range(12):
        completed, report = os.pipe()
        saver = os.fork()
        if saver == 0:
            try:
                save_for_ever(path, report)
            finally:
                os._exit(1)
        os.close(report)
        time.sleep(moments.uniform(0.01, 0.15))
        os.kill(saver, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(saver, 0)[1]) == -signal.SIGKILL
        last = max([last, *map(int, os.read(completed, 2**16).split())])
        os.close(completed)
        with Run.resume(path) as run:
            newest = run.list_checkpoints()[-1:]
            assert newest in ([last], [last + 1]) or (newest, last) == ([], 0), (newest, last)
            assert not newest or loads(run, newest[0])
            assert leftovers(run) == []
            last = max([last, *newest])
    assert last > 5, f"only {last} steps were saved: nothing was tested"


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]))
