"""Lints: settings of a run outside the ranges that are known to work, each with the key, its value and what to do.

Pure functions over a resolved config. They are hints, never errors: what can't work is refused elsewhere. The ranges
are those of language models from about 0.1B parameters, so the embedded tiny model is held to none of the learning
rates. What goes wrong while a run trains is `training/alarms.py`'s business.

Sources: hello-agents, chapter 11 (learning rates, KL, group size, LoRA, temperature; a run at 5e-5 fell from 57.0 to
2.4 %: its issue 107), arXiv 2402.03300 (GRPO: KL .04, groups of 64), 2503.14476 (DAPO: groups of 16, clip .2 and .28),
2507.18071 (GSPO: clip 3e-4 and 4e-4 on sequences), 2501.12948 (R1: groups of 16, KL .001), TRL 1.16 and verl (clip .2,
groups of 8, temperature 1). Where none is named it is practice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from gruppo.run import RunConfig


class Lint(NamedTuple):
    """A setting worth a second look."""

    key: str
    value: Any
    advice: str

    def __str__(self) -> str:
        value = f"{self.value:g}" if isinstance(self.value, float) else str(self.value)
        return f"{self.key} = {value}: {self.advice}"


def lint(config: RunConfig) -> list[Lint]:
    """What stands out in a config, in the order of the rules."""
    return [found for rule in RULES for found in rule(config)]


def learning_rates(config: RunConfig) -> Iterator[Lint]:
    """Of reinforcement learning: 1e-7 to 1e-5 for a whole model, ten times as much for adapters."""
    trained = {role.policy for _, role in _trained(config)}
    for name, policy in _taught(config):
        if name not in trained:
            continue
        key, rate = f"policies.{name}.learning_rate", policy.learning_rate
        low, high, what = (1e-7, 1e-5, "a whole model") if policy.full else (1e-6, 1e-4, "a LoRA adapter")
        if rate > high:
            yield Lint(key, rate, f"above {high:g} {what} tends to collapse; begin at {high / 10:g}")
        if rate < low:
            yield Lint(key, rate, f"below {low:g} {what} hardly moves; begin at {high / 10:g}")


def sft_learning_rate(config: RunConfig) -> Iterator[Lint]:
    """Of the cold start: up to 1e-4 for a whole model, 1e-3 for adapters."""
    taught = _taught(config)
    if not config.sft.steps or not taught:
        return
    full = any(policy.full for _, policy in taught)
    high, usual, what = (1e-4, 5e-5, "a whole model") if full else (1e-3, 1e-4, "adapters")
    if config.sft.learning_rate > high:
        yield Lint("sft.learning_rate", config.sft.learning_rate, f"above {high:g} for {what}; {usual:g} is usual")


def kl_coefficient(config: RunConfig) -> Iterator[Lint]:
    """0 to 0.1."""
    value, key = config.algorithm.kl_coefficient, "algorithm.kl_coefficient"
    if value > 0.1:
        yield Lint(key, value, "above 0.1 the policy is tied to its reference; 0 to 0.04 is usual")
    if 0 < value < 1e-4:
        yield Lint(
            key, value, "too little to hold anything, but each step computes the reference for it; use 0 or 0.001"
        )


def group_size(config: RunConfig) -> Iterator[Lint]:
    """4 to 64 attempts."""
    attempts = config.train.attempts
    if attempts < 4:
        yield Lint(
            "train.attempts", attempts, "a baseline of so few is noisy, and most groups are all alike; use 4 to 16"
        )
    if attempts > 64:
        yield Lint("train.attempts", attempts, "more tasks would teach more than more attempts at each; use 8 to 64")


def adapters(config: RunConfig) -> Iterator[Lint]:
    """Rank 4 to 64, alpha one to four times the rank."""
    for name, policy in config.policies.items():
        if policy.full:
            continue
        if not 4 <= policy.rank <= 64:
            yield Lint(f"policies.{name}.rank", policy.rank, "4 to 8 for simple tasks, 16 to 64 for complex ones")
        if not policy.rank <= policy.alpha <= 4 * policy.rank:
            usual = f"once or twice the rank is usual, here {policy.rank} or {2 * policy.rank}"
            yield Lint(f"policies.{name}.alpha", policy.alpha, f"{usual}: it scales the learning rate as well")


def lengths(config: RunConfig) -> Iterator[Lint]:
    """Room to end an action, where the prompts ask for JSON or for thinking aloud; an overlong penalty that can act."""
    compact = config.team.program == "solver" and config.team.solver.prompts == "compact"
    trained = _trained(config)
    for name, role in trained:
        if role.max_tokens < 32 and not compact and not _is_tiny(config):
            yield Lint(f"roles.{name}.max_tokens", role.max_tokens, "actions will be cut off; 256 to 512 is usual")
    algorithm = config.algorithm
    free = algorithm.overlong_length - algorithm.overlong_cache
    longest = max((role.max_tokens for _, role in trained), default=0) * _most_turns(config)
    if algorithm.truncated == "soft_overlong" and longest <= free:
        said = f"no role samples more than {longest} tokens, so nothing is ever taken off; use at most {longest}"
        yield Lint("algorithm.overlong_length", algorithm.overlong_length, said)


def truncation(config: RunConfig) -> Iterator[Lint]:
    """Episodes cut off for their length are paid as usual, though their answers can't be long enough to be right."""
    long = [name for name, role in _trained(config) if role.max_tokens >= 1024]
    if long and config.algorithm.truncated == "none":
        said = f"what is cut off counts as wrong, which teaches {long[0]} to be short; 'mask' leaves it out"
        yield Lint("algorithm.truncated", "none", said)


