"""Bring known bugs of GRPO trainers back, one at a time, and see whether a test notices: `mutations.py --json FILE`.

Each mutation is a change of a few words that gives our code a bug other trainers had. It is made in a temporary copy of
the repository, where the few test files that should notice run in a process of their own; before, all of these files
must pass in an unchanged copy. A text that is not there exactly once is an error, so that no mutation dies unnoticed.

Bugs that our code can't be given by changing a few words:

- NaN under the mask of a padded batch (TRL #3248, #4976): action tokens are flat, nothing of a loss is ever padded.
- An all-masked batch that detaches the graph (TRL #7077): a policy without rows is skipped before any forward.
- A factor between generations and accumulation steps (TRL #6024): no such number exists, weights are known beforehand.
- Step index as normaliser (Mem-alpha #14): no statistic sees the step.
- Two sources of defaults (verl's YAML and dataclass): there is one, which the config is made from.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
COPIED = ("gruppo", "tests")  # and pyproject.toml
DEADLINE = 600.0  # seconds, of one process of tests


@dataclass(frozen=True)
class Mutation:
    """`old` in gruppo/`file` becomes `new`; `tests` are the names of the test files that should notice."""

    name: str
    bug: str  # what goes wrong, and where it did
    file: str
    old: str
    new: str
    tests: str


MUTATIONS = [
    # ---- rewards and groups -----------------------------------------------------------------------------------------
    Mutation(
        "outage-is-zero", "what the infrastructure ended counts as reward 0", "rewards/rules.py",
        "for name, value in values.items()) if counts else None", "for name, value in values.items())", "rewards",
    ),
    Mutation(
        "unscorable-is-zero", "an episode without a score counts as reward 0", "algorithms/credit.py",
        "            if not own or episode.reward is None:\n                continue",
        "            episode.reward = episode.reward or 0.0\n            if not own:\n                continue",
        "credit",
    ),
    Mutation(
        "arrival-order", "groups filled in the order in which episodes end: MrlX's sub-agents", "rollout.py",
        "        seat.group.episodes.sort(key=lambda episode: episode.attempt)\n", "", "rollout",
    ),
    Mutation(
        "reshaped-groups", "groups by view(-1, G) of what did not fail, so that tasks mix", "algorithms/credit.py",
        "    for one in judged:\n        by_key.setdefault(_key(one, compare), []).append(one)",
        "    for place, one in enumerate(judged):\n"
        "        by_key.setdefault(place // len(judged[0].group.episodes), []).append(one)", "credit",
    ),
    Mutation(
        "groups-by-prompt", "tasks with the same prompt are one group: NeMo-RL #2176", "algorithms/credit.py",
        '    if compare == "task":\n        return one.group.id',
        '    if compare == "task":\n        return one.episode.turns[one.places[0]].prompt_ids', "credit",
    ),
    Mutation(
        "sharded-statistics", "a group's episodes are split over two ranks before its statistics",
        "algorithms/credit.py", '    if compare == "task":\n        return one.group.id',
        '    if compare == "task":\n        return one.group.id, one.episode.attempt % 2', "credit",
    ),
    Mutation(
        "row-statistics", "an episode counts once per turn: agent-lightning #462", "algorithms/credit.py",
        "            yield Judged(group, episode, own, shaped)",
        "            yield from (Judged(group, episode, [place], shaped) for place in own)", "credit",
    ),
    Mutation(
        "filter-on-shaped", "groups are dropped by a reward that length has moved: NeMo-RL #2431, verl-recipe #125",
        "training/sampling.py", "rewards = [episode.reward for",
        "rewards = [episode.reward - 0.01 * sum(episode.num_tokens.values()) for", "mutants",
    ),
    Mutation(
        "last-turn-length", "an episode's length is that of its last turn: slime #365", "types.py",
        "counts[turn.role] = counts.get(turn.role, 0) + len(turn.action_ids)",
        "counts[turn.role] = len(turn.action_ids)", "metrics rollout mutants",
    ),
    # ---- advantages -------------------------------------------------------------------------------------------------
    Mutation(
        "float-residue", "equal rewards differ by rounding, divided by epsilon: NeMo-RL #4158",
        "algorithms/advantages.py",
        "return max(rewards_G) - min(rewards_G) > TOLERANCE * max(1.0, *map(abs, rewards_G))",
        "return max(rewards_G) > min(rewards_G)", "advantages",
    ),
    Mutation(
        "group-of-one", "the only episode of a group gets its raw reward: verl's grpo", "algorithms/advantages.py",
        "    if not has_signal(rewards_G):\n        return [0.0] * len(rewards_G)\n    mean",
        "    if len(rewards_G) == 1:\n        return list(rewards_G)\n"
        "    if not has_signal(rewards_G):\n        return [0.0] * len(rewards_G)\n    mean", "advantages",
    ),
    Mutation(
        "population-std", "ddof 0 for 1: the implementations are at odds", "algorithms/advantages.py",
        "return statistics.stdev(values_N) if ddof else", "return statistics.stdev(values_N) if not ddof else",
        "advantages",
    ),
    Mutation(
        "one-pass-variance", "mean of squares - square of mean, which cancels: verl #6348", "algorithms/advantages.py",
        "return statistics.stdev(values_N) if ddof else",
        "mean, size = statistics.fmean(values_N), len(values_N)\n"
        "    squares = statistics.fmean([value**2 for value in values_N])\n"
        "    return math.sqrt(max(0.0, squares - mean**2) * size / (size - 1)) if ddof else", "advantages mutants",
    ),
    Mutation(
        "normalised-twice", "by the group's std, then by the batch's: gem #113", "algorithms/advantages.py",
        "return reinforce_pp([centred(rewards_G) for", "return reinforce_pp([grpo(rewards_G) for", "advantages",
    ),
    Mutation(
        "return-reset", "REINFORCE++'s return starts anew after a tool's answer: verl #7278", "algorithms/returns.py",
        "rewards_T[place] + gamma * following",
        "rewards_T[place] + gamma * following * all(mask_T[place + 1 : place + 2])", "shaping",
    ),
    # ---- rows and batches -------------------------------------------------------------------------------------------
    Mutation(
        "history-is-trained", "what the prompt quotes of earlier turns is trained on: NeMo-RL #2176",
        "algorithms/batching.py", "    return Row(turn.prompt_ids, turn.action_ids, turn.action_logprobs, advantage,",
        "    return Row(turn.prompt_ids[:1], turn.prompt_ids[1:] + turn.action_ids, (), advantage,", "mutants",
    ),
    Mutation(
        "empty-action", "a turn without tokens becomes a row, whose last id does not exist: TRL",
        "algorithms/batching.py",
        "credit.advantage is not None and turn.action_ids:", "credit.advantage is not None:", "mutants",
    ),
    Mutation(
        "off-by-one", "a token is judged by the position that already saw it", "algorithms/batching.py",
        "return [node - start for row, path", "return [min(node - start + 1, num_predictors - 1) for row, path",
        "batching",
    ),
    Mutation(
        "log-prob-one", "an unknown log-prob is 1, its ratio exp(-1): Flash-RL #19", "algorithms/batching.py",
        "sampled_N=flat(lambda row: row.sampled, nan)", "sampled_N=flat(lambda row: row.sampled, 1.0)", "batching",
    ),
    Mutation(
        "bfloat16-advantages", "0.8 becomes 0.80078: AgentFlow's rewards", "algorithms/batching.py",
        "[row.advantage] * len(row.action_ids), 0)",
        "[row.advantage] * len(row.action_ids), 0, torch.bfloat16)", "mutants",
    ),
    Mutation(
        "retokenised", "the ids that are trained on are those of the text, not the sampled ones: TRL #5144, verl #6719",
        "engines/local.py", "Completion(row.prompt, row.prompt_ids, ids, logprobs,",
        "Completion(row.prompt, row.prompt_ids, tuple(self.tokenizer.encode(text)), logprobs,", "local_engine",
    ),
    # ---- the normaliser ---------------------------------------------------------------------------------------------
    Mutation(
        "divided-again", "a microbatch's part is divided once more: TRL #5619, ms-swift #10117", "training/update.py",
        "loss = (losses_N * batch.weights_N).sum()", "loss = (losses_N * batch.weights_N).sum() / len(packs)", "grpo",
    ),
    Mutation(
        "microbatch-mean", "the mean is over the microbatch, not the step: Trinity-RFT #336, verl #2776",
        "training/update.py", "loss = (losses_N * batch.weights_N).sum()", "loss = losses_N.mean()", "grpo",
    ),
    Mutation(
        "no-batch-division", "the sum over a constant length is not divided by the batch: verl #3741",
        "algorithms/aggregations.py", "num_episodes * settings.length_norm)", "settings.length_norm)", "losses",
    ),
    Mutation(
        "silent-groups-count", "groups without a signal stay in the denominator: TRL #6365, OpenRLHF #1270",
        "algorithms/credit.py", "elif relative and not has_signal([one.return_ for one in own]):",
        "elif relative and not own:", "credit",
    ),
    Mutation(
        "truncated-count", "what is masked for its length stays in the denominator: TRL #6369", "algorithms/credit.py",
        "[replace(credit, advantage=None) for credit", "[replace(credit, advantage=0.0) for credit", "credit",
    ),
    Mutation(
        "empty-rows-count", "sequences without tokens count in the mean: TRL's grpo", "algorithms/aggregations.py",
        "        if row.num_tokens:\n            tokens[key] += row.num_tokens",
        "        tokens[key] += row.num_tokens", "losses",
    ),
    Mutation(
        "padding-rows-count", "copies that even out the batch are trained on: ROLL, verl-agent", "training/update.py",
        "prepared = [weighted(rows, algorithm) for rows in shares]",
        "prepared = [weighted([*rows, *rows[: -len(rows) % 8]], algorithm) for rows in shares]", "grpo",
    ),
    # ---- log-probs and the reference --------------------------------------------------------------------------------
    Mutation(
        "no-temperature", "log-probs at temperature 1 of what was drawn at another: TRL #4159", "training/logprobs.py",
        "(head(states_RX).float() / temperature_R[:, None]).log_softmax(-1)",
        "head(states_RX).float().log_softmax(-1)", "learner",
    ),
    Mutation(
        "divided-log-probs", "log-probs divided by the temperature, not logits: prime-rl #697", "training/logprobs.py",
        "(head(states_RX).float() / temperature_R[:, None]).log_softmax(-1)",
        "head(states_RX).float().log_softmax(-1) / temperature_R[:, None]", "learner",
    ),
    Mutation(
        "reference-alias", "the reference is the policy itself: a KL of 0 for ever", "training/learner.py",
        "deepcopy(self.model).requires_grad_(False)\n            return", "self.model\n            return", "learner",
    ),
    Mutation(
        "reference-adapter", "the base computes with the adapter on: TRL #3194, #495", "training/learner.py",
        "            with self.model.disable_adapter():\n                yield self.model",
        "            yield self.model", "learner",
    ),
    Mutation(
        "nucleus-sampling", "a trained role samples from the nucleus, log-probs are of the whole: TRL #6944",
        "training/grpo.py", "(role.sampling.top_p < 1 or role.sampling.temperature == 0)",
        "role.sampling.temperature == 0", "grpo",
    ),
    Mutation(
        "dropout", "dropout when training, none for the old log-probs: TRL #3000", "training/model.py",
        "    model.eval()\n    if quantization", "    model.train()\n    if quantization", "mutants",
    ),
    # ---- the loss ---------------------------------------------------------------------------------------------------
    Mutation(
        "no-gradient", "old is new, not detached: the gradient is 0: mlx-lm-lora #55", "training/update.py",
        "torch.where(batch.old_N.isnan(), new_N.detach(), batch.old_N)",
        "torch.where(batch.old_N.isnan(), new_N, batch.old_N)", "grpo",
    ),
    Mutation(
        "merged-with-kl", "rows with equal tokens are merged, their KL too", "training/update.py",
        "terms = step.kl_in_loss or step", "terms = step", "mutants",
    ),
    Mutation(
        "bounds-swapped", "clip_low above, clip_high below", "algorithms/losses.py",
        "ratio_N.clamp(1 - settings.clip_low, 1 + settings.clip_high)",
        "ratio_N.clamp(1 - settings.clip_high, 1 + settings.clip_low)", "losses",
    ),
    Mutation(
        "wide-clip", "a bound of 3 is accepted for .3: Relax #23", "algorithms/config.py",
        "clip_low: float = Field(0.2, gt=0, lt=1)", "clip_low: float = Field(0.2, gt=0)", "mutants",
    ),
    Mutation(
        "relative-cap", "CISPO's cap is 1 + the cap: SkyRL #1928", "algorithms/losses.py",
        "ratio_N.clamp(settings.cispo_floor, settings.cispo_cap)", "ratio_N.clamp(max=1 + settings.cispo_cap)",
        "losses",
    ),
    Mutation(
        "padded-length", "GSPO's ratio is divided by the longest sequence's length", "algorithms/ratios.py",
        "/ sequence_sum(torch.ones_like(values_N), sequence_N)",
        "/ sequence_sum(torch.ones_like(values_N), sequence_N).max()", "losses",
    ),
    Mutation(
        "kl-sign", "the KL is taken off the loss", "algorithms/losses.py",
        "losses_N + settings.kl_coefficient * kl_N", "losses_N - settings.kl_coefficient * kl_N", "losses",
    ),
    Mutation(
        "half-the-clips", "only tokens of positive advantage count as clipped: TRL's cispo_clip_ratio",
        "algorithms/losses.py", "losses_N != -(ratio_N * advantages_N))",
        "(losses_N != -(ratio_N * advantages_N)) & (advantages_N > 0))", "losses",
    ),
    Mutation(
        "sequence-uncorrected", "a sequence's loss is not corrected: NeMo-RL's fork at arcee, #24",
        "algorithms/losses.py", "losses_N = torch.where(weights_N == 0, 0.0, losses_N * weights_N)",
        'if settings.constants.ratio_level == "token":\n'
        "        losses_N = torch.where(weights_N == 0, 0.0, losses_N * weights_N)", "corrections mutants",
    ),
    Mutation(
        "corrected-twice", "the sampler's weight is applied twice: verl's bypass mode", "algorithms/losses.py",
        "0.0, losses_N * weights_N)", "0.0, losses_N * weights_N * weights_N)", "corrections",
    ),
    Mutation(
        "nan-times-zero", "a rejected token's loss is multiplied by 0, which NaN survives",
        "algorithms/losses.py", "losses_N = torch.where(weights_N == 0, 0.0, losses_N * weights_N)",
        "losses_N = losses_N * weights_N", "corrections mutants",
    ),
]  # fmt: skip


def mutate(mutation: Mutation, root: Path) -> None:
    """Make the change in the tree at `root`. Raises ValueError unless the old text is there exactly once."""
    path = root / "gruppo" / mutation.file
    text = path.read_text()
    if (count := text.count(mutation.old)) != 1:
        raise ValueError(
            f"mutation {mutation.name}: {mutation.old!r} is {count} times in gruppo/{mutation.file}, not 1"
        )
    path.write_text(text.replace(mutation.old, mutation.new))


def copy_of(root: Path, folder: Path) -> Path:
    """A copy, in a new folder, of what the tests in the tree at `root` need."""
    for name in COPIED:
        shutil.copytree(root / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(root / "pyproject.toml", folder)
    return folder


def failing(tests: Sequence[str], root: Path) -> str:
    """The first test that fails in the tree at `root`, or nothing. Raises RuntimeError if the tests could not run."""
    files = [f"tests/test_{name}.py" for name in tests]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--hypothesis-seed=0", *files]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=DEADLINE)
    if done.returncode == 0:
        return ""
    found = re.search(r"^(?:FAILED|ERROR) (\S+::.*?)(?: - |$)", done.stdout, re.MULTILINE)
    if done.returncode != 1 or not found:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return found[1]


def try_out(mutation: Mutation, unchanged: Path) -> str:
    """The test that notices the mutation, or nothing."""
    with tempfile.TemporaryDirectory(prefix="mutation-") as temporary:
        root = copy_of(unchanged, Path(temporary))
        mutate(mutation, root)
        return failing(mutation.tests.split(), root)


def try_all(mutations: Sequence[Mutation], parallel: int) -> list[dict[str, object]]:
    """What is written to the JSON file of each. SystemExit if a test that is to notice one fails without any."""
    tests = sorted({name for mutation in mutations for name in mutation.tests.split()})
    found: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="unchanged-") as temporary, ThreadPoolExecutor(parallel) as pool:
        unchanged = copy_of(ROOT, Path(temporary))  # once: who goes on editing meanwhile changes nothing
        if test := failing(tests, unchanged):
            raise SystemExit(f"{test} fails without any mutation")
        for mutation, test in zip(mutations, pool.map(lambda one: try_out(one, unchanged), mutations), strict=True):
            print(f"{mutation.name:22} {test or 'NOT NOTICED: ' + mutation.bug}", flush=True)
            found.append({"name": mutation.name, "caught": bool(test), "test": test})
    return found


def main() -> None:
    """Parse, run, write; exit code 1 unless all mutations are caught."""
    names = [mutation.name for mutation in MUTATIONS]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="where to write the result")
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help="the mutations to try; default: all")
    parser.add_argument("--parallel", type=int, default=1, help="mutations at once")
    options = parser.parse_args()
    chosen = [mutation for mutation in MUTATIONS if mutation.name in (options.only or names)]
    found = try_all(chosen, options.parallel)
    caught = sum(bool(one["caught"]) for one in found)
    print(f"{caught} of {len(found)} caught")
    if options.json:
        result = {"total": len(found), "caught": caught, "mutations": found}
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    sys.exit(caught != len(found))


if __name__ == "__main__":
    main()
