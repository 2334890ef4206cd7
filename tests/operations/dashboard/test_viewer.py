"""A dashboard on a login that reads some queues only."""

from __future__ import annotations

from operations.dashboard.conftest import Open, make_dead
from support.database import Connection, value

PAGES = (
    *("/", "/queues", "/queue?name=mine", "/messages", "/messages?queue=mine", "/dead"),
    *("/messages?state=dead", "/messages?state=success", "/streams", "/schedules", "/parked"),
    "/health",
)


async def test_the_pages_of_a_viewer_have_its_queues_only(
    database: str, connection: Connection, open_dashboard: Open
) -> None:
    role = "notifyq_viewer_test"
    ids = {}
    for name in ("mine", "theirs"):
        await value(connection, "create_queue", name=name)
        await value(connection, "publish", queue=name, message=1)
        [ids[name]] = await make_dead(connection, 1, f"boom of {name}", name)
    await connection.execute(f"create role {role} login password 'x' in role notifyq_viewer")
    try:
        await value(connection, "grant_read", queue="mine", role=role)
        browser = await open_dashboard(dsn=f"postgresql://{role}:x@{database.split('@')[1]}")
        for path in (*PAGES, f"/messages/{ids['mine']}"):
            assert "theirs" not in await browser.text(path), path
        for path in ("/queues", "/dead", "/messages"):
            assert "mine" in await browser.text(path), path
        health = await browser.text("/health")
        assert "Oldest waiting" in health
        assert "Connections" not in health
        await browser.text(f"/messages/{ids['theirs']}", 404)
        for path in ("/queue?name=theirs", "/messages?queue=theirs", "/workers", "/audit"):
            await browser.text(path, 403)
        await browser.app.state.dashboard.database.close()
    finally:
        await connection.execute(f"drop owned by {role}; drop role {role}")
