"""Write the diagrams as SVG, in the light or dark colours of the reader.

python tools/docs/make_diagrams.py

Each has a description for screen readers. Lengths are pixels of a page 880 wide.
"""

from __future__ import annotations

import sys
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[2]
ASSETS = ROOT / "docs/assets"

_STYLE = """
svg { background: #fff; }
text { font: 15px system-ui, "DejaVu Sans", sans-serif; fill: #1c2529; }
.middle { text-anchor: middle; }
.strong { font-weight: 600; font-size: 14px; }
.small { font-size: 13px; fill: #52616a; }
.turned { writing-mode: vertical-rl; }
.box { fill: #e3f2ef; stroke: #00796b; stroke-width: 1.5; }
.bad { fill: #fbe9e7; stroke: #bf360c; }
.group { fill: none; stroke: #8a9aa3; stroke-dasharray: 5 4; }
.line { fill: none; stroke: #37474f; stroke-width: 1.6; marker-end: url(#tip); }
.soft { stroke-dasharray: 5 4; }
.rule { stroke: #8a9aa3; stroke-width: 1; }
#tip path { fill: #37474f; }
@media (prefers-color-scheme: dark) {
  svg { background: #1e2129; }
  text { fill: #e6eaec; }
  .small { fill: #a9b5bc; }
  .box { fill: #10403a; stroke: #4db6ac; }
  .bad { fill: #4e2016; stroke: #ff8a65; }
  .line { stroke: #b0bec5; }
  #tip path { fill: #b0bec5; }
}
"""


def _page(height: int, title: str, description: str, *parts: str) -> str:
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 880 {height}" width="880" '
        f'height="{height}" role="img" aria-labelledby="title text">\n'
        f'<title id="title">{escape(title)}</title>\n<desc id="text">{escape(description)}</desc>\n'
        f"<style>{' '.join(_STYLE.split())}</style>\n"
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" '
        'markerHeight="8" orient="auto-start-reverse"><path d="M0 0L10 5L0 10z"/></marker></defs>\n'
        f"{body}\n</svg>\n"
    )


def _box(x: int, y: int, text: str, *, width: int = 130, kind: str = "box") -> str:
    kinds = "box bad" if kind == "bad" else kind
    return (
        f'<rect class="{kinds}" x="{x}" y="{y}" width="{width}" height="44" rx="6"/>\n'
        f'<text class="middle strong" x="{x + width // 2}" y="{y + 27}">{escape(text)}</text>'
    )


def _text(x: int, y: int, text: str, kind: str = "middle small") -> str:
    return f'<text class="{kind}" x="{x}" y="{y}">{escape(text)}</text>'


def _line(path: str, kind: str = "") -> str:
    return f'<path class="line {kind}" d="{path}"/>'


def _group(x: int, y: int, width: int, height: int) -> str:
    return f'<rect class="group" x="{x}" y="{y}" width="{width}" height="{height}" rx="8"/>'


def life() -> str:
    """The states of a message and what leads from one to the next."""
    return _page(
        400,
        "The life of a message",
        "publish makes a waiting message, publish with a delay a scheduled one, which waits when "
        "it is due. A claim locks a waiting message; a release puts it back. A retry or an expired "
        "lock makes it scheduled again while attempts are left. A finish, or the last attempt, "
        "archives it as success, rejected, failed or lock_expired; the last three are dead "
        "messages, which can be published again.",
        _text(60, 96, "publish", "middle"),
        _line("M96 92H166"),
        _text(60, 256, "publish", "middle"),
        _text(60, 275, "with a delay"),
        _line("M96 252H166"),
        _box(170, 70, "waiting"),
        _box(170, 230, "scheduled"),
        _line("M235 230V118"),
        _text(244, 178, "due", "small"),
        _box(440, 70, "locked"),
        _line("M300 82H436"),
        _text(368, 74, "claim"),
        _line("M440 104H304"),
        _text(368, 121, "release"),
        _line("M490 114C490 190 420 252 304 252"),
        _text(478, 206, "retry, lock expired:", "small"),
        _text(478, 224, "attempts are left", "small"),
        _line("M570 92H676"),
        _text(622, 84, "finish,"),
        _text(622, 112, "last attempt"),
        _group(680, 40, 180, 286),
        _text(770, 30, "the archive", "middle strong"),
        _box(700, 64, "success", width=140),
        _box(700, 128, "rejected", width=140, kind="bad"),
        _box(700, 192, "failed", width=140, kind="bad"),
        _box(700, 256, "lock_expired", width=140, kind="bad"),
        _text(770, 318, "all but success: dead"),
        _line("M235 70C250 14 560 14 676 54", "soft"),
        _text(440, 20, "take, cancel"),
        _line("M770 328C770 400 130 420 130 300C130 220 150 140 176 118", "soft"),
        _text(450, 374, "dead retry: published again, as a new message"),
    )


