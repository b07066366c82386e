"""Configuration: strictness, layering, one-line errors, round trips, and objects by reference."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppo.config import Config, dump, load, load_object, parse_overrides, schema_rows
from gruppo.errors import ConfigError


class Sampling(Config):
    temperature: float = 1.0
    """How random."""
    top_p: float = pydantic.Field(1.0, gt=0, le=1)
    """Nucleus."""


class Role(Config):
    policy: str | None = None
    """Who plays it."""
    prompt: str = "default"
    """What it is told."""
    sampling: Sampling = Sampling()
    """How it is drawn."""


class Algorithm(Config):
    name: Literal["grpo", "rloo"] = "grpo"
    """Which."""
    clip_low: float = 0.2
    """Lower clip."""
    clip_high: float = 0.28
    """Upper clip."""


class Local(Config):
    kind: Literal["local"] = "local"
    """Which engine."""
    threads: int = 1
    """CPU threads."""


class Remote(Config):
    kind: Literal["remote"]
    """Which engine."""
    address: str
    """Where."""


class RunConfig(Config):
    model: str
    """The base model."""
    seed: int = 0
    """The seed."""
    fast: bool = False
    """Cut corners."""
    name: str = ""
    """What to call it."""
    stop: tuple[str, ...] = ()
    """Stop strings."""
    output: Path | None = None
    """Where to."""
    limit: int | Literal["all"] = "all"
    """How many."""
    algorithm: Algorithm = Algorithm()
    """The algorithm."""
    engine: Local | Remote = pydantic.Field(Local(), discriminator="kind")
    """The engine."""
    roles: dict[str, Role] = {}
    """The roles."""
    weights: dict[str, float] = {"exact": 1.0}
    """Reward weights."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> RunConfig:
        if self.seed == 13:
            raise ValueError("seed = 13 brings bad luck: take another")
        return self


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(name: str, text: str) -> str:
        Path(name).write_text(text, encoding="utf-8")
        return name

    return write


def load_args(*args: str, files: tuple[str, ...] = ()) -> RunConfig:
    return load(RunConfig, files, {"model": "tiny"} | parse_overrides(args))


def message(*args: str, files: tuple[str, ...] = ()) -> str:
    with pytest.raises(ConfigError) as caught:
        load_args(*args, files=files)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_files_then_flags_later_ones_win_table_by_table(write):
    base = write("base.toml", 'seed = 1\n[algorithm]\nclip_low = 0.1\nclip_high = 0.4\n[roles.planner]\npolicy = "p"')
    top = write("top.toml", '[algorithm]\nclip_high = 0.5\n[roles.planner]\nprompt = "plan"')
    config = load_args("--roles.planner.sampling.temperature", "0.7", "--seed=2", files=(base, top))
    assert config.algorithm == Algorithm(clip_low=0.1, clip_high=0.5)
    assert config.roles["planner"] == Role(policy="p", prompt="plan", sampling=Sampling(temperature=0.7))
    assert config.seed == 2


def test_a_plain_table_replaces_its_default():
    assert load_args("--weights.length", "0.5").weights == {"length": 0.5}


