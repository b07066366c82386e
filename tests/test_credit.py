"""Credit per role and per turn: statistics per episode, unbiased estimates, and what is left out."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

from gruppo.algorithms.advantages import AdvantageSettings, grpo, has_signal
from gruppo.algorithms.batching import rows_of
from gruppo.algorithms.credit import CreditConfig, Terms, assign, followed, leave_out_stale
from gruppo.types import Episode, Group, Outcome, Sampling, Score, StopReason, Task, Turn

TASK = Task("t", "q", "r")
GOLDEN = json.loads((Path(__file__).parent / "golden" / "advantages.json").read_text())


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


def in_states(rewards: Sequence[float], states: Sequence[Sequence[str]]) -> Group:
    """Episodes of one role whose turns start from named states."""
    prompts = {state: (place,) for place, state in enumerate(sorted(set(itertools.chain(*states))))}
    pairs = zip(rewards, states, strict=True)
    return group_of(*(episode(i, r, *(turn("p", prompts[s]) for s in own)) for i, (r, own) in enumerate(pairs)))


@pytest.mark.parametrize(("name", "advantage"), [("centred", "centred"), ("std", "grpo")])
def test_gigpo_compares_turns_that_saw_the_same_prompt_beside_the_episodes(name: str, advantage: str) -> None:
    given, out = GOLDEN["gigpo"]["in"], GOLDEN["gigpo"]["out"]
    group = in_states(given["outcomes"], given["states"])
    for compare, expected in (("state", out[f"step_{name}"]), ("task+state", out[f"joint_{name}"])):
        counts = credit([group], ["p"], advantage, compare=compare, outcome="discounted", discount=given["gamma"])
        found = [value or 0.0 for own in advantages(group, "p") for value in own]  # None: a turn with nothing beside it
        assert found == pytest.approx(expected, abs=2e-6)
        assert counts["groups/too_small"] == 1, "the turns whose state no other shares"
    assert [paid.return_ for e in group.episodes for paid in e.credits] == pytest.approx(out["returns"])


@hypothesis.given(
    st.lists(st.integers(-16, 16).map(lambda number: number / 4), min_size=2, max_size=9), st.integers(1, 3)
)
def test_gigpo_is_grpo_where_no_state_is_shared(rewards: list[float], num_turns: int) -> None:
    group = in_states(rewards, [[f"{place} {k}" for k in range(num_turns)] for place in range(len(rewards))])
    credit([group], ["p"], "grpo", compare="task+state", outcome="discounted", discount=0.9)
    expected = grpo(rewards) if has_signal(rewards) else [None] * len(rewards)
    assert advantages(group, "p") == [[value] * num_turns for value in expected]


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


def test_at_grpo_mixes_the_rewards_of_team_and_agent_before_comparing() -> None:
    given, out = GOLDEN["atgrpo"]["in"], GOLDEN["atgrpo"]["out"]
    for advantage, expected in (("centred", out["centred"]), ("grpo", out["std"])):
        group = group_of(*(episode(i, reward, turn("p")) for i, reward in enumerate(given["team"])))
        for e, own in zip(group.episodes, given["local"], strict=True):
            e.turn_rewards = [own]
        credit([group], ["p"], advantage, team={"p": given["alpha"]}, own={"p": 1.0}, compare="state")
        assert [e.credits[0].shaped for e in group.episodes] == pytest.approx(out["r"])
        assert [own[0] for own in advantages(group, "p")] == pytest.approx(expected, abs=2e-6)


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


# ---- moving averages, and what is too old ----------------------------------------------------------------------------


def test_rae_compares_a_step_with_the_average_before_it_by_role_and_family() -> None:
    walk, plain = Task("w", "q", "r", extra_info={"family": "walk"}), TASK
    first = Group("g", walk, [episode(0, 1.0, turn("p"), turn("p"), turn("q")), episode(1, 0.0, turn("p"))])
    second = Group("h", plain, [episode(0, 1.0, turn("p"), group="h"), episode(1, None, turn("p"), group="h")])
    averages = {"p": {"walk": 0.5, "swim": 0.25}, "idle": {"walk": 0.125}}
    counts = credit([first, second], ["p", "q"], "rae", Terms(averages=averages))
    assert advantages(first, "p") == [[0.5, 0.5], [-0.5]] and advantages(first, "q") == [[1.0], []]
    assert advantages(second, "p") == [[1.0], [None]], "one member is enough"
    assert (counts["groups/too_small"], counts["groups/flat"]) == (0, 0)
    moved = followed([first, second], ["p", "q"], averages, 0.5)
    assert moved == {
        "p": {"walk": 0.375, "swim": 0.25, "": 0.5},  # (0.5 + 1) / 2, then (0.75 + 0) / 2: in order, once an episode
        "q": {"walk": 0.5, "": 0.0},
        "idle": {"walk": 0.125},
    }
    assert averages["p"]["walk"] == 0.5, "the averages of before are left as they were"


def test_rae_sees_the_shaped_reward() -> None:
    group = group_of(episode(0, 1.0, turn("p")))
    credit([group], ["p"], "rae", Terms(penalties={("g", 0, "p"): 0.25}), team={"p": 2.0})
    assert advantages(group, "p") == [[1.75]] and followed([group], ["p"], {}, 0.0) == {"p": {"": 1.75}}


def test_rows_of_turns_that_are_too_old_are_left_out_and_counted() -> None:
    def play() -> Group:
        turns = [replace(turn("p"), version=version) for version in (5, 4, 3)]
        others = [replace(turn("q"), version=1), replace(turn("p", ids=()), version=0)]
        return group_of(episode(0, 1.0, *turns, *others), episode(1, 0.0, replace(turn("p"), policy=None)))

    versions = {"p": 5, "q": 1, "spare": 9}
    for limit, kept, lost in ((0, 1, 2), (1, 2, 1), (2, 3, 0), (9, 3, 0)):
        group = play()
        credit([group], ["p", "q"])
        found = leave_out_stale([group], versions, limit)
        assert found == {"rows/stale/p": lost, "rows/stale/q": 0, "rows/stale/spare": 0}
        assert [row.advantage for row in rows_of([group], "p")] == [0.5] * kept, "the rewards stay in the baseline"
        assert advantages(group, "q") == [[None], []], "alone in its group"
        assert advantages(group, "p")[1] == [-0.5], "a turn of no policy has no age"
    group = play()
    credit([group], ["p"])
    assert leave_out_stale([group], versions, -1) == {} and len(rows_of([group], "p")) == 3
