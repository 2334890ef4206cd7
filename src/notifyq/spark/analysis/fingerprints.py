"""Fingerprints of errors: the same steps as notifyq.error_fingerprint()."""

from __future__ import annotations

import re

_BLANK = " \t\r\n"
_NOTHING = "(no details)"

# Each pattern means the same in PostgreSQL. A step is skipped for texts without its first element.
_STEPS: tuple[tuple[str, re.Pattern[str], str], ...] = tuple(
    (needs, re.compile(pattern), by)
    for needs, pattern, by in (
        ("'", r"(?<![A-Za-z0-9])'[^']*'", "'<text>'"),
        ('"', r'"[^"]*"', '"<text>"'),
        ("://", r"[A-Za-z][A-Za-z0-9+.-]*://[^] <>\"'),;}]+", "<url>"),
        (
            "",
            r"(?<![A-Za-z0-9<>])(~|[.][.]?|[A-Za-z]:)?([/\\][A-Za-z0-9_.@%+~-]+){2,}[/\\]?",
            "<path>",
        ),
        (
            ":",
            r"(?<![A-Za-z0-9_.-])[A-Za-z0-9_.-]+:[0-9]+:[0-9a-f]{6}(?![A-Za-z0-9])",
            "<worker>",
        ),
        ("-", r"-(?=[a-z]*[0-9])[0-9a-z]{6,10}-[0-9a-z]{5}(?![A-Za-z0-9-])", "-<pod>"),
        (
            "-",
            r"(?<![A-Za-z0-9])[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?![A-Za-z0-9])",
            "<uuid>",
        ),
        ("0", r"(?<![A-Za-z0-9])0[xX][0-9a-fA-F]+", "<hex>"),
        (
            "",
            r"(?<![A-Za-z0-9])(?=[0-9]*[a-fA-F])(?=[a-fA-F]*[0-9])[0-9a-fA-F]{6,}(?![A-Za-z0-9])",
            "<hex>",
        ),
        (
            ":",
            r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9:.]+(Z| ?[+-][0-9]{2}(:?[0-9]{2})?)?",
            "<time>",
        ),
        ("", r"[0-9]+([.,:][0-9]+)*", "<n>"),
        ("<n>,", r"<n>(, *<n>)+", "<n>"),
        ("", r"[ \t\r\f\v]+", " "),
    )
)


def fingerprint(details: str | None) -> str:
    """Return the fingerprint of an error with these details."""
    text = (details or "").lstrip(_BLANK).partition("\n")[0][:1000]
    for needs, pattern, by in _STEPS:
        if needs in text:
            text = pattern.sub(by, text)
    return text.lstrip(" ")[:300].rstrip(" ") or _NOTHING