def test_flag_values_are_read_as_toml_else_as_text():
    config = load_args(
        *("--seed", "-3", "--fast", "--name", "7", "--stop", '["a", "b"]', "--output", "out/x", "--limit=10"),
        *("--algorithm", "{clip_low = 0.3, name = 'rloo'}", "--roles.solver.prompt", "true"),
    )
    assert (config.seed, config.fast, config.name, config.stop, config.limit) == (-3, True, "7", ("a", "b"), 10)
    assert config.output == Path("out/x")
    assert config.algorithm == Algorithm(clip_low=0.3, name="rloo")
    assert config.roles["solver"].prompt == "true"
    assert load_args("--name", "1\nseed = 5").name == "1\nseed = 5", "a value can't set other keys"
    assert "expected a valid integer" in message("--seed", "1\nname = 2")
    assert load_args("--name", "2024-01-01").name == "2024-01-01"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('seed = "3"', 'seed = "3": expected a valid integer'),
        ("seed = true", "seed = true: expected a valid integer"),
        ("seed = 3.0", "seed = 3.0: expected a valid integer"),
        ("name = 3", "name = 3: expected a valid string"),
        ("fast = 1", "fast = 1: expected a valid boolean"),
        ('stop = "x"', 'stop = "x": expected a valid list'),
        ("stop = [1]", "stop.0 = 1: expected a valid string"),
        ("algorithm = 3", "algorithm = 3: expected a table"),
        ("seed = {a = 1}", "seed: expected a valid integer"),
        ("limit = false", "limit = false: expected a valid integer or 'all'"),
        ("seed = 13", "seed = 13 brings bad luck: take another"),
        ("[algorithm]\nclip_low = nan", "algorithm.clip_low = NaN: expected a finite number"),
        ("[roles.a.sampling]\ntop_p = 2", "roles.a.sampling.top_p = 2: expected less than or equal to 1"),
        ('[algorithm]\nname = "gripo"', "algorithm.name = \"gripo\": expected 'grpo' or 'rloo': did you mean grpo?"),
        ('[engine]\nkind = "remot"', "engine.kind = \"remot\": expected 'local', 'remote': did you mean remote?"),
        ('[engine]\nkind = "remote"', "missing key engine.address: expected str. Where"),
        ('[engine]\nkind = "local"\nthread = 2', "unknown key engine.thread = 2: did you mean engine.threads?"),
    ],
)  # fmt: skip
def test_wrong_values_are_named_with_what_is_expected(write, text, expected):
    place = "" if "bad luck" in expected else " (run.toml)"  # a combination of keys has no one place
    assert message(files=(write("run.toml", text),)) == expected + place


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--algorithm.clip_hi", "0.3"], "unknown key algorithm.clip_hi = 0.3: did you mean algorithm.clip_high?"),
        (["--algoritm.clip_high", "0.3"], "unknown key algoritm: did you mean algorithm?"),
        (["--clip_high", "0.3"], "unknown key clip_high = 0.3: did you mean algorithm.clip_high?"),
        (["--roles.a.promt", "x"], 'unknown key roles.a.promt = "x": did you mean roles.a.prompt?'),
        (
            ["--roles.a.qqq", "x"],
            'unknown key roles.a.qqq = "x": known are roles.a.policy, roles.a.prompt, roles.a.sampling',
        ),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest(args, expected):
    assert message(*args) == expected + " (command line)"


def test_the_first_problem_is_shown_and_the_rest_counted(write):
    run = write("run.toml", "seed = 'x'\nnam = 1\nfast = 2")
    assert message(files=(run,)) == "seed = \"x\": expected a valid integer (run.toml) (and 2 more)"  # fmt: skip
    with pytest.raises(ConfigError, match="^unknown key modl = \"x\": did you mean model\\?.*and 1 more"):  # fmt: skip
        load(RunConfig, (), {"modl": "x"})
    with pytest.raises(ConfigError, match="^missing key model: expected str. The base model$"):
        load(RunConfig)


def test_bad_files(write, tmp_path):
    write("run.toml", "")
    assert message(files=("rum.toml",)) == "rum.toml: no such file: did you mean run.toml?"
    assert message(files=("nowhere/run.toml",)) == "nowhere/run.toml: no such file, and no folder nowhere"
    assert message(files=(write("broken.toml", "a ="),)).startswith("broken.toml: not a TOML file: Invalid value (at")
    assert "can't be read" in message(files=(str(tmp_path),))
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"')
    assert message(files=("latin.toml",)).startswith("latin.toml: not a TOML file")


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["go"], "unexpected argument 'go'"),
        (["--a", "1", "2"], "unexpected argument '2'"),
        (["--a=1", "2"], "unexpected argument '2'"),
        (["-a", "1"], "unexpected argument '-a'"),
        (["--a..b", "1"], "unexpected argument '--a..b'"),
        (["--", "1"], "unexpected argument '--'"),
        (["--a=1", "--a=2"], "--a is given twice"),
    ],
)
def test_arguments_that_are_no_overrides(args, expected):
    with pytest.raises(ConfigError) as caught:
        parse_overrides(args)
    assert str(caught.value).startswith(expected)


def test_overrides_in_their_three_forms():
    parsed = parse_overrides(["--a.b", "x y", "--c=--d=1", "--e", "--f.g-h", "-1", "--i="])
    assert parsed == {"a.b": "x y", "c": "--d=1", "e": "true", "f.g-h": "-1", "i": ""}


