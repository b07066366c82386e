"""Credit per role and per turn: statistics per episode, unbiased estimates, and what is left out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest

from gruppo.algorithms.advantages import AdvantageSettings
from gruppo.algorithms.batching import rows_of
from gruppo.algorithms.credit import CreditConfig, Terms, assign
from gruppo.types import Episode, Group, Outcome, Sampling, Score, StopReason, Task, Turn

TASK = Task("t", "q", "r")


def turn(role: str, prompt: tuple[int, ...] = (1,), ids: tuple[int, ...] = (7,)) -> Turn:
    logprobs = (-1.0,) * len(ids)
    return Turn(role, role, 0, "", prompt, ids, logprobs, Sampling(), StopReason.stop, "")


def episode(attempt: int, reward: float | None, *turns: Turn, group: str = "g") -> Episode:
    return Episode("t", group, attempt, 0, turns=list(turns), reward=reward)


def group_of(*episodes: Episode, id: str = "g") -> Group:
    return Group(id, TASK, list(episodes))


def credit(
    groups: Sequence[Group],
    roles: Sequence[str],
    advantage: str = "centred",
    terms: Terms | None = None,
    **config: object,
) -> dict[str, float]:
    return assign(groups, roles, CreditConfig(**config), advantage, AdvantageSettings(), terms or Terms())


def advantages(group: Group, role: str) -> list[list[float | None]]:
    return [
        [given.advantage for given, turn in zip(e.credits, e.turns, strict=True) if turn.role == role]
        for e in group.episodes
    ]


# ---- statistics are per episode --------------------------------------------------------------------------------------


def test_the_number_of_turns_never_weighs_in_the_statistics() -> None:
    group = group_of(*(episode(i, r, *[turn("p")] * k) for i, (r, k) in enumerate([(1, 4), (0, 1), (1, 2), (0, 1)])))
    credit([group], ["p"], "grpo")
    expected = [0.8660239037870368, -0.8660239037870368, 0.8660239037870368, -0.8660239037870368]
    for own, value, count in zip(advantages(group, "p"), expected, [4, 1, 2, 1], strict=True):
        assert own == [pytest.approx(value, abs=2e-6)] * count


def test_a_role_is_compared_over_the_episodes_in_which_it_acted() -> None:
    calls = [1, 3, 0, 1]
    group = group_of(
        *(
            episode(i, r, turn("planner"), *[turn("searcher")] * n)
            for i, (r, n) in enumerate(zip([1, 0, 1, 0], calls, strict=True))
        )
    )
    credit([group], ["planner", "searcher"], "grpo")
    assert advantages(group, "planner")[2] == [pytest.approx(0.866024, abs=1e-5)]
    low = pytest.approx(-0.57735, abs=1e-5)
    assert advantages(group, "searcher") == [[pytest.approx(1.154701, abs=1e-5)], [low] * 3, [], [low]]


def test_turns_that_saw_the_same_prompt_are_compared_beside_the_episodes() -> None:
    states = {"s0": (1,), "s1": (2,), "s2": (3,)}
    first = episode(0, 1.0, *(turn("p", states[s]) for s in ("s0", "s1", "s2")))
    second = episode(1, 0.0, *(turn("p", states[s]) for s in ("s0", "s1", "s1")))
    group = group_of(first, second)
    credit([group], ["p"], "centred", compare="task+state", outcome="discounted", discount=0.95)
    found = [value for own in advantages(group, "p") for value in own]
    states_part = [0.45125, 0.633333, 0, -0.45125, -0.316667, -0.316667]
    episode_part = [0.5, 0.5, 0.5, -0.5, -0.5, -0.5]
    assert found == pytest.approx([a + b for a, b in zip(episode_part, states_part, strict=True)], abs=2e-6)


# ---- unbiased: the mean of the estimate against the exact gradient, by enumeration -----------------------------------


def stop_or_continue(num_turns: int, probability: float, longest: int) -> tuple[float, float]:
    """Probability of an episode that stops at its turn `num_turns`, and d log probability / d logit of stopping."""
    continued = num_turns - 1
    forced = num_turns == longest  # the last turn always stops
    stops = 0 if forced else 1
    chance = (1 - probability) ** continued * probability**stops
    return chance, continued * -probability + stops * (1 - probability)


@pytest.mark.parametrize("advantage", ["rloo", "centred"])
def test_the_mean_of_the_estimate_is_the_gradient_although_episodes_differ_in_turns(advantage: str) -> None:
    """A stop/continue process: at each turn the episode stops with probability p, and is paid by its length."""
    probability, longest, size = 0.3, 4, 3
    rewards = {1: 0.2, 2: 1.0, 3: 0.5, 4: 0.0}
    chances = {k: stop_or_continue(k, probability, longest)[0] for k in rewards}
    assert sum(chances.values()) == pytest.approx(1)
    exact = sum(chances[k] * rewards[k] * stop_or_continue(k, probability, longest)[1] for k in rewards)
    mean = 0.0
    for lengths in itertools.product(rewards, repeat=size):
        group = group_of(*(episode(i, rewards[k], *[turn("p")] * k) for i, k in enumerate(lengths)))
        credit([group], ["p"], advantage)
        estimate = 0.0
        for e in group.episodes:
            for place, given in enumerate(e.credits):
                stopped = place == len(e.turns) - 1
                slope = 0.0 if place + 1 == longest else (1 - probability if stopped else -probability)
                estimate += (given.advantage or 0.0) * slope / size
        mean += math.prod(chances[k] for k in lengths) * estimate
    scale = 1.0 if advantage == "rloo" else (size - 1) / size  # the own reward is part of the mean it is compared with
    assert mean == pytest.approx(scale * exact, abs=1e-12)
    assert exact != 0


def test_a_blameless_role_is_not_pushed_anywhere() -> None:
    """The planner alone decides the reward and how often the writer acts; the writer's two words differ in length."""
    good, word = 0.6, 0.5
    pushes = {advantage: 0.0 for advantage in ("rloo", "centred", "grpo", "reinforce++")}
    plays = []
    for is_good in (True, False):
        count = 1 if is_good else 2
        for words in itertools.product((True, False), repeat=count):
            plays.append((good if is_good else 1 - good, is_good, words))
    plays = [(chance * word ** len(words), is_good, words) for chance, is_good, words in plays]
    assert sum(chance for chance, _, _ in plays) == pytest.approx(1)
    for pair in itertools.product(plays, repeat=2):
        for advantage in pushes:
            group = group_of(
                *(
                    episode(
                        i,
                        float(is_good),
                        turn("planner"),
                        *(turn("writer", ids=(1,) if w else (1, 2, 3)) for w in words),
                    )
                    for i, (_, is_good, words) in enumerate(pair)
                )
            )
            credit([group], ["planner", "writer"], advantage)
            push = 0.0
            for e, (_, _, words) in zip(group.episodes, pair, strict=True):
                own = [given.advantage or 0.0 for given in e.credits[1:]]
                push += sum(a * ((1 - word) if w else -word) for a, w in zip(own, words, strict=True))
            pushes[advantage] += math.prod(chance for chance, _, _ in pair) * push
    assert pushes["rloo"] == pushes["centred"] == pytest.approx(0, abs=1e-12)
    assert pushes["grpo"] == pytest.approx(0, abs=1e-12)
    assert abs(pushes["reinforce++"]) > 1e-3  # weighing by tokens lets the length of a word move the baseline


