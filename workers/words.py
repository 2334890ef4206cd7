"""Queue `words`: count words, with a payload and a result of declared types.

notifyq worker words:app
notifyq publish words '{"text": "to be or not to be"}'
notifyq publish words '{"txet": "rejected: it has no text"}'
"""

from __future__ import annotations

from collections import Counter

from pydantic import BaseModel, Field

from notifyq import App

app = App()


class Text(BaseModel):
    """The payload."""

    text: str = Field(min_length=1)
    most: int = Field(10, ge=1)


class Words(BaseModel):
    """The result."""

    total: int
    frequent: dict[str, int]


# Not async: it runs in a thread, and a long text does not delay other messages.
@app.handler("words", max_attempts=3, timeout=60)
def count_words(text: Text) -> Words:
    """Count the words of a text and name the most frequent ones."""
    words = text.text.lower().split()
    return Words(total=len(words), frequent=dict(Counter(words).most_common(text.most)))
