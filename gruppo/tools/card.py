"""What a planner is told about a tool: the card, and how it reads in a prompt. It holds no behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ToolCard:
    """A tool's name, purpose and version, its inputs (name -> "type: meaning") and output, examples (what a call is
    for -> its arguments as JSON), limits, and how to use it best."""

    name: str
    description: str
    inputs: Mapping[str, str]
    output: str
    version: str = "1.0.0"
    examples: Mapping[str, str] | None = None
    limits: tuple[str, ...] = ()
    best_practices: tuple[str, ...] = ()

    def text(self) -> str:
        """The card as a prompt shows it."""
        lines = [self.description, f"Version {self.version}. Output: {self.output}"]
        lines += [f"Input {name}: {meaning}" for name, meaning in self.inputs.items()]
        lines += [f"Example ({purpose}): {call}" for purpose, call in (self.examples or {}).items()]
        lines += [f"Limit: {limit}" for limit in self.limits]
        lines += [f"Best practice: {practice}" for practice in self.best_practices]
        return "\n".join(lines)

    def schema(self, optional: tuple[str, ...] = ()) -> dict[str, object]:
        """The JSON schema of the inputs."""
        kinds = {name: meaning.partition(":") for name, meaning in self.inputs.items()}
        properties = {
            name: {"type": kind, "description": meaning.strip()} for name, (kind, _, meaning) in kinds.items()
        }
        required = [name for name in self.inputs if name not in optional]
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
