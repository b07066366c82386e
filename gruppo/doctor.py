"""What is installed and what the machine has, for `gruppo doctor`. Changes and starts nothing."""

from __future__ import annotations

import os
import re
from importlib import metadata
from typing import NamedTuple

_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[[^\]]*\])?.*?; *extra *== *[\"']([\w-]+)[\"']")


class Extra(NamedTuple):
    """An extra of gruppo's: its packages with their versions, and those that are missing."""

    name: str
    installed: tuple[str, ...]
    missing: tuple[str, ...]


def extras(package: str = "gruppo") -> list[Extra]:
    """The extras that a package declares; those made of other extras name these as packages."""
    found: dict[str, list[str]] = {}
    for requirement in metadata.requires(package) or []:
        if match := _REQUIREMENT.match(requirement):
            found.setdefault(match[2], []).append(match[1])
    return [_extra(name, [own for own in packages if own != package]) for name, packages in sorted(found.items())]


def version_of(package: str) -> str:
    """The installed version, or nothing."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def memory_gb() -> float:
    """The machine's memory in GB of 10^9 bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9


def _extra(name: str, packages: list[str]) -> Extra:
    versions = {package: version_of(package) for package in packages}
    installed = tuple(f"{package} {version}" for package, version in versions.items() if version)
    return Extra(name, installed, tuple(package for package, version in versions.items() if not version))
