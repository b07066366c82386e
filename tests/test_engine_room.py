"""[engines]: endpoints and folders side by side, who may sit where, and what each says to a wrong entry."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from command_line import Command, refused
from one_layer import one_layer
from small_run import config_of
from transformers import AutoTokenizer

from gruppo.chat import is_append_only, render
from gruppo.config import dump, load
from gruppo.engine_room import FolderConfig, calls, endpoints, make_engines
from gruppo.engines.local import LocalEngine
from gruppo.engines.openai import OpenAIConfig, OpenAIEngine
from gruppo.engines.unforged import Unforged
from gruppo.errors import ConfigError
from gruppo.run import RunConfig, assemble, assemble_frozen, can_play_apart, make_tasks
from gruppo.training.model import TINY, ModelConfig, load_base, load_frozen, with_values
from gruppo.types import Request, Sampling

SERVER = {"engines.server.base_url": "http://127.0.0.1:9/v1", "engines.server.model": "m"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model that someone has merged."""
    return shutil.copytree(one_layer(), tmp_path / "merged" / "tiny-grpo-step2")


@pytest.fixture(autouse=True)
def threads() -> object:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def loaded(**keys: str) -> RunConfig:
    return load(RunConfig, [], {key.replace("__", "."): value for key, value in keys.items()})


# ---- entries --------------------------------------------------------------------------------------------------------


def test_endpoints_and_folders_stand_side_by_side() -> None:
    config = load(RunConfig, [], {**SERVER, "engines.trained.folder": "x", "engines.trained.dtype": "bfloat16"})
    assert isinstance(config.engines["server"], OpenAIConfig) and isinstance(config.engines["trained"], FolderConfig)
    assert list(endpoints(config.engines)) == ["server"] and calls(config.engines) == {"server": 16}
    assert make_engines(config.engines, config.model, set()).keys() == {"server"}, "an empty seat loads no model"


