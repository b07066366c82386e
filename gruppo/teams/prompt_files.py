"""The words of a team's roles as TOML: those that come with gruppo, in two sizes, or a user's own file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from gruppo.config import suggest
from gruppo.errors import ConfigError
from gruppo.teams.base import Prompt


def read_prompts(
    key: str, which: str, sizes: Mapping[str, str], roles: Sequence[str], fields: Sequence[str]
) -> dict[str, Prompt]:
    """The prompts of a size, or of a user's TOML file: role -> Prompt. Raises ConfigError for a missing or odd file,
    naming the config's `key`."""
    path = Path(__file__).parent / "prompts" / sizes[which] if which in sizes else Path(which)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        prompts = {
            role: Prompt(entry["user"].strip(), entry.get("system", "").strip()) for role, entry in table.items()
        }
        for role, prompt in prompts.items():
            if role not in roles:
                raise ConfigError(f"{key} = {which!r}: unknown role {role!r}{suggest(role, roles)}")
            prompt.messages(dict.fromkeys(fields, ""))
        return prompts
    except FileNotFoundError:
        raise ConfigError(f"{key} = {which!r}: no such file; use 'compact', 'full' or a TOML file") from None
    except OSError as error:
        raise ConfigError(f"{key} = {which!r}: can't be read: {error.strerror}") from None
    except (ValueError, LookupError, TypeError, AttributeError) as error:  # syntax, bytes, a missing or unknown field
        raise ConfigError(f"{key} = {which!r}: each role needs a table with 'user' (and 'system'): {error}") from None
