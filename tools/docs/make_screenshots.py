"""Make the screenshots of the dashboard and a report: `python tools/docs/make_screenshots.py`.

They show a database that is filled for them, on a server of their own, in a browser without a
window. Needs Debian's chromium, and the dependencies of development.
"""

from __future__ import annotations

import asyncio
import runpy
import shutil
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg
import uvicorn
from playwright.async_api import async_playwright

from notifyq.database.pool import Database
from notifyq.operations.dashboard import Masks, create_app
from notifyq.operations.dashboard.serve import bind
from notifyq.operations.report import gather, picture
from notifyq.operations.report.picture import shrink
from notifyq.schema import install
from notifyq.server import debian_binaries, wheel_binaries
from notifyq.testing import Sandbox
from notifyq.testing.plugin import private_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ROOT = Path(__file__).parents[2]
ASSETS = ROOT / "docs/assets"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")

FILL = """
select messages.create_queue('email', max_attempts => 5, rate => 200);
select messages.create_queue('billing', max_attempts => 8, concurrency => 10, ordered => true);
select messages.create_queue('thumbnails', lock_duration => '5 min', max_attempts => 3);
select messages.create_queue('webhooks', max_attempts => 6, capacity => 100000);
select messages.create_queue('reports', concurrency => 2);
select messages.create_stream('orders');
select messages.subscribe('orders', 'warehouse'), messages.subscribe('orders', 'analytics');
select messages.publish('orders', jsonb_build_object('order', n), type => 'order.paid')
from generate_series(1, 60) as n;
select messages.schedule('nightly', '0 3 * * *', 'reports', '{"kind": "daily"}', 'Europe/Oslo');
select messages.schedule('invoices', '*/15 * * * *', 'billing', '{"kind": "collect"}', 'UTC');
select notifyq.make_partition(
  'message_archive', 'archived_at', (now() at time zone 'UTC')::date - n)
from generate_series(1, 7) as n;
select setseed(0.42);
insert into messages.message_archive (
  id, created_at, available_at, locked_at, archived_at, lock_token, priority, attempts, status,
  queue, type, handled_by, message, headers, details
)
select 1000000 + i, a.at - w.wait - r.run, a.at - w.wait - r.run, a.at - r.run, a.at, 1, 0,
  1 + (s.dice < 0.03)::integer * 2,
  (case when s.dice < 0.008 then 'failed' when s.dice < 0.012 then 'rejected'
    when s.dice < 0.0135 then 'lock_expired' else 'success' end)::messages.message_status,
  q.queue, q.queue || '.send', 'worker-' || 1 + i % 4,
  jsonb_build_object('order', 4000 + i, 'to', 'customer' || i || '@example.com',
    'card', jsonb_build_object('number', '4000123412341234', 'token', 'tok_' || i)),
  '{"trace": "00-4bf92f3577b34da6"}',
  case when s.dice < 0.004 then 'ConnectionError: smtp.example.com: no answer in ' || i % 30 || ' s'
    when s.dice < 0.008 then 'HTTPStatusError: 502 Bad Gateway from hooks.example.com/' || i
    when s.dice < 0.012 then 'unknown order ' || 4000 + i
    when s.dice < 0.0135 then 'the lock expired' end
from generate_series(1, {rows}) as i
cross join lateral (
  select now() - make_interval(secs => 86400 * power(random(), 1.4)) as at where i > 0
) as a
cross join lateral (
  select (array['email', 'email', 'email', 'billing', 'thumbnails', 'webhooks', 'webhooks'])
    [1 + i % 7] as queue
) as q
cross join lateral (select random() as dice where i > 0) as s
cross join lateral (
  select make_interval(secs => 0.004 + 0.05 * power(random(), 4)
    * (1 + 25 * exp(-power(extract(epoch from now() - a.at) / 600 - 5, 2)))) as wait where i > 0
) as w
cross join lateral (
  select make_interval(secs => case q.queue when 'thumbnails' then 0.8 else 0.03 end
    * (0.3 + 4 * power(random(), 6))) as run where i > 0
) as r;
select setval(pg_get_serial_sequence('messages.message', 'id'), 1000000 + {rows});
select messages.publish('email', jsonb_build_object('order', n, 'to', 'c' || n || '@example.com',
  'password', 'secret'), type => 'email.send') from generate_series(1, 214) as n;
select messages.publish('billing', jsonb_build_object('order', n), key => 'customer-' || n % 9)
from generate_series(1, 37) as n;
select messages.publish('webhooks', jsonb_build_object('n', n), delay => make_interval(mins => n))
from generate_series(1, 120) as n;
select messages.publish('thumbnails', jsonb_build_object('image', n || '.png'))
from generate_series(1, 12) as n;
select count(*) from messages.claim('{email}', 6, worker => 'worker-1');
select count(*) from messages.claim('{thumbnails}', 4, worker => 'worker-2');
select count(*) from messages.claim('{billing}', 3, worker => 'worker-3');
select messages.pause_queue('reports');
select notifyq.note_audit('ann', 'queue.pause', 'reports', '{"changed": true}', '10.0.0.7');
analyze messages.message; analyze messages.message_archive;
"""

