"""Ten thousand scripted episodes from end to end: `episodes.py --episodes 10000 --mode async --json FILE`.

The solver team plays four turns and a tool call per episode; every group is rewarded and given its advantages, and
written to a run folder with a shard's worth of others, then forgotten. No model computes anything, so what is measured
is what gruppo itself costs: CPU seconds of this one process, by part, and whether memory stays flat.

`episodes.py --tool-seconds 2 --episodes 64` plays them with a tool that waits, in processes of its own: how often as
long as one call do they all take together? A second time too, when the processes are up.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from slow_tool import wait

from gruppo.algorithms.advantages import AdvantageSettings
from gruppo.algorithms.credit import CreditConfig, Terms, assign
from gruppo.engines.scripted import ScriptedEngine
from gruppo.rewards import REWARDS
from gruppo.rewards.rules import score_group
from gruppo.rollout import Rollout, RolloutConfig
from gruppo.store import Run
from gruppo.teams.base import Role
from gruppo.teams.solver import Solver, SolverConfig
from gruppo.tools.base import tool
from gruppo.types import Group, Request, Sampling, Task, Tool

ROLES = ("planner", "executor", "verifier", "writer")
FIXED = {"planner": "lookup: the place", "executor": "the river", "verifier": "stop"}
WARM = 1000  # episodes after which memory should stay as it is


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--attempts", type=int, default=8)
    parser.add_argument("--mode", choices=["lockstep", "async"], default="async")
    parser.add_argument("--max-concurrent", type=int, default=1024)
    parser.add_argument("--tool-seconds", type=float, help="only this: episodes that all wait for a slow tool")
    parser.add_argument("--shard", type=int, default=64, help="groups per file")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = measure_waiting(options) if options.tool_seconds else measure(options)
    print(waiting_line(found) if options.tool_seconds else table(found))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Play, reward, compare and store, each part timed by itself."""
    rollout = scripted(RolloutConfig(mode=options.mode, max_concurrent=options.max_concurrent))
    rewards, terms = {"exact": (REWARDS["exact"], 1.0)}, Terms(reward_weights={"exact": 1.0})
    tasks = [Task(f"t{number}", f"Which river is {number}?", "right") for number in range(whole_groups(options))]
    seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def timed(part: str) -> Iterator[None]:
        started = time.process_time()
        yield
        seconds[part] += time.process_time() - started

    num_episodes = num_turns = 0
    warm_mb, started = 0.0, time.monotonic()
    with tempfile.TemporaryDirectory() as folder, Run.create(Path(folder) / "run", "") as run:
        stream = rollout.stream(tasks, options.attempts, 0, "played")
        while True:
            with timed("rollout"):
                shard = list(islice(stream, options.shard))
            if not shard:
                break
            with timed("rewards"):
                for group in shard:
                    score_group(rewards, group)
            with timed("advantages"):
                assign(shard, ROLES, CreditConfig(), "grpo", AdvantageSettings(), terms)
            with timed("store"):
                run.write_episodes(f"played-{num_episodes:06d}", shard)
            num_episodes += sum(len(group.episodes) for group in shard)
            num_turns += sum(count_turns(shard))
            if num_episodes >= WARM and not warm_mb:
                warm_mb = resident_mb()
    return {
        "mode": options.mode,
        "episodes": num_episodes,
        "turns": num_turns,
        "turns_per_second": num_turns / sum(seconds.values()),
        "turns_per_second_by_the_clock": num_turns / (time.monotonic() - started),
        "rss_after_1000_mb": warm_mb or resident_mb(),
        "rss_end_mb": resident_mb(),
        "rss_peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "by_part": dict(seconds),
    }


def measure_waiting(options: argparse.Namespace) -> dict[str, Any]:
    """Episodes that each wait for one call of a tool: seconds by the clock, the first and a second time."""
    says = FIXED | {"planner": "wait: a while", "executor": str(options.tool_seconds)}
    rollout = scripted(RolloutConfig(mode=options.mode, max_concurrent=options.max_concurrent), says, {"wait": wait})
    tasks = [Task(f"t{number}", "Which river?", "right") for number in range(options.episodes)]
    seconds = []
    for label in ("first", "second"):
        started = time.monotonic()
        groups = rollout.collect(tasks, 1, 0, label)
        seconds.append(time.monotonic() - started)
        assert all(event.result.ok for group in groups for episode in group.episodes for event in episode.events)
    wait.close()
    return {"episodes": options.episodes, "tool_seconds": options.tool_seconds, "seconds": seconds}


def waiting_line(found: dict[str, Any]) -> str:
    """How many times as long as one call all of them took."""
    first, second = (seconds / found["tool_seconds"] for seconds in found["seconds"])
    return (
        f"{found['episodes']} episodes with a tool of {found['tool_seconds']:g} s: {first:.1f} times as long as one "
        f"call while the processes started, {second:.1f} times as long after that; one by one {found['episodes']} times"
    )


def scripted(
    config: RolloutConfig, says: Mapping[str, str] = FIXED, tools: Mapping[str, Tool] | None = None
) -> Rollout:
    """The solver team on a script; one writer in three is wrong."""

    def reply(request: Request) -> str:
        role = request.context[2]
        return says[role] if role in says else ("wrong", "right", "right")[request.seed % 3]

    @tool(in_process=True)
    async def lookup(text: str) -> str:
        """Look something up."""
        return f"{text}: it flows east"

    team = Solver(SolverConfig(prompts="compact"))
    roles = {name: Role(name, team.prompts[name], Sampling(), "script", name, trainable=True) for name in ROLES}
    return Rollout(team, roles, {"script": ScriptedEngine(reply)}, tools or {"lookup": lookup}, {}, config)


def whole_groups(options: argparse.Namespace) -> int:
    """Tasks that give at least the wanted number of episodes."""
    return -(-options.episodes // options.attempts)


def count_turns(groups: list[Group]) -> Iterator[int]:
    return (len(episode.turns) for group in groups for episode in group.episodes)


def resident_mb() -> float:
    """Memory of this process now (Linux)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def table(found: dict[str, Any]) -> str:
    """Markdown: what each part costs per turn, and the whole."""
    lines = ["| part | CPU seconds | microseconds per turn |", "|---|---|---|"]
    for part, seconds in [*found["by_part"].items(), ("all", sum(found["by_part"].values()))]:
        lines.append(f"| {part} | {seconds:.2f} | {1e6 * seconds / found['turns']:.0f} |")
    lines += [
        "",
        f"{found['episodes']} episodes, {found['turns']} turns, {found['mode']}: "
        f"{found['turns_per_second']:.0f} turns per CPU second ({found['turns_per_second_by_the_clock']:.0f} by the "
        f"clock); {found['rss_after_1000_mb']:.0f} MB after {WARM} episodes, {found['rss_end_mb']:.0f} MB at the end",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
