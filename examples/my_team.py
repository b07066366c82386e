"""A team: ordinary async Python over named agents. A writer and a checker, who may send the writer back once."""

from gruppo.teams.base import Cast, Prompt
from gruppo.types import Task


class Pair:
    roles = ("writer", "checker")
    prompts = {
        "writer": Prompt("Write the command.\nTool: calculate\nSub-goal: {question}"),
        "checker": Prompt("Answered?\nQuestion: {question}\nAction Step 1: calculate: {question} = {result}"),
    }

    async def play(self, task: Task, cast: Cast) -> str | None:
        for _ in range(2):
            command = await cast["writer"].act(str.strip, question=task.question)
            result = await cast.call("calculate", {"expression": command.text})
            verdict = await cast["checker"].act(str.strip, question=task.question, result=result.text)
            if verdict.value == "stop":
                break
        return result.output if result.ok else None