PICTURES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "dashboard": ("/?range=24h", 980, {}),
    "dashboard-dark": ("/?range=6h", 630, {"color_scheme": "dark"}),
    "dashboard-queues": ("/queues", 474, {}),
    "dashboard-dead": ("/dead", 640, {}),
    "dashboard-health": ("/health", 720, {}),
    "dashboard-steps": ("", 500, {}),
}
"""File, page, how many pixels of its height are shown, and how the browser is."""


async def serving(dsn: str) -> AsyncIterator[str]:
    """Serve the dashboard, and give its address."""
    app = create_app(dsn, open_to_all=True, allow_writes=True, masks=Masks.parse("password,card.*"))
    listener = bind("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    await task


async def fill(dsn: str, rows: int = 60_000) -> None:
    """Install the schema, and fill it with a day."""
    connection = await asyncpg.connect(dsn)
    await install(connection)
    await connection.execute(FILL.replace("{rows}", str(rows)))
    await connection.close()


async def run_agent(dsn: str) -> int:
    """Have the agent of `workers/agent.py` wait for a person, and answer; return its message."""
    agent = runpy.run_path(str(ROOT / "workers/agent.py"), run_name="agent")
    async with Sandbox(agent["app"], dsn) as sandbox:
        prompt = agent["Prompt"](question="What is the weather in Rome?")
        handle = await agent["answer"].publish(prompt)
        await sandbox.drain("agent")
        await asyncio.sleep(3)  # the person thinks, as the timeline shows
        await sandbox.signal(f"approved:{handle}", {"by": "ann"})
        await sandbox.drain("agent")
    return int(handle)


async def make(dsn: str, folder: Path) -> None:
    """Take all pictures."""
    await fill(dsn)
    browser_path = next(found for name in BROWSERS if (found := shutil.which(name)))
    # What an operator looks for: somebody who keeps a snapshot.
    holder = await asyncpg.connect(
        dsn, server_settings={"application_name": "nightly-export", "timezone": "UTC"}
    )
    await holder.execute("begin isolation level repeatable read; select count(*) from pg_class")
    async for base in serving(dsn):
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(
                executable_path=browser_path, args=["--no-sandbox", "--disable-gpu"]
            )
            for name, (path, height, options) in PICTURES.items():
                context = await browser.new_context(
                    **{
                        "viewport": {"width": 1280, "height": height},
                        "timezone_id": "UTC",
                        "reduced_motion": "reduce",
                        **options,
                    }
                )
                page = await context.new_page()
                if name == "dashboard-steps":  # last: the pages before are without its queue
                    await page.goto(f"{base}/messages/{await run_agent(dsn)}")
                else:
                    await page.goto(base + path)
                await page.wait_for_selector("#live:not([hidden])")
                (folder / f"{name}.png").write_bytes(shrink(await page.screenshot()))
                await context.close()
            await browser.close()
    await holder.close()
    since = datetime.now(UTC) - timedelta(days=1)
    async with Database(dsn) as database:
        (folder / "report.png").write_bytes(picture(await gather(database, since=since)))


if __name__ == "__main__":
    with private_server(debian_binaries() or wheel_binaries()) as address:
        asyncio.run(make(address, Path(sys.argv[1]) if len(sys.argv) > 1 else ASSETS))