def temperatures(config: RunConfig) -> Iterator[Lint]:
    """0.7 to 1.2 for what is trained; 0 for the frozen seats around an executor, whose clues they judge."""
    is_search = config.team.program == "search_from_state"
    for name, role in config.roles.items():
        if is_search and role.policy is None and role.temperature:
            said = "clues of one group are then judged by different draws; 0 compares them on the same ground"
            yield Lint(f"roles.{name}.temperature", role.temperature, said)
    for name, role in _trained(config):
        key, value = f"roles.{name}.temperature", role.temperature
        if value < 0.7:
            yield Lint(key, value, "attempts will be alike, so that groups have no signal; 0.7 to 1.0 is usual")
        if value > 1.2:
            yield Lint(key, value, "much of what is sampled will be noise; 0.7 to 1.0 is usual")


def clip_range(config: RunConfig) -> Iterator[Lint]:
    """0.1 to 0.3 of a token's ratio, about 4e-4 of a sequence's mean one; only where steps are off-policy."""
    algorithm = config.algorithm
    if algorithm.loss != "ppo_clip" or config.train.updates == 1:
        return
    of_means = algorithm.ratio_level in ("sequence", "sequence_token")
    low, high, usual = (1e-5, 0.01, "3e-4 and 4e-4 are") if of_means else (0.05, 0.5, "0.2 and 0.28 are")
    what = "the mean of a sequence hardly moves" if of_means else "of one token"
    for key, value in (("clip_low", algorithm.clip_low), ("clip_high", algorithm.clip_high)):
        if not low <= value <= high:
            yield Lint(f"algorithm.{key}", value, f"outside {low:g} to {high:g} ({what}); {usual} usual")
    if algorithm.clip_high < algorithm.clip_low:
        said = f"below clip_low = {algorithm.clip_low:g}: rare tokens are held down more than others; entropy will fall"
        yield Lint("algorithm.clip_high", algorithm.clip_high, said)


def schedule(config: RunConfig) -> Iterator[Lint]:
    """At most a fifth of the steps warm up, and some are at the full rate."""
    train = config.train
    if not train.steps:
        return
    if train.warmup_steps + train.decay_steps >= train.steps:
        said = f"with decay_steps = {train.decay_steps} no step of {train.steps} has the full learning rate"
        yield Lint("train.warmup_steps", train.warmup_steps, said)
    elif train.warmup_steps > max(2, train.steps / 5):
        yield Lint("train.warmup_steps", train.warmup_steps, f"of {train.steps} steps; up to a tenth is usual")
    if train.eval_every > train.steps:
        said = f"there are only {train.steps} steps, so nothing is evaluated on the way; lower it, or use 0"
        yield Lint("train.eval_every", train.eval_every, said)


def batches(config: RunConfig) -> Iterator[Lint]:
    """At least 16 episodes a step, no more updates than groups, tasks enough for a step."""
    train, tasks = config.train, config.tasks
    episodes = train.tasks_per_step * train.attempts
    if episodes < 16:
        said = f"with {train.attempts} attempts a step learns from {episodes} episodes; 64 to 1024 are usual"
        yield Lint("train.tasks_per_step", train.tasks_per_step, said)
    if train.updates > train.tasks_per_step:
        said = f"groups are not parted, so {train.tasks_per_step} of them make as many updates at most"
        yield Lint("train.updates", train.updates, said)
    elif train.updates > 16:
        yield Lint(
            "train.updates", train.updates, "the last ones are far from the policy that sampled; 1 to 4 are usual"
        )
    if tasks.train == "world" and tasks.num_train < train.tasks_per_step:
        said = f"a step takes train.tasks_per_step = {train.tasks_per_step} tasks, so each comes more than once"
        yield Lint("tasks.num_train", tasks.num_train, said)


def _is_tiny(config: RunConfig) -> bool:
    return config.model.base == "tiny"


def _trained(config: RunConfig) -> list[tuple[str, Any]]:
    """The roles that reinforcement learning trains."""
    return [(name, role) for name, role in config.roles.items() if role.policy is not None and role.trained]


def _taught(config: RunConfig) -> list[tuple[str, Any]]:
    """The policies that are held to a range of learning rates."""
    return [] if _is_tiny(config) else list(config.policies.items())


def _most_turns(config: RunConfig) -> int:
    """The most turns of one role in an episode; a team of one's own is taken to have many."""
    most = {"solver": config.team.solver.max_steps, "solo": config.team.solo.max_turns}
    return most.get(config.team.program, 1000)


RULES: tuple[Callable[[RunConfig], Iterator[Lint]], ...] = (
    learning_rates, sft_learning_rate, kl_coefficient, group_size, adapters, lengths, truncation, temperatures,
    clip_range, schedule, batches,
)  # fmt: skip
