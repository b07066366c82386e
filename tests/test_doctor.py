"""What the doctor says of the installation."""

from __future__ import annotations

from importlib import metadata

from command_line import Command

from gruppo.doctor import extras, memory_gb, version_of


def test_extras_are_listed_with_what_is_there_and_what_is_missing() -> None:
    found = {extra.name: extra for extra in extras()}
    assert f"pytest {metadata.version('pytest')}" in found["dev"].installed
    assert all(one.installed or one.missing for one in found.values()) and "gruppo" not in found["dev"].missing
    others = {extra.name: extra for extra in extras("transformers")}
    assert others["torch"].installed[0] == f"torch {metadata.version('torch')}" and others["all"].missing


def test_a_package_that_is_not_installed_has_no_version() -> None:
    assert version_of("no-such-package") == "" and version_of("pydantic")


def test_the_doctor_prints_devices_versions_and_extras(gruppo: Command) -> None:
    ended = gruppo("doctor")
    assert ended.code == 0 and memory_gb() > 0.1
    for word in ("cpu", "torch", "dev", "sandbox"):
        assert word in ended.out, word