def test_a_config_with_both_kinds_comes_back_equal(tmp_path: Path) -> None:
    extra = "{ chat_template_kwargs = { enable_thinking = false } }"
    config = load(RunConfig, [], {**SERVER, "engines.server.extra": extra, "engines.trained.folder": "x"})
    (tmp_path / "config.toml").write_text(dump(config))
    assert load(RunConfig, [tmp_path / "config.toml"]) == config


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"folder": "x", "base_url": "http://h/v1"},
            "engines.e: base_url is an endpoint's, folder a model's here: keep",
        ),
        ({"folder": "x", "model": "m"}, "engines.e: model is an endpoint's"),
        ({"folder": "x", "timeout_seconds": "3.0"}, "engines.e: timeout_seconds is an endpoint's"),
        ({"model": "m"}, "missing key engines.e.base_url: expected str. .* A model in a folder has `folder` instead"),
        ({"base_url": "http://h/v1"}, "missing key engines.e.model"),
        ({"folder": "x", "dtpye": "float32"}, "unknown key engines.e.dtpye .*: did you mean engines.e.dtype"),
        ({"folder": "x", "dtype": "float16"}, "engines.e.dtype = .*expected 'float32' or 'bfloat16'"),
        ({"base_url": "ftp://h", "model": "m"}, "engines.e.base_url = .*expected an http"),
        ({"folder": "''"}, "engines.e.folder"),
        ({"fodler": "x"}, "engines.e.fodler.*did you mean engines.e.folder"),
    ],
)
def test_a_wrong_entry_is_one_clear_line(keys: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused_:
        load(RunConfig, [], {f"engines.e.{key}": value for key, value in keys.items()})
    assert "\n" not in str(refused_.value) and "a folder" not in str(refused_.value).partition(": ")[0]


@pytest.mark.parametrize("field", ["messages", "model", "temperature", "top_p", "max_tokens", "stop", "seed", "n"])
def test_fields_that_have_a_key_of_their_own_are_not_extra(field: str) -> None:
    with pytest.raises(ConfigError, match=f"engines.server.extra: '{field}' is set by .*; leave it out here"):
        load(RunConfig, [], {**SERVER, "engines.server.extra": f"{{ {field} = 1 }}"})


# ---- seats ----------------------------------------------------------------------------------------------------------


def test_a_folder_takes_a_frozen_seat_beside_a_policy(tmp_path: Path, folder: Path) -> None:
    config = config_of(
        tmp_path, engines__back__folder=str(folder), roles__writer__engine="back", roles__writer__max_tokens="6"
    )
    assembly = assemble(config)
    try:
        engine = assembly.rollout.engines["back"]
        assert isinstance(engine, LocalEngine) and engine.tokenizer is not assembly.learner.tokenizer
        groups = [assembly.rollout.collect(make_tasks(config, "train")[:2], 2, 0, label) for label in ("a", "a")]
        assert [e.turns for g in groups[0] for e in g.episodes] != [] and assembly.rollout.troupe is None
        turns = [turn for group in groups[0] for episode in group.episodes for turn in episode.turns]
        written = [turn for turn in turns if turn.role == "writer"]
        assert written and all(turn.action_ids and turn.policy is None and turn.version == 0 for turn in written)
        again = [turn for group in groups[1] for episode in group.episodes for turn in episode.turns]
        assert [turn.action_ids for turn in turns] == [turn.action_ids for turn in again]
        request = Request([{"role": "user", "content": "Vael"}], Sampling(0.0, max_tokens=6), 0)
        base = assembly.rollout.engines["local"].sample([request])  # type: ignore[attr-defined]
        assert base[0].ids == engine.sample([request])[0].ids, "the same weights, here"
        two = config.model_copy(update={"model": config.model.model_copy(update={"processes": 2})})
        assert not can_play_apart(two, assembly.rollout)
    finally:
        assembly.close()


def test_processes_play_beside_a_folder_what_one_plays(tmp_path: Path, folder: Path) -> None:
    found = []
    for processes in ("1", "2"):
        keys = {"engines__back__folder": str(folder), "roles__writer__engine": "back", "model__processes": processes}
        assembly = assemble(config_of(tmp_path, **keys))
        try:
            assert assembly.rollout.troupe is None
            groups = assembly.rollout.collect(make_tasks(config_of(tmp_path), "train")[:3], 2, 0, "a")
            found.append([turn.action_ids for g in groups for episode in g.episodes for turn in episode.turns])
        finally:
            assembly.close()
    assert found[0] == found[1] and len(found[0]) > 6


def test_an_agent_alone_on_a_folder_is_shown_its_calls_as_that_model_writes_them(folder: Path) -> None:
    keys = {"team__program": "solo", "team__solo__call_format": "template", "tools__names": '["documents"]'}
    config = loaded(**keys, engines__back__folder=str(folder), roles__agent__engine="back")
    assembly = assemble(config)
    assert {name for name, engine in assembly.rollout.engines.items() if isinstance(engine, Unforged)} == {
        "back",
        "local",
    }
    assembly.close()


def test_only_folders_that_are_sat_on_are_loaded_and_no_base_is(tmp_path: Path, folder: Path) -> None:
    keys = {"team__program": "search", "tools__names": '["documents"]', "roles__executor__engine": "trained"}
    config = loaded(**keys, engines__trained__folder=str(folder), engines__other__folder="nowhere", model__base="none")
    rollout = assemble_frozen(config)
    assert rollout.engines.keys() == {"trained"} and not rollout.calls


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"roles__executor__engine": "back", "roles__executor__policy": "executor"},
            "plays on the local engine, not on",
        ),
        ({"judge__engine": "back", "rewards": "{ judge = 1.0 }"}, "judge.engine = 'back': no such endpoint in"),
        ({"tools__names": '["generator"]', "tools__engine": "back"}, "tools.engine = 'back': no such endpoint in"),
        ({}, "engines.back: no role plays with it"),
        (
            {"roles__writer__engine": "back", "engines__back__folder": "nowhere"},
            "engines.back.folder = 'nowhere': no m",
        ),
    ],
)
def test_a_folder_is_refused_any_other_place(tmp_path: Path, folder: Path, keys: dict[str, str], message: str) -> None:
    config = config_of(tmp_path, **{"engines__back__folder": str(folder), **keys})
    with pytest.raises(ConfigError, match=message):
        assemble(config)