# ---- who is paid for what ------------------------------------------------------------------------------------------


def test_team_and_own_rewards_are_mixed_per_role() -> None:
    group = group_of(episode(0, 1.0, turn("a"), turn("b")), episode(1, 0.0, turn("a"), turn("b")))
    group.episodes[0].turn_rewards, group.episodes[1].turn_rewards = [None, 0.0], [None, 1.0]
    credit([group], ["a", "b"], team={"b": 0.0}, own={"b": 0.5})
    assert [e.credits[0].shaped for e in group.episodes] == [1, 0]
    assert [e.credits[1].shaped for e in group.episodes] == [0, 0.5]
    assert advantages(group, "a") == [[0.5], [-0.5]] and advantages(group, "b") == [[-0.25], [0.25]]
    assert [e.reward for e in group.episodes] == [1, 0], "the raw reward stays what it was"


def test_turns_are_compared_with_turns_of_the_same_number() -> None:
    first, second = episode(0, 1.0, turn("a"), turn("b"), turn("a")), episode(1, 0.0, turn("a"), turn("a"))
    first.turn_rewards, second.turn_rewards = [0.5, None, 0.0], [0.0, 1.0]
    group = group_of(first, second)
    credit([group], ["a"], outcome="to_go", discount=1.0, compare="turn")
    assert [given.return_ for given in first.credits] == [1.5, None, 1.0]
    assert advantages(group, "a") == [[0.25, 0.0], [-0.25, 0.0]] or advantages(group, "a") == [
        [0.25, None],
        [-0.25, None],
    ]