@pytest.mark.parametrize(
    ("annotation", "default"),
    [(int | None, 3), (Sampling, Sampling(temperature=0.5)), (dict[str, Sampling], {"a": Sampling()})],
)
def test_a_default_that_would_not_survive_a_partial_table_or_a_dump_is_refused(annotation, default):
    with pytest.raises(TypeError, match="Wrong.x"):
        type("Wrong", (Config,), {"__module__": __name__, "__annotations__": {"x": annotation}, "x": default})


def test_a_config_is_frozen():
    with pytest.raises(pydantic.ValidationError):
        load_args().seed = 1  # type: ignore[misc]


text = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
numbers = st.floats(allow_nan=False, allow_infinity=False)
samplings = st.builds(Sampling, temperature=numbers, top_p=st.floats(0.001, 1))
roles = st.builds(Role, policy=st.none() | text, prompt=text, sampling=samplings)
configs = st.builds(
    RunConfig,
    model=text,
    seed=st.integers().filter(lambda seed: seed != 13),
    fast=st.booleans(),
    name=text,
    stop=st.lists(text, max_size=3).map(tuple),
    output=st.none() | st.just(Path("a/b")),
    limit=st.integers() | st.just("all"),
    algorithm=st.builds(Algorithm, name=st.sampled_from(["grpo", "rloo"]), clip_low=numbers, clip_high=numbers),
    engine=st.builds(Local, threads=st.integers()) | st.builds(Remote, kind=st.just("remote"), address=text),
    roles=st.dictionaries(text, roles, max_size=2),
    weights=st.dictionaries(text, numbers, max_size=2),
)


@given(config=configs)
def test_a_dump_loads_back_equal(tmp_path_factory, config):
    file = tmp_path_factory.getbasetemp() / "dump.toml"
    file.write_text(dump(config), encoding="utf-8", newline="")
    assert load(RunConfig, [file]) == config


@given(value=text)
def test_any_text_typed_for_a_text_key_arrives_as_text_or_is_toml(value):
    name = load(RunConfig, (), {"model": "m", "name": value}).name
    assert name == value or value.strip()[:1] in {'"', "'"}


def test_schema_rows_name_every_leaf():
    rows = {row.key: row for row in schema_rows(RunConfig)}
    assert rows["model"] == ("model", "str", "required", "The base model.")
    assert rows["algorithm.name"] == ("algorithm.name", '"grpo" | "rloo"', '"grpo"', "Which.")
    assert rows["roles.<name>.sampling.top_p"] == ("roles.<name>.sampling.top_p", "float", "1.0", "Nucleus.")
    assert rows["roles.<name>.policy"].type == "str" and rows["roles.<name>.policy"].default == ""
    assert rows["limit"].type == 'int | "all"'
    assert rows["stop"].type == "list of str"
    assert rows["weights"] == ("weights", "table of float", '{"exact": 1.0}', "Reward weights.")
    assert {"engine.threads", "engine.address"} <= rows.keys() and "roles" not in rows


def test_objects_by_reference(write):
    file = write("team.py", "from dataclasses import dataclass\n@dataclass\nclass Planner:\n    x: int = 1\n")
    planner = load_object(f"{file}:Planner")
    assert planner().x == 1 and load_object(f"./{file}:Planner") is planner
    assert load_object("gruppo.config:load_object") is load_object


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("team.py", "'team.py': expected file.py:name or package.module:name"),
        ("team.py:Planer", "team.py has no 'Planer': did you mean Planner?"),
        ("taem.py:Planner", "taem.py: no such file: did you mean team.py?"),
        ("no_such_package.x:y", "no_such_package.x can't be imported: ModuleNotFoundError"),
        ("broken.py:y", "broken.py can't be imported: ZeroDivisionError: division by zero"),
        ("syntax.py:y", "syntax.py can't be imported: SyntaxError"),
    ],
)
def test_objects_that_are_not_there(write, reference, expected):
    write("team.py", "class Planner: ...\n")
    write("broken.py", "1 / 0\n")
    write("syntax.py", "def\n")
    for _ in range(2):  # a module that failed is not there the second time either
        with pytest.raises(ConfigError) as caught:
            load_object(reference)
        assert str(caught.value).startswith(expected) and "\n" not in str(caught.value)