def test_a_folder_that_can_t_be_loaded_names_its_key(tmp_path: Path, folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "no such"}')
    configs = {"back": FolderConfig(folder=str(folder))}
    with pytest.raises(ConfigError, match=r"engines\.back\.folder = .*: model\.base = .*not a causal language model"):
        make_engines(configs, ModelConfig(), {"back"})
    with pytest.raises(ConfigError, match=r"engines\.back\.folder = .*: model\.device = 'moon'"):
        make_engines({"back": FolderConfig(folder=str(folder), device="moon")}, ModelConfig(), {"back"})


def test_its_own_settings_go_before_those_of_the_model(folder: Path) -> None:
    engines = {
        "same": FolderConfig(folder=str(folder)),
        "own": FolderConfig(folder=str(folder), dtype="float32"),
    }
    made = make_engines(engines, ModelConfig(dtype="bfloat16", threads=1), {"same", "own"})
    dtypes = []
    for engine in made.values():
        assert isinstance(engine, LocalEngine)
        with engine.activate(None) as model:
            dtypes.append(model.dtype)
            assert not model.training and not any(weight.requires_grad for weight in model.parameters())
    assert dtypes == [torch.bfloat16, torch.float32] and torch.get_num_threads() == 1


def test_a_merged_executor_goes_back_into_the_system_by_config(gruppo: Command, folder: Path) -> None:
    words = ["--engines.trained.folder", str(folder), "--roles.executor.engine", "trained"]
    words += [
        "--roles.executor.temperature",
        "0.0",
        "--roles.executor.max_tokens",
        "14",
        "--model.base",
        "no such base",
    ]
    words += ["--team.search.prompts", "compact", "--model.threads", "1"]
    runs = [gruppo("search", "What is the mayor of Tugrou?", "--corpus", "world:train", "--json", *words) for _ in "ab"]
    first, second = (json.loads(ended.out) for ended in runs)
    assert first["outcome"] == "completed" and first["rounds"][1]["num_clues"] == 1
    assert first["documents"] == second["documents"]
    refused(gruppo("search", "q", "--corpus", "world", *words[2:]), "roles.executor.engine = 'trained': no such engine")


# ---- chat templates -------------------------------------------------------------------------------------------------

THINKING = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)


def test_values_for_the_chat_template_reach_every_prompt(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = THINKING
    tokenizer.save_pretrained(folder)
    message = [{"role": "user", "content": "q"}]
    plain, _ = load_base(ModelConfig(base=str(folder)))
    quiet, _ = load_frozen(ModelConfig(base=str(folder), template={"enable_thinking": False}))
    assert "<think>" not in render(plain, message)[0] and is_append_only(plain)
    assert render(quiet, message)[0] == render(plain, message)[0] + "<think>\n\n</think>\n\n"
    config = load(RunConfig, [], {"model.template": "{ enable_thinking = false }", "engines.e.folder": str(folder)})
    engine = make_engines(config.engines, config.model, {"e"})["e"]
    assert isinstance(engine, LocalEngine)
    (done,) = engine.sample([Request(message, Sampling(max_tokens=2), 0)])
    assert done.prompt.endswith("</think>\n\n")


def test_a_value_that_no_template_asks_for_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"model\.template\.enable_thinking: the chat template of this model asks for"
    ):
        load_base(ModelConfig(template={"enable_thinking": False}))


@pytest.mark.parametrize("value", [True, False, 3, 0.5, "a 'b' \"c\" {{ d }} \n é"])
def test_values_of_any_kind_come_through(value: bool | int | float | str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    tokenizer.chat_template = with_values({"x": value}, "{{ x is string }} {{ x | tojson }}")
    text = tokenizer.apply_chat_template([{"role": "user", "content": "q"}], tokenize=False)
    assert text == f"{isinstance(value, str)} {json.dumps(value, ensure_ascii=False)}"


def test_engines_of_servers_are_made_without_asking_them() -> None:
    config = load(RunConfig, [], SERVER)
    assert isinstance(make_engines(config.engines, config.model, {"server"})["server"], OpenAIEngine)
