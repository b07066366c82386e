"""The audit finds the verdicts that were wrong where the reward rose, and nothing where the checker never errs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from search_states import I, R, a_group, a_state, attempt, failed

from gruppo.data.rounds import RoundsConfig, read_rounds
from gruppo.data.world import with_labels, world_of, world_tasks
from gruppo.engines.scripted import ScriptedEngine
from gruppo.evaluation.search_audit import UNKNOWN, audit_pair, audit_text, audit_training, true_reward
from gruppo.evaluation.search_rounds import continuation
from gruppo.rewards.search import SearchRewardConfig, search
from gruppo.rollout import Rollout, RolloutConfig
from gruppo.search_state import Label, Round, Strategy, Verdict, to_json
from gruppo.teams.base import Role
from gruppo.teams.search import Search, SearchConfig, SearchFromState
from gruppo.teams.search.truth import erring
from gruppo.toolbox import world_index
from gruppo.tools.documents import document_tools
from gruppo.types import Group, Request, Sampling, Task

REWARDS = {f"search/{name}": part for name, part in search(SearchRewardConfig(), False).items()}
WEIGHTS = SearchRewardConfig()


def clue_cost(important: int, relevant: int = 0) -> float:
    return important * WEIGHTS.important + relevant * WEIGHTS.relevant + WEIGHTS.clues


def scored(**said: Label):
    """An attempt with the reward that its labels make."""
    counts = [sum(label == own for label in said.values()) for own in (I, R)]
    return attempt(clue_cost(*counts), **said)


def test_a_wrong_verdict_where_the_reward_rose_by_hand() -> None:
    state = a_state(labels={"a": I, "c": R})
    before, after = [a_group(state, scored(c=R))], [a_group(state, scored(x=I, a=R))]
    report = audit_pair(before, after, REWARDS)
    wrong, missed = report["cases"]
    assert (wrong["document"], wrong["said"], wrong["true"], wrong["clues"]) == ("x", I, Label.IRRELEVANT, ("clue",))
    assert (missed["document"], missed["said"], missed["true"]) == ("a", R, I)
    assert wrong["before"] == pytest.approx(clue_cost(0, 1)) and wrong["reward"] == pytest.approx(clue_cost(1, 1))
    assert wrong["true_reward"] == pytest.approx(clue_cost(1)) and wrong["true_before"] == pytest.approx(
        wrong["before"]
    )
    assert report["confusion"] == {R: {R: 1, I: 1}, I: {Label.IRRELEVANT: 1}}
    assert (report["wrong"], report["verdicts"]) == (2, 3)
    assert report["gain"]["by_checker"] == pytest.approx(1.0) and report["gain"]["by_truth"] == pytest.approx(0.9)
    assert "a single question tells no more" in report["sentence"] and "[x] is IRRELEVANT" in audit_text(report)
    assert audit_pair(after, before, REWARDS)["cases"] == [], "the reward fell"
    assert audit_pair(after, after, REWARDS)["cases"] == [], "it stayed"


def test_a_gain_that_wrong_labels_make_is_told_in_a_sentence() -> None:
    states = [a_state(f"q{at}", labels={"a": I}) for at in range(4)]
    before = [a_group(state, scored(y=Label.IRRELEVANT)) for state in states]
    report = audit_pair(before, [a_group(state, scored(x=I)) for state in states], REWARDS)
    assert report["gain"]["by_truth"] == pytest.approx(0) and report["gain"]["excess_ci95"][0] == pytest.approx(1.0)
    assert "is paid for wrong labels" in report["sentence"] and len(report["cases"]) == 4
    told = audit_text(audit_pair(before, [a_group(state, scored(x=I), scored(x=I)) for state in states], REWARDS))
    assert "8 wrong verdicts where the reward rose, of 4 documents" in told and "in 1 other attempts" in told
    honest = audit_pair(before, [a_group(state, scored(a=I)) for state in states], REWARDS)
    assert honest["cases"] == [] and "no clear difference" in honest["sentence"] and honest["wrong"] == 0


def test_training_is_looked_at_above_the_mean_of_its_groups() -> None:
    state = a_state(labels={"a": I})
    report = audit_training([a_group(state, scored(x=I), scored(y=Label.IRRELEVANT), failed())], REWARDS)
    (case,) = report["cases"]
    assert case["document"] == "x" and case["attempt"] == 0 and case["before"] == pytest.approx(clue_cost(0) + 0.5)
    assert report["gain"]["by_checker"] == pytest.approx(0.5) and report["gain"]["by_truth"] == pytest.approx(0)
    even = audit_training([a_group(state, scored(x=I), scored(x=I))], REWARDS)
    assert even["cases"] == [] and even["wrong"] == 2 and even["sentence"].startswith("Nothing rose")


def test_a_wrong_label_of_a_later_round_is_found_and_paid_anew() -> None:
    config = SearchRewardConfig(later=0.5)
    rewards = {f"search/{name}": part for name, part in search(config, True).items()}
    episode = attempt(1.0 + 0.5 * config.discount, a=I)
    later = Round(2, Strategy.SEARCH, "goal", ("more",), hits=("x",), verdicts=(Verdict("x", I, ""),))
    played = continuation(episode)
    episode.answer = to_json(replace(played, rounds=(*played.rounds, later), answer="?"))
    group = a_group(a_state(labels={"a": I}), episode)
    assert true_reward(group.task, episode, rewards) == pytest.approx(1.0)
    (case,) = audit_pair([a_group(a_state(labels={"a": I}), scored(c=R))], [group], rewards)["cases"]
    assert case["document"] == "x" and case["clues"] == ("clue",)


def test_without_known_truth_it_says_so() -> None:
    group = a_group(a_state(), scored(x=I))
    for report in (
        audit_pair([group], [group], REWARDS),
        audit_training([group], REWARDS),
        audit_training([], REWARDS),
    ):
        assert report["sentence"] == UNKNOWN == audit_text(report) and report["unknown"] == report["states"]


# ---- played ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> list[Task]:
    """States of searches that rules played in the world, with the true labels."""
    folder = tmp_path_factory.mktemp("searches")
    world = world_of(0)
    tasks = with_labels(world_tasks(world, "validation", 8, ["lookup-lookup"]), world)
    tools = {tool.name: tool for tool in document_tools(world_index("validation", 0))}
    team = Search(SearchConfig(checkpoints=str(folder), checker="truth"))
    Rollout(team, {}, {}, tools, {}, RolloutConfig()).collect(tasks, 1, 0, "search")
    return [state.to_task() for state in read_rounds(folder, RoundsConfig(min_clues_per_round=1)).states]


def play(states: Sequence[Task], wrong_labels: float, is_able: bool) -> list[Group]:
    """The states, by an executor that asks for what the sub-goal says, or for something else."""

    def reply(request: Request) -> str:
        goal = request.messages[-1]["content"] if is_able else "nothing of the kind"
        words = [word for word in goal.replace("\n", " ").split() if word.isalpha()][-12:]
        return '{"clues": ["' + " ".join(words) + '"]}'

    team = SearchFromState(SearchConfig(checker="truth", wrong_labels=wrong_labels))
    role = Role("executor", team.prompts["executor"], Sampling(max_tokens=64), "script")
    tools = {tool.name: tool for tool in document_tools(world_index("validation", 0))}
    rollout = Rollout(team, {"executor": role}, {"script": ScriptedEngine(reply)}, tools, REWARDS, RolloutConfig())
    return rollout.collect(states, 1, 0, "play")


def test_a_checker_that_never_errs_leaves_nothing_to_find(states: list[Task]) -> None:
    report = audit_pair(play(states, 0.0, False), play(states, 0.0, True), REWARDS)
    assert report["cases"] == [] and report["wrong"] == 0 and report["verdicts"] > 20 and report["unknown"] == 0
    assert all(set(row) == {said} for said, row in report["confusion"].items())
    assert report["gain"]["excess"] == 0 and "no clear difference" in report["sentence"]


def test_the_labels_made_wrong_on_purpose_are_the_ones_that_are_found(states: list[Task]) -> None:
    before, after = play(states, 0.3, False), play(states, 0.3, True)
    honest = {group.task.id: group.episodes[0] for group in play(states, 0.0, True)}
    report = audit_pair(before, after, REWARDS)
    assert report["cases"] and any(case["said"] == I for case in report["cases"])
    base = {group.task.id: group.episodes[0].reward for group in before}
    for group in after:
        (episode,) = group.episodes
        assert true_reward(group.task, episode, REWARDS) == pytest.approx(honest[group.task.id].reward)
        found = {case["document"] for case in report["cases"] if case["state"] == group.task.id}
        rose = episode.reward > base[group.task.id]
        assert found == (flipped(group.task, honest[group.task.id]) if rose else set())


def flipped(task: Task, episode) -> set[str]:
    said = continuation(episode).rounds[0].verdicts
    wrong = erring(said, task.question, 0.3)
    return {new.document for old, new in zip(said, wrong, strict=True) if new.label != old.label}
