"""Replicas: forked processes that compute on the same weights give what one process gives, and fail in one line."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import torch
from small_run import config_of, fingerprints, noise, play

from gruppo import replicas
from gruppo.config import load
from gruppo.errors import ConfigError, EngineError
from gruppo.replicas import Replicas
from gruppo.run import RunConfig, assemble
from gruppo.training.shares import _shared_like
from gruppo.types import Request, Sampling


class Host:
    """What jobs run on: a process's own number, and memory that all have in common."""

    def __init__(self) -> None:
        self.common = _shared_like([torch.zeros(3)])[0]
        self.adopted = 0


def square(host: Host, number: int) -> tuple[int, int, int]:
    host.common[number] = number
    return number**2, os.getpid(), host.adopted


def fail(host: Host, number: int) -> int:
    if number == 1:
        raise ZeroDivisionError("one")
    return number


def die(host: Host, number: int) -> None:
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def look_for(host: Host, number: int) -> list[str]:
    return os.listdir("/proc/self/fd")


def of_three() -> tuple[Replicas, Host]:
    host, state = Host(), iter(range(1, 99))
    found = Replicas(3, lambda: next(state), lambda value: setattr(host, "adopted", value))
    found.add(host)
    return found, host


def test_shares_are_computed_in_processes_of_their_own_and_come_back_in_order() -> None:
    group, host = of_three()
    results = group.map(square, host, [(0,), (1,), (2,)])
    assert [value for value, _, _ in results] == [0, 1, 4]
    assert len({pid for _, pid, _ in results}) == 3 and results[0][1] == os.getpid()
    assert [adopted for _, _, adopted in results] == [0, 1, 1], (
        "a replica takes on the state that goes ahead of its job"
    )
    assert host.common.tolist() == [0, 1, 2], "what replicas write into shared memory is seen here"
    group.stop()


def test_a_failure_comes_back_after_all_shares_and_the_next_jobs_go_on() -> None:
    group, host = of_three()
    with pytest.raises(RuntimeError, match="ZeroDivisionError: one"):
        group.map(fail, host, [(0,), (1,), (2,)])
    assert [value for value, _, _ in group.map(square, host, [(2,), (1,), (0,)])] == [4, 1, 0]
    group.stop()


def test_a_replica_that_dies_is_one_line_and_the_next_job_forks_anew() -> None:
    group, host = of_three()
    with pytest.raises(EngineError, match=r"a replica died \(exit code -9\)"):
        group.map(die, host, [(0,), (1,), (2,)])
    assert [value for value, _, _ in group.map(square, host, [(0,), (1,), (2,)])] == [0, 1, 4]
    group.stop()


def test_a_replica_holds_nothing_open_that_was_open_at_the_fork(tmp_path: Path) -> None:
    group, host = of_three()
    with open(tmp_path / "lock", "w"):
        mine, *theirs = group.map(look_for, host, [(0,), (1,), (2,)])
    assert len(mine) > 5 and all(len(held) <= 5 for held in theirs)  # standard streams, its pipe, the listing itself
    group.stop()


def test_replicas_end_with_the_first_process(tmp_path: Path) -> None:
    first = os.fork()
    if first == 0:
        group, host = of_three()
        pids = [pid for _, pid, _ in group.map(square, host, [(0,), (1,), (2,)])]
        (tmp_path / "pids").write_text(" ".join(map(str, pids)))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(first, 0)
    _, *others = map(int, (tmp_path / "pids").read_text().split())
    for _ in range(200):
        alive = [pid for pid in others if Path(f"/proc/{pid}/stat").exists() and _state(pid) != "Z"]
        if not alive:
            return
        time.sleep(0.05)
    raise AssertionError(f"still alive: {alive}")


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "Z"


def test_a_run_is_the_same_bit_for_bit_where_nothing_can_be_forked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = {"model__processes": "2", "train__updates": "2", "algorithm__kl_coefficient": "0.1"}
    forked, metrics = play(tmp_path, "forked", noise, **overrides)
    monkeypatch.setattr(replicas, "CAN_FORK", False)
    alone, others = play(tmp_path, "alone", noise, **overrides)
    assert fingerprints(forked) == fingerprints(alone)
    quick = [{key: value for key, value in record.items() if "seconds" not in key} for record in metrics]
    assert quick == [{key: value for key, value in record.items() if "seconds" not in key} for record in others]


def test_one_process_and_two_learn_the_same(tmp_path: Path) -> None:
    one, _ = play(tmp_path, "one", noise)
    two, _ = play(tmp_path, "two", noise, model__processes="2")
    for policy in ("planner", "executor"):
        pairs = zip(one.learner.parameters(policy).values(), two.learner.parameters(policy).values(), strict=True)
        assert all(torch.allclose(a, b, atol=2e-3) for a, b in pairs)  # Adam: a gradient near 0 may change its sign


def test_what_is_sampled_does_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    texts = []
    for processes in ("1", "2", "3"):
        assembly = assemble(config_of(tmp_path, model__processes=processes))
        engine = assembly.rollout.engines["local"]
        requests = [
            Request([{"role": "user", "content": f"plan: {n % 3}"}], Sampling(max_tokens=6), n, policy)
            for n, policy in enumerate(["planner", "executor", None, "planner", "planner", "executor", None])
        ]
        texts.append([completion.ids for completion in engine.sample(requests)])
        assembly.learner.start_optimizers({"planner": 0.1})
        for parameter in assembly.learner.parameters("planner").values():
            parameter.grad = torch.ones_like(parameter)
        assembly.learner.step("planner", 1.0, 1.0)  # the replicas must see the new weights
        texts[-1] += [completion.ids for completion in engine.sample(requests)]
        assembly.close()
    assert texts[0] == texts[1] == texts[2]
    assert texts[0][:7] != texts[0][7:]


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"model.threads": "2"}, "each has one"), ({"model.device": "cuda"}, "only on the CPU")],
)
def test_processes_that_are_impossible_are_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(RunConfig, [], {"model.processes": "2", **settings})
