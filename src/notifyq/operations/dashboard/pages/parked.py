"""Parked messages: what waits for what, and a form that sends a signal."""

from starlette.responses import Response

from notifyq.database import statements as sql
from notifyq.models.message import ParkedMessage
from notifyq.models.payload import check_json
from notifyq.operations.dashboard.section import Section
from notifyq.operations.dashboard.view import View

section = Section("parked", "Parked", key="p")

_SHOWN = 200
"""How many messages the page lists."""


@section.page("/parked", "parked")
async def parked(view: View) -> Response:
    """The messages that are parked longest, of all queues or of one."""
    queue = view.query("queue") or None
    rows = await view.database.fetch(sql.PARKED, queue, _SHOWN + 1, None)
    return view.render(
        "parked.html",
        title="Parked messages",
        queue=queue,
        rows=[ParkedMessage.from_row(row) for row in rows[:_SHOWN]],
        has_more=len(rows) > _SHOWN,
        given={name: view.query(name) for name in ("signal", "id")},
    )


@section.action("/signals/send", "send_signal")
async def send(view: View) -> Response:
    """Send a signal to all that wait for it, or to one message."""
    name, text = view.form.get("signal", ""), view.form.get("payload", "").strip() or "null"
    to = view.form.get("id", "").strip()
    try:
        check_json(text)
    except ValueError as error:
        return view.back(error=f"The payload is not JSON: {error}.", fallback="parked")
    message_id = view.integer(to) if to else None
    async with view.acting("signal.send", name, message=message_id) as act:
        woken = await act.value(sql.SIGNAL, name, text, message_id)
        act.note(woken=woken)
    is_one = woken == 1
    return view.back(
        f"Sent signal {name}: {woken} parked message{'' if is_one else 's'} woken.",
        fallback="parked",
    )
