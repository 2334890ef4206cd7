"""One message: its payload, its attempts, and the actions on it."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from notifyq.archive.reader import Archive, obstacle
from notifyq.database import statements as sql
from notifyq.database.encryption.envelopes import (
    decrypted,
    decrypted_logs,
    decrypted_row,
    shown_json,
)
from notifyq.models.message import (
    Attempt,
    LogRecord,
    ParkedMessage,
    Progress,
    RecordedStep,
    columns,
)
from notifyq.models.payload import check_json, without_envelope
from notifyq.operations.dashboard import statements
from notifyq.operations.dashboard.searching import instant
from notifyq.operations.dashboard.section import Section
from notifyq.operations.dashboard.view import View
from notifyq.operations.masks import HIDDEN, redacted
from notifyq.operations.monitor import Relative, relatives

section = Section("message")

_SHOWN = 50_000
"""Characters of a payload that a page shows; the download has all."""
_STEPS, _CHUNKS = 200, 100
"""How many of the latest steps, and of the chunks of the output, a page shows."""
_KINDS = {"step": "Step", "sleep": "Sleep", "signal": "Wait for a signal", "end": "Wait for an end"}
_OF_RELATIVES = {
    "retry_of": ("Published as the retry of", "quiet"),
    "retried_as": ("Retried as", "good"),
    "after": ("A message that it runs after ended:", "quiet"),
}


async def _find(view: View, message_id: int) -> dict[str, Any]:
    # The archive again at the end: a message may move between two reads.
    for statement in (statements.FINISHED, statements.MESSAGE, statements.FINISHED):
        if rows := await view.database.fetch(statement, message_id):
            return columns(rows[0])
    raise HTTPException(
        404, f"there is no message {message_id}: the archive does not keep it, or it never existed"
    )


@section.page("/messages/{id:id}", "message")
async def message(view: View) -> Response:
    """Payload, attempts, timeline and result of one message."""
    id_ = view.integer(str(view.request.path_params["id"]))
    row = decrypted(view.keys, await _find(view, id_))
    part, fetch = view.parts.read, view.database.fetch
    after = view.number("after") or 0
    (found, attempts, recorded, logs), (waits, reports, chunks) = await asyncio.gather(
        asyncio.gather(
            part("relatives", relatives(view.database, id_), []),
            part("attempts", fetch(sql.ATTEMPTS, id_), []),
            part("steps", fetch(sql.STEPS, id_), []),
            part("logs", fetch(sql.LOGS, id_), []),
        ),
        asyncio.gather(
            part("waits", fetch(sql.PARKED, None, 1, id_), []),
            part("progress", fetch(sql.PROGRESS, id_), []),
            part("output", fetch(statements.OUTPUT, id_, after, _CHUNKS), []),
        ),
    )
    tries = [decrypted_row(view.keys, Attempt.from_row(it)) for it in attempts]
    steps = [decrypted_row(view.keys, RecordedStep.from_row(it)) for it in recorded[-_STEPS:]]
    lines = decrypted_logs(view.keys, map(LogRecord.from_row, logs))
    wait = next((ParkedMessage.from_row(it) for it in waits), None)
    progress = next((decrypted_row(view.keys, Progress.from_row(it)) for it in reports), None)

    def error(text: str | None) -> str | None:
        return redacted(text, view.masks, row["message"], row["headers"])

    return view.render(
        "message.html",
        title=f"Message {id_}",
        row=row,
        state="blocked" if row["blockers"] is not None else row["state"],
        is_live=row["archived_at"] is None,
        is_dead=row["archived_at"] is not None and row["state"] != "success",
        retried=next((it for it in found if it.kind == "retried_as"), None),
        payload=_shown(view, row["message"]),
        headers=_shown(view, row["headers"]),
        result=_shown(view, row["result"]),
        details=error(row["details"]),
        attempts=[(it, error(it.details), error(it.traceback)) for it in tries],
        steps=[(it, view.masks.text(it.value)) for it in steps],
        earlier=len(recorded) - len(steps),
        logs=[(it, error(without_envelope(it.text))) for it in lines],
        wait=wait,
        progress=progress,
        note=error(progress.note) if progress else None,
        chunks=[(it, _shown(view, shown_json(view.keys, it["chunk"]))) for it in chunks],
        following=view.here(after=chunks[-1]["number"]) if len(chunks) == _CHUNKS else "",
        relatives=found,
        events=_timeline(row, tries, steps, wait, found),
    )


def _shown(view: View, text: str | None) -> tuple[str, bool] | None:
    """A JSON text as it is shown, and whether it was cut off."""
    if text is None:
        return None
    written = view.masks.text(text) or ""
    return written[:_SHOWN], len(written) > _SHOWN


@dataclass(frozen=True, slots=True)
class _Moment:
    """Something that happened, or will happen."""

    at: datetime
    what: str
    kind: str = "quiet"
    """good, warn, bad or quiet."""
    by: str | None = None
    """The worker."""
    link: int | None = None
    """A related message."""


def _timeline(
    row: Mapping[str, Any],
    attempts: Sequence[Attempt],
    steps: Sequence[RecordedStep],
    wait: ParkedMessage | None,
    relatives: Sequence[Relative],
) -> list[_Moment]:
    """Everything that is known about a message, in the order of time."""
    found = [_Moment(row["created_at"], "Published")]
    found += [
        _Moment(it.happened_at, *_OF_RELATIVES[it.kind], link=it.id)
        for it in relatives
        if it.happened_at is not None and it.kind in _OF_RELATIVES
    ]
    if row["available_at"] > row["created_at"] and not attempts and wait is None:
        was_parked = any(it.kind != "step" for it in steps)
        found.append(_Moment(row["available_at"], "Woken" if was_parked else "Due"))
    for one in attempts:
        kind = "bad" if one.retry_at is None else "warn"
        ended = f"Attempt {one.number}: {one.status.replace('_', ' ')}"
        found.append(
            _Moment(one.locked_at, _begun(steps, one.number, one.locked_at), by=one.handled_by)
        )
        found.append(_Moment(one.ended_at, ended, kind, one.handled_by))
        if one.retry_at is not None:
            found.append(_Moment(max(one.retry_at, one.ended_at), "Due again"))
    found += _of_steps(steps, wait)
    if row["locked_at"] not in {None, *(one.locked_at for one in attempts)}:
        text = _begun(steps, row["attempts"], row["locked_at"])
        found.append(_Moment(row["locked_at"], text, by=row["worker"]))
    if row["lock_expires_at"] is not None:
        found.append(_Moment(row["lock_expires_at"], "The lock expires, unless extended", "warn"))
    if row["archived_at"] is not None:
        kind = "good" if row["state"] == "success" else "bad"
        text = f"Finished: {row['state'].replace('_', ' ')}"
        # The same statement writes the last attempt an instant later.
        ended_at = max([row["archived_at"], *(one.ended_at for one in attempts[-1:])])
        found.append(_Moment(ended_at, text, kind, row["worker"]))
    # The sort is stable: moments at the same instant keep the order above.
    return sorted(found, key=lambda it: it.at)


def _begun(steps: Sequence[RecordedStep], number: int, locked_at: datetime) -> str:
    # Of an attempt that was parked, only the last call is known.
    is_first = all(it.attempt != number or it.created_at > locked_at for it in steps)
    return f"Attempt {number} {'began' if is_first else 'went on'}"


def _of_steps(steps: Sequence[RecordedStep], wait: ParkedMessage | None) -> Iterator[_Moment]:
    """What a message has recorded, and what it waits for."""
    for it in steps:
        text = f"{_KINDS.get(it.kind, it.kind)} {it.name!r}: {it.state.replace('_', ' ')}"
        kind = {"failed": "bad", "timed_out": "warn"}.get(it.state, "good")
        yield _Moment(it.created_at, text, kind, f"attempt {it.attempt}")
    if wait is not None:
        yield _Moment(wait.since, f"Parked in {wait.name!r}", "warn")
        if wait.until is not None:
            yield _Moment(wait.until, "Goes on at the latest")


@section.page("/messages/{id:id}/payload", "message_payload")
async def payload(view: View) -> Response:
    """The payload as a file, with masked values hidden."""
    id_ = view.integer(str(view.request.path_params["id"]))
    rows = await view.database.fetch(statements.PAYLOAD, id_)
    if not rows:
        raise HTTPException(404, f"there is no message {id_}")
    # In a thread: a payload of many megabytes must not block other requests.
    text = await asyncio.to_thread(view.masks.text, shown_json(view.keys, rows[0][0]))
    return Response(
        text or HIDDEN,
        media_type="application/json",
        headers={"content-disposition": f'attachment; filename="message-{id_}.json"'},
    )


def _id(view: View) -> int:
    return view.integer(view.form.get("id", ""))


def _simple(verb: str, name: str, statement: str, done: str, lost: str) -> None:
    """Register a change of one message; `lost` is shown if the statement changed nothing."""

    async def handler(view: View) -> Response:
        id_ = _id(view)
        changed = await view.change(f"message.{verb}", id_, statement)
        return view.back(done.format(id_)) if changed else view.back(error=lost.format(id_))

    section.action(f"/message/{verb.replace('_', '-')}", name)(handler)


_simple(
    "run_now", "run_message_now", sql.RUN_NOW, "Message {} is due now.",
    "Message {} is not scheduled any more. Nothing was changed.",
)  # fmt: skip
_simple(
    "unblock", "unblock_message", sql.UNBLOCK, "Message {} no longer waits for others.",
    "Message {} does not wait for others. Nothing was changed.",
)  # fmt: skip


async def _cancelled(view: View, statement: str, verb: str, *args: Any) -> Response:
    """Cancel a message, or show why it cannot be cancelled."""
    id_ = _id(view)
    if await view.change("message.cancel", id_, statement, id_, *args, view.actor):
        return view.back(f"{verb} message {id_}.")
    why = obstacle(id_, await Archive(view.database).find(id_)) or "try again"
    return view.back(error=f"Message {id_} was not {verb.lower()}: {why}.")


@section.action("/message/cancel", "cancel_message")
async def cancel(view: View) -> Response:
    """Cancel a message that no worker handles."""
    return await _cancelled(view, statements.CANCEL, "Cancelled")


@section.action("/message/stop", "stop_message")
async def stop(view: View) -> Response:
    """Cancel a message also if a worker handles it, and perhaps what it has published."""
    id_ = _id(view)
    if not view.is_confirmed:
        return view.confirm(
            f"Stop message {id_}?",
            [
                "It is rejected, and its worker cancels the handler. What the handler "
                "has done outside of the database stays done.",
            ],
            button="Stop",
            fields={"id": id_},
            choices={"children": "with what it has published by steps, all the way down"},
        )
    return await _cancelled(view, statements.STOP, "Stopped", view.form.get("children") == "yes")


@section.action("/message/amend", "amend_message")
async def amend(view: View) -> Response:
    """Change a message that no worker handles; empty fields stay as they are."""
    id_ = _id(view)
    text, priority, at = (
        view.form.get(name, "").strip() for name in ("payload", "priority", "available_at")
    )
    try:
        if text:
            check_json(text)
    except ValueError as error:
        return view.back(error=f"The payload is not JSON: {error}.")
    changes = {
        "payload": text or None,
        "priority": view.integer(priority, "priority") if priority else None,
        "available_at": instant(at, "available_at") if at else None,
    }
    given = [name for name, value in changes.items() if value is not None]
    if not given:
        return view.back("Nothing was changed.")
    async with view.acting("message.amend", id_, changes=given) as act:
        changed = await act.value(sql.AMEND, id_, *changes.values(), None)
        act.note(changed=changed)
    if changed:
        return view.back(f"Changed message {id_}.")
    return view.back(error=f"Message {id_} was not changed: a worker has it, or it is finished.")


@section.action("/message/release", "release_message")
async def release(view: View) -> Response:
    """Release the lock of a worker, if it is still the same lock."""
    id_, token = _id(view), view.integer(view.form.get("lock_token", ""), "lock_token")
    if not view.is_confirmed:
        return view.confirm(
            f"Release message {id_} from its worker?",
            [
                "Any worker can claim it again at once, and this attempt does not count.",
                "The current worker is not stopped: if it still handles the message, the message "
                "is handled twice. Release messages of workers that are gone.",
            ],
            button="Release",
            fields={"id": id_, "lock_token": token},
        )
    if await view.change("message.release", id_, sql.RELEASE_MANY, [id_], [token]):
        return view.back(f"Released message {id_}: it waits again.")
    return view.back(
        error=f"Message {id_} was not released: its worker has settled it or lost the lock."
    )


@section.action("/message/retry", "retry_message")
async def retry(view: View) -> Response:
    """Retry a dead message, once; with a step, without that one and those after it."""
    id_, step = _id(view), view.form.get("step")
    details = {} if step is None else {"from": step}
    async with view.acting("dead.retry", id_, **details) as act:
        if step is None:
            again = await act.value(sql.DEAD_RETRY, [id_])
        else:
            again = await act.value(sql.DEAD_RETRY_FROM, id_, step)
        act.note(**{"as": again})
    if again is None:
        return view.back(error=f"Message {id_} was not retried: it is gone, or retried already.")
    return view.back(f"Retried message {id_} as {again}.")


@section.action("/message/discard", "discard_message")
async def discard(view: View) -> Response:
    """Delete a dead message."""
    id_ = _id(view)
    if not view.is_confirmed:
        return view.confirm(
            f"Delete dead message {id_}?",
            ["It is permanently removed from the archive, with the history of its attempts."],
            button="Delete",
            fields={"id": id_},
        )
    async with view.acting("dead.delete", id_) as act:
        deleted = await act.value(sql.DEAD_DELETE, [id_])
        act.note(deleted=deleted)
    if not deleted:
        return view.back(error=f"Message {id_} was not deleted: it is gone, or not dead.")
    return view.redirect(view.url("dead"), f"Deleted dead message {id_}.")