def test_what_can_not_be_judged_gets_no_advantage() -> None:
    unscored, alone = episode(2, None, turn("p")), group_of(episode(0, 1.0, turn("p"), group="h"), id="h")
    equal = group_of(*(episode(i, 0.5, turn("p"), group="e") for i in range(3)), id="e")
    group = group_of(episode(0, 1.0, turn("p")), episode(1, 0.0, turn("p"), turn("other")), unscored)
    counts = credit([group, alone, equal], ["p"])
    assert advantages(group, "p") == [[0.5], [-0.5], [None]]
    assert advantages(alone, "p") == [[None]] and advantages(equal, "p") == [[None]] * 3
    assert (counts["groups/too_small"], counts["groups/flat"]) == (1, 1)
    assert [row.episode for row in rows_of([group, alone, equal], "p")] == [("g", 0), ("g", 1)]
    assert rows_of([group], "other") == []


def test_truncated_episodes_are_masked_or_paid_less() -> None:
    def play() -> Group:
        cut = episode(0, 1.0, turn("p", ids=(1,) * 90))
        cut.outcome = Outcome.max_tokens
        return group_of(cut, episode(1, 1.0, turn("p", ids=(1,) * 60)), episode(2, 0.0, turn("p")))

    group = play()
    assert credit([group], ["p"], terms=Terms("mask"))["episodes/masked"] == 1
    assert advantages(group, "p") == [[None], [pytest.approx(1 / 3)], [pytest.approx(-2 / 3)]]
    group = play()
    credit([group], ["p"], terms=Terms("zero"))
    assert [e.credits[0].shaped for e in group.episodes] == [0, 1, 0]
    group = play()
    credit([group], ["p"], terms=Terms("soft_overlong", 100, 50))
    assert [e.credits[0].shaped for e in group.episodes] == pytest.approx([0.2, 0.8, 0])


def test_greedy_rewards_scores_and_penalties_reach_the_estimator() -> None:
    group = group_of(episode(0, 1.0, turn("p")), episode(1, 0.0, turn("p")))
    credit([group], ["p"], "remax", Terms(greedy={"g": 0.75}))
    assert advantages(group, "p") == [[0.25], [-0.75]]
    credit([group], ["p"], "centred", Terms(penalties={("g", 0, "p"): 0.5}))
    assert advantages(group, "p") == [[0.25], [-0.25]]
    for e, (f, g) in zip(group.episodes, [(1.0, 0.0), (0.0, 1.0)], strict=True):
        e.scores = {"f": Score(f), "g": Score(g)}
    credit([group], ["p"], "gdpo", Terms(reward_weights={"f": 1.0, "g": 0.5}))
    assert advantages(group, "p")[0][0] > 0 > advantages(group, "p")[1][0]
