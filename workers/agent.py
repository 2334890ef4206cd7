"""An agent that plans, calls a tool as a step, waits for a person, and streams its answer.

notifyq worker agent:app
notifyq publish agent '{"question": "What is the weather in Rome?"}'
notifyq signal approved:1 '{"by": "ann"}'

The model is a script, so it needs no network. Kill the worker at any moment: no call of a tool
whose result is recorded is repeated.
"""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import BaseModel

from notifyq import App, Message, Steps, emit, progress

app = App()
LOG = Path(os.environ.get("AGENT_LOG", os.devnull))  # a line for each call of a tool
ANSWERS = {"find": "41.9, 12.5", "weather": "sunny, 24 degrees", "mail": "sent"}


class Prompt(BaseModel):
    """What a person wants to know."""

    question: str


async def complete(question: str, results: list[str]) -> list[str]:
    """Continue a conversation, as a language model would: the next tool, or the final answer."""
    if len(results) < len(ANSWERS):
        return [list(ANSWERS)[len(results)]]
    return ["", f"In {question.rstrip('?').rpartition(' ')[2]}: {results[1]}. A mail was sent."]


def call(tool: str, key: str) -> str:
    """Call a tool; a server that knows the key does the work once."""
    with LOG.open("a", encoding="utf-8") as file:
        file.write(f"{key} {tool}\n")
    return ANSWERS[tool]


@app.handler("agent", max_attempts=100, backoff=0.1, lock_duration=2)
async def answer(prompt: Prompt, steps: Steps, message: Message) -> str:
    """Do what the model wants until it answers."""
    results: list[str] = []
    turn = await steps.run("plan", complete, prompt.question, results, key=0)
    while tool := turn[0]:
        n = len(results)
        if tool == "mail":
            await steps.wait_for("approval", signal=f"approved:{message.id}")
        key = steps.idempotency_key("call", key=n)
        results.append(await steps.run("call", call, tool, key, key=n))
        await progress(len(results) / len(ANSWERS), tool)
        turn = await steps.run("plan", complete, prompt.question, results, key=n + 1)
    for word in turn[1].split():
        await emit(word)
    return turn[1]
