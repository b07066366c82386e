"""What each role of the solver says when it follows a task's gold plan: for demonstrations and for the replay check."""

from __future__ import annotations

import json

from gruppo.errors import DataError
from gruppo.types import Task


def gold_reply(task: Task, role: str, index: int, compact: bool) -> str:
    """The right text of the `index`-th turn of `role`. Raises DataError for a task without a plan in extra_info."""
    plan = task.extra_info.get("plan")
    if not plan:
        raise DataError(
            f"task {task.id!r} has no gold plan in extra_info.plan: demonstrations need one; or set sft.steps = 0"
        )
    step, last = plan[min(index, len(plan) - 1)], index >= len(plan) - 1
    if role == "writer":
        return task.result
    if compact:
        return {
            "planner": f"{step['tool']}: {step['sub_goal']}",
            "executor": step["command"],
            "verifier": "stop" if last else "continue",
        }[role]
    found = "; ".join(earlier["result"] for earlier in plan[:index])
    fields: dict[str, object] = {
        "analyzer": {
            "concise_summary": task.question,
            "required_skills": "look-up and calculation",
            "relevant_tools": ", ".join(sorted({each["tool"] for each in plan})),
            "additional_considerations": "none",
        },
        "planner": {
            "justification": f"step {index + 1} of {len(plan)}",
            "context": found,
            "sub_goal": step["sub_goal"],
            "tool_name": step["tool"],
        },
        "executor": {"analysis": step["sub_goal"], "explanation": "one call does it", "command": step["command"]},
        "verifier": {"analysis": f"{index + 1} of {len(plan)} steps done", "stop_signal": last},
    }
    return json.dumps(fields[role])
