"""The pages on other queues: every numbered row has a test, every comparison a source."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.pages import blocks, maker
from docs.test_examples import THERE
from support.database import ROOT, Connection

COMPATIBLE = {
    "listen-notify": ("o", 23),
    "pgq": ("p", 30),
    "q4m": ("m", 26),
    "qhb": ("h", 29),
    "skip-locked": ("d", 13),
}


@pytest.mark.parametrize("page", COMPATIBLE)
def test_every_numbered_row_has_a_test(page: str) -> None:
    letter, count = COMPATIBLE[page]
    text = (ROOT / f"docs/coming-from/{page}.md").read_text(encoding="utf-8")
    numbers = [int(n) for n in re.findall(rf"^\| {letter.upper()}(\d+) \|", text, re.MULTILINE)]
    assert numbers == [*range(1, count + 1)]
    file = f"tests/compatibility/test_{page.replace('-', '_')}.py"
    tests = (ROOT / file).read_text(encoding="utf-8")
    missing = [n for n in numbers if not re.search(rf"def test_{letter}{n}_", tests)]
    assert not missing
    assert file in text


NEIGHBOURS = sorted(
    path
    for path in (ROOT / "docs/coming-from").glob("*.md")
    if path.stem not in {*COMPATIBLE, "comparison", "index", "workflow-engines"}
)


@pytest.mark.parametrize("page", NEIGHBOURS, ids=lambda page: page.stem)
def test_a_page_has_the_four_sections(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert re.search(r"^Read against .* \d+\.\d+", text, re.MULTILINE)
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == [
        "What is what",
        "In code",
        "What differs",
        "How to move",
    ]
    # Each page also names what is better there.
    assert "\n- There: " in text


# A waiting row of each system whose rows a page moves.
WAITING = {
    "awa": "insert into awa.jobs (id, kind, queue, args, state, priority, attempt, max_attempts, "
    "run_at) values (1, 'mail', 'mail', '{}', 'available', 2, 0, 25, now())",
    "chancy": "insert into chancy_jobs (kwargs, func, priority, state, queue, scheduled_at, "
    "created_at, max_attempts, attempts) "
    "values ('{}', 'f', 0, 'pending', 'mail', now(), now(), 3, 0)",
    "river": "insert into river_job (id, args, kind, priority, scheduled_at, max_attempts, "
    "attempt, metadata, state) values (1, '{}', 'mail', 1, now(), 5, 0, '{}', 'available')",
    "oban": "insert into oban_jobs (id, args, worker, priority, scheduled_at, max_attempts, "
    "attempt, queue, state) values (1, '{}', 'W', 0, now(), 5, 0, 'mail', 'available')",
    "graphile-worker": "insert into graphile_worker._private_jobs (id, task_id, payload, priority, "
    "run_at, max_attempts, attempts) values (1, 1, '{}', 0, now(), 5, 0)",
    "pg-boss": "insert into pgboss.job (name, data, priority, start_after, retry_limit, "
    "retry_count, state, created_on, policy, blocked, blocking) "
    "values ('mail', '{}', 0, now(), 2, 0, 'created', now(), 'standard', false, false)",
    "good-job": """insert into good_jobs (serialized_params, job_class, created_at, queue_name)
      values ('{"arguments": [{}]}', 'J', now(), 'mail')""",
}
# Rows that a page leaves where they are: they have no attempt left.
USED_UP = {
    "river": "update river_job set attempt = 5",
    "oban": "update oban_jobs set attempt = 5",
    "graphile-worker": "update graphile_worker._private_jobs set attempts = 5",
}


# What a row keeps: changes of a waiting row, and the dedup key, the key and the attempts left of
# its message, or nothing if it stays.
KEPT: dict[str, list[tuple[str, tuple[str | None, str | None, int] | None]]] = {
    "awa": [
        ("state = 'scheduled'", (None, None, 25)),
        ("id = 2, state = 'retryable', attempt = 4", (None, None, 21)),
        ("state = 'waiting_external', attempt = 1", None),
    ],
    "pg-boss": [
        ("singleton_key = 'a'", (None, None, 3)),
        ("singleton_key = 'a'", (None, None, 3)),
        ("singleton_key = 'a', policy = 'exclusive'", ("a", None, 3)),
        ("singleton_key = 'a', policy = 'singleton'", (None, "a", 3)),
        ("singleton_key = 'a', policy = 'key_strict_fifo'", (None, "a", 3)),
        ("group_id = 'a'", (None, "a", 3)),
        ("state = 'retry', started_on = now()", (None, None, 2)),
        ("state = 'retry', started_on = now(), retry_count = 1", (None, None, 1)),
        ("blocked = true", None),
        ("blocking = true", None),
    ],
    "graphile-worker": [
        ("key = 'a'", ("a", None, 5)),
        ("id = 2, job_queue_id = 7", (None, "customer 7", 5)),
        ("id = 3, attempts = 2", (None, None, 3)),
    ],
    "chancy": [
        ("unique_key = 'a'", ("a", None, 3)),
        ("state = 'retrying', attempts = 1", (None, None, 2)),
        ("""meta = '{"workflow_id": "w"}'""", None),
    ],
}


@pytest.mark.parametrize("page", KEPT)
async def test_a_move_keeps_keys_and_the_attempts_that_are_left(
    page: str, connection: Connection
) -> None:
    await connection.execute(THERE[page])
    table = WAITING[page].split()[2]
    if page == "graphile-worker":
        await connection.execute("insert into graphile_worker._private_tasks values (1, 'mail')")
        await connection.execute(
            "insert into graphile_worker._private_job_queues values (7, 'customer 7')"
        )
    for change, _ in KEPT[page]:
        await connection.execute(
            f"{WAITING[page]}; update {table} set {change} "
            "where xmin::text = pg_current_xact_id()::text"
        )
    await connection.execute(_move(page))
    moved = await connection.fetch(
        "select dedup_key, key, max_attempts from messages.message order by id"
    )
    assert [tuple(row) for row in moved] == [it for _, it in KEPT[page] if it]
    left = [it for _, it in KEPT[page] if it is None]
    assert await connection.fetchval(f"select count(*) from {table}") == len(left)


def test_every_move_is_tested() -> None:
    assert WAITING.keys() == THERE.keys()


@pytest.mark.parametrize("page", WAITING)
async def test_a_move_deletes_what_it_has_moved_and_nothing_else(
    page: str, connection: Connection
) -> None:
    await connection.execute(THERE[page])
    table = WAITING[page].split()[2]
    kept = 1
    if page == "graphile-worker":
        await connection.execute("insert into graphile_worker._private_tasks values (1, 'mail')")
    if page in USED_UP:
        await connection.execute(WAITING[page])
        await connection.execute(USED_UP[page])
        kept += 1
    await connection.execute(WAITING[page])
    # One more comes between two statements of the page, as by a publisher that goes on.
    await connection.execute(
        f"create function late() returns trigger language plpgsql as $f$ begin {WAITING[page]}; "
        "return null; end; $f$; create trigger late after insert on messages.message "
        "execute function late()"
    )
    await connection.execute(_move(page))
    assert await connection.fetchval("select count(*) from messages.message") == 1
    assert await connection.fetchval(f"select count(*) from {table}") == kept


def _move(page: str) -> str:
    """Return the statements of a page that move its rows."""
    [block] = [
        it
        for it in blocks(ROOT / f"docs/coming-from/{page}.md", "sql")
        if "insert into messages.message" in it.text and WAITING[page].split()[2] in it.text
    ]
    return block.text


def test_the_comparison_is_made_of_its_data() -> None:
    made = maker("make_comparison").render()
    page = (ROOT / "docs/coming-from/comparison.md").read_text(encoding="utf-8")
    assert page == made, "run `python tools/docs/make_comparison.py`"


def test_every_value_of_the_comparison_has_a_source() -> None:
    data = maker("make_comparison").data()
    known = {*data["features"], "name", "page", "version", "licence", "better"}
    for system in data["system"]:
        assert system.keys() <= known, system["name"]
        for feature in data["features"]:
            value, source = system.get(feature, ("-", "-"))
            assert value, (system["name"], feature)
            assert re.fullmatch(r"-|[\w./-]+", source), (system["name"], feature)


def test_every_peer_is_better_somewhere_and_has_a_page_on_that_version() -> None:
    ours, *peers = maker("make_comparison").data()["system"]
    assert ours["name"] == "notifyq"
    for peer in peers:
        assert peer["better"], peer["name"]
        page = (ROOT / "docs/coming-from" / peer["page"]).read_text(encoding="utf-8")
        if peer["page"] != "pgq.md":  # its promises are tested, whatever the version
            read = re.search(r"^Read against .*", page, re.MULTILINE)
            assert read, peer["name"]
            assert re.search(rf"\b{peer['version']}\b", read[0]), peer["name"]