def notification() -> str:
    """When NOTIFY is sent, and when a worker polls."""
    return _page(
        330,
        "The notification and the poll",
        "Idle: a publisher inserts a row and commits, the trigger sends NOTIFY, and a listening "
        "worker wakes and claims. Busy: the worker polls every few milliseconds, and publishers "
        "skip NOTIFY. Lost: without any notification the poll finds the message within a second.",
        _box(40, 20, "publisher", width=150),
        _box(350, 20, "messages.message", width=190),
        _box(700, 20, "worker", width=140),
        '<path class="rule" d="M115 64V316M445 64V316M770 64V316"/>',
        _text(20, 96, "idle", "strong"),
        _line("M115 100H441"),
        _text(278, 92, "INSERT, commit"),
        _line("M445 118H766"),
        _text(608, 110, "NOTIFY new_message wakes it"),
        _line("M770 140H449"),
        _text(608, 156, "claim: the table is authoritative"),
        _text(20, 200, "busy", "strong"),
        _line("M770 190H449", "soft"),
        _text(608, 182, "polls every few ms"),
        _line("M115 206H441"),
        _text(278, 198, "INSERT, commit, no NOTIFY"),
        _line("M770 216H449"),
        _text(608, 232, "claim"),
        _text(20, 280, "lost", "strong"),
        _line("M445 268H640", "soft"),
        _text(545, 260, "no notification arrives"),
        _line("M770 296H449"),
        _text(608, 312, "poll, within a second"),
    )


_COMMITS = (1, 2, 4, 3, 5, 6, 7, 8, 9)


def stream() -> str:
    """Batches of a stream between snapshots."""
    return _page(
        310,
        "A stream and its batches",
        "Events are in the order in which their transactions commit. A batch is all events "
        "between two snapshots, called ticks. Each subscriber has its own position: warehouse has "
        "finished two batches and the third one is open; mail has finished one. An event whose "
        "transaction commits late is in the next batch.",
        *[_box(60 + 86 * n, 60, str(id_), width=60) for n, id_ in enumerate(_COMMITS)],
        _text(60, 40, "ids of events, in the order of their commits", "small"),
        *[
            f'<path class="rule" d="M{x} 48V132"/>\n' + _text(x, 150, f"tick {n}")
            for n, x in ((0, 48), (1, 305), (2, 563), (3, 821))
        ],
        _text(176, 126, "batch 1"),
        _text(434, 126, "batch 2"),
        _text(692, 126, "batch 3"),
        _text(48, 202, "warehouse", "strong"),
        _line("M160 197H559"),
        _text(350, 190, "finished"),
        _line("M567 197H817", "soft"),
        _text(692, 190, "open"),
        _text(48, 252, "mail", "strong"),
        _line("M160 247H301"),
        _text(220, 240, "finished"),
        _text(330, 252, "two batches behind: their events are kept", "small"),
        _text(
            440,
            296,
            "3 was published before 4 and committed after it: it is in the next batch, not lost.",
        ),
    )


def parts() -> str:
    """What runs where."""
    return _page(
        330,
        "What runs where",
        "Publishers insert rows into the schema messages of your PostgreSQL, in their own "
        "transactions. Workers claim messages, call your handlers, and finish. pg_cron or any "
        "worker runs maintenance. The archive keeps finished messages. The dashboard, top, doctor "
        "and metrics read.",
        _box(30, 60, "your service", width=150),
        _text(105, 122, "INSERT or publish(),"),
        _text(105, 140, "in its own transaction"),
        _box(20, 210, "psql, any language", width=170),
        _line("M180 82H286"),
        _line("M190 232H286"),
        _group(290, 24, 300, 282),
        _text(440, 46, "PostgreSQL, schema messages", "middle strong"),
        _box(310, 64, "message: live messages", width=260),
        _box(310, 126, "archive: one table a day", width=260),
        _box(310, 188, "streams: event, batch", width=260),
        _box(310, 250, "functions, triggers, pg_cron", width=260),
        _box(700, 60, "notifyq worker", width=150),
        _line("M696 74H574"),
        _text(640, 66, "claim, finish"),
        _line("M574 94H696", "soft"),
        _text(640, 112, "notification"),
        _text(775, 122, "your handlers,"),
        _text(775, 140, "any number of workers"),
        _box(680, 210, "dashboard, top", width=190),
        _text(775, 274, "doctor, metrics, reports"),
        _line("M676 232H594"),
    )


DIAGRAMS = {
    "life": life,
    "notification": notification,
    "stream": stream,
    "parts": parts,
}


def main() -> None:
    """Write the diagrams into assets."""
    for name, draw in DIAGRAMS.items():
        (ASSETS / f"{name}.svg").write_text(draw(), encoding="utf-8")
        sys.stdout.write(f"docs/assets/{name}.svg\n")


if __name__ == "__main__":
    main()
