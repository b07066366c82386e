"""The encyclopedia: cities, people, inventions and years, invented from a seed, and the articles that tell of them.

Every entity belongs to one split, and its facts point only to entities of that split, so no answer of the test split
can be learnt from training tasks. Names share their parts (two people called Tarvo, two Kelvar machines):
a careless search finds a near miss. This module knows facts and sentences; questions are next door.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

SPLITS = ("train", "validation", "test")
SHARES = (0.6, 0.1, 0.3)
YEARS = range(100, 1000)

SENTENCES: Mapping[str, tuple[str, str]] = {
    "population": ("{s} has a population of {v}.", "The population of {s} is {v}."),
    "founding year": ("The founding year of {s} is {v}.", "{s} gives {v} as its founding year."),
    "mayor": ("The mayor of {s} is {v}.", "{v} is the mayor of {s}."),
    "birth city": ("The birth city of {s} is {v}.", "{v} is the birth city of {s}."),
    "birth year": ("The birth year of {s} is {v}.", "{s} gives {v} as birth year."),
    "inventor": ("The inventor of {s} is {v}.", "{v} is the inventor of {s}."),
    "weight": ("The weight of {s} is {v}.", "{s} has a weight of {v}."),
    "event": ("The event of {s} is {v}.", "{v} is the event of {s}."),
}
"""How an article may state each relation; `{s}` the subject, `{v}` the value."""

RELATIONS: Mapping[str, Mapping[str, str]] = {
    "city": {"population": "number", "founding year": "number", "mayor": "person"},
    "person": {"birth city": "city", "birth year": "number"},
    "invention": {"inventor": "person", "weight": "number"},
    "year": {"event": "event"},
}
"""Kind of subject -> relation -> kind of value."""

_ONSETS = "b br d dr f g gr h j k kl l m n p pr r s st t tr v z".split()
_VOWELS = "a e i o u ai ou".split()
_CODAS = ["", "", "n", "r", "l", "s", "m", "k", "nd", "rt"]
_MACHINES = "lamp clock loom press engine".split()
_EVENTS = "flood fire siege treaty fair strike".split()


@dataclass(frozen=True)
class Article:
    """One short article: a title, its sentences, and what each of them is about (each can be found on its own)."""

    title: str
    sentences: tuple[str, ...]
    subjects: tuple[str, ...]


@dataclass
class World:
    """Entities by kind and split, facts by (subject, relation), and the articles.

    A year's name is "the year 144"; an invention's is "the Kelvar lamp".
    """

    seed: int
    entities: dict[tuple[str, str], list[str]] = field(default_factory=dict)  # (kind, split) -> names
    facts: dict[tuple[str, str], str] = field(default_factory=dict)  # (subject, relation) -> value
    sentences: dict[tuple[str, str], str] = field(default_factory=dict)
    articles: list[Article] = field(default_factory=list)

    @property
    def names(self) -> set[str]:
        """All names of entities, years left out."""
        return {name for (kind, _), names in self.entities.items() if kind != "year" for name in names}

    @property
    def passages(self) -> list[tuple[str, str, str]]:
        """All sentences as (id, subject, sentence), each of which can be found on its own."""
        told = (pair for each in self.articles for pair in zip(each.subjects, each.sentences, strict=True))
        return [(str(number), subject, sentence) for number, (subject, sentence) in enumerate(told)]


def build_world(seed: int, size: int = 100, exclude: Collection[str] = ()) -> World:
    """A world with `size` cities, as many people, half as many inventions and an event for each year 100-999.

    The same seed gives the same world. No name in `exclude` is used.
    """
    rng = random.Random(f"world-{seed}")
    world, taken = World(seed), set(exclude)
    _name_entities(world, rng, size, taken)
    _link_facts(world, rng)
    _write_articles(world, rng)
    return world


@lru_cache(maxsize=4)
def world_of(seed: int) -> World:
    """The world of a seed, made once per process: tasks, tools and labels only read it."""
    return build_world(seed)


def word(rng: random.Random, syllables: int) -> str:
    """An invented capitalised word."""
    parts = [rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(syllables)]
    return ("".join(parts) + rng.choice(_CODAS)).capitalize()


def _fresh(rng: random.Random, taken: set[str], make: str, pool: tuple[list[str], list[str]]) -> str:
    """A name of kind `make` that nobody has yet."""
    while True:
        if make == "city":
            name = word(rng, rng.choice((2, 2, 3)))
        elif make == "person":
            name = f"{rng.choice(pool[0])} {rng.choice(pool[1])}"
        else:
            name = f"the {rng.choice(pool[0])} {rng.choice(_MACHINES)}"
        if name not in taken:
            taken.add(name)
            return name


def _name_entities(world: World, rng: random.Random, size: int, taken: set[str]) -> None:
    words = max(4, size // 3)
    pools = {
        "city": ([], []),
        "person": ([word(rng, 1) for _ in range(words)], [word(rng, 2) for _ in range(words)]),
        "invention": ([word(rng, 2) for _ in range(words)], []),
    }
    counts = {"city": size, "person": size, "invention": size // 2}
    for kind, count in counts.items():
        _split(world, kind, [_fresh(rng, taken, kind, pools[kind]) for _ in range(count)])
    years = [f"the year {year}" for year in YEARS]
    rng.shuffle(years)
    _split(world, "year", years)


def _split(world: World, kind: str, names: list[str]) -> None:
    start = 0
    for split, share in zip(SPLITS, SHARES, strict=True):
        stop = len(names) if split == SPLITS[-1] else start + max(2, round(share * len(names)))
        world.entities[kind, split] = names[start:stop]
        start = stop


def _link_facts(world: World, rng: random.Random) -> None:
    for (kind, split), names in sorted(world.entities.items()):
        for name in names:
            for relation, value_kind in RELATIONS[kind].items():
                if value_kind == "number":
                    value = str(rng.randrange(101, 900 if "year" in relation else 990))
                elif value_kind == "event":
                    value = f"the {rng.choice(_EVENTS)} of {word(rng, 2)}"
                else:
                    value = rng.choice(world.entities[value_kind, split])
                world.facts[name, relation] = value


def _write_articles(world: World, rng: random.Random) -> None:
    for (kind, _), names in sorted(world.entities.items()):
        for name in names:
            for relation in RELATIONS[kind]:
                sentence = rng.choice(SENTENCES[relation]).format(s=name, v=world.facts[name, relation])
                world.sentences[name, relation] = sentence[0].upper() + sentence[1:]
            if kind != "year":
                told = tuple(world.sentences[name, relation] for relation in RELATIONS[kind])
                world.articles.append(Article(name.removeprefix("the "), told, (name,) * len(told)))
    for decade in range(YEARS.start, YEARS.stop, 10):
        years = tuple(f"the year {year}" for year in range(decade, decade + 10))
        world.articles.append(Article(f"{decade}s", tuple(world.sentences[year, "event"] for year in years), years))
