"""Filters: what a claim wants, by payload, headers and attributes; and an index for it."""

from __future__ import annotations

import pytest

from notifyq.errors import InvalidArgumentError, QueueNotFoundError
from schema.test_plans import Explained
from support.database import Connect, Connection, publish, value

CLAIM = (
    "select id from messages.claim(queues => array['default'], quantity => 9, "
    "filter => $1::text::jsonpath)"
)


async def matching(connection: Connection, filter_: str) -> list[int]:
    """Claim what matches, and put it back."""
    await connection.execute("begin")
    try:
        return [row["id"] for row in await connection.fetch(CLAIM, filter_)]
    finally:
        await connection.execute("rollback")


@pytest.mark.parametrize("policy", [{}, {"concurrency": 100}, {"fair": True}, {"ordered": True}])
async def test_a_filter_can_use_headers_and_attributes(
    connection: Connection, policy: dict[str, object]
) -> None:
    if policy:
        await value(connection, "alter_queue", name="default", **policy)
    await publish(connection, 1)
    wanted = await value(
        connection, "publish", queue="default", message={"v": 1}, headers={"tenant": 7},
        type="invoice", key="c1", priority=5,
    )  # fmt: skip
    for filter_ in (
        "$headers.tenant == 7",
        '$type == "invoice"',
        '$key == "c1"',
        "$priority > 0",
        "$priority > 0 && $.v < 3",
        '$headers.tenant == 7 && $type starts with "inv"',
        "$id > 1",
    ):
        assert await matching(connection, filter_) == [wanted], filter_
        assert await matching(connection, f"!({filter_})") == [wanted - 1], filter_


async def test_instants_compare_with_one_another(connection: Connection) -> None:
    [id_] = await publish(connection, 1)
    assert await matching(connection, '$created_at > "2020-01-01"') == [id_]
    assert await matching(connection, '$created_at < "2020-01-01"') == []
    soon = '$created_at.datetime() > "2020-01-01T00:00:00+00:00".datetime()'
    assert await matching(connection, soon) == [id_]
    # A date in the payload must not raise: its publisher would stop all claims.
    for text in ("2019-12-31", "2020-01-02", "no date"):
        await value(connection, "publish", queue="default", message={"at": text})
    late = '$.at.datetime() > "2020-01-01T00:00:00+00:00".datetime()'
    assert await matching(connection, late) == [id_ + 2]


async def test_an_unknown_variable_is_reported(connection: Connection) -> None:
    await publish(connection, 1)
    for name in ("x", "header", "locked_by", 'a\\"b'):
        with pytest.raises(InvalidArgumentError, match="has no variable") as raised:
            await matching(connection, f'$"{name}" == 1')
        assert raised.value.hint is not None
        assert "$headers" in raised.value.hint


async def test_a_string_with_a_dollar_sign_is_no_variable(connection: Connection) -> None:
    id_ = await value(connection, "publish", queue="default", message={"price": '$"x"'})
    assert await matching(connection, '$.price == "$\\"x\\""') == [id_]
    assert await matching(connection, '$.price like_regex "^.\\"x"') == [id_]


async def test_a_path_that_is_no_predicate_is_reported(connection: Connection) -> None:
    for filter_ in ["$.v ? (@ > 1)", "strict $.v ? (@ > 1)", "$.tags[*] ? (@.size() > 1).x"]:
        with pytest.raises(InvalidArgumentError, match="instead of true or false") as raised:
            await matching(connection, filter_)
        assert "exists(" in str(raised.value.hint)
        if not filter_.startswith("strict"):
            assert await matching(connection, f"exists({filter_})") == []


async def test_a_claim_has_a_filter_for_each_queue(connection: Connection) -> None:
    await value(connection, "create_queue", name="other")
    ids = await publish(connection, 4)
    others = await publish(connection, 4, "other")
    claimed = await connection.fetch(
        "select id from messages.claim(queues => array['default', 'other', 'default'], "
        "quantity => 5, filters => array['$ == 3', '$ > 1', null]::jsonpath[])"
    )
    assert [row["id"] for row in claimed] == [ids[3], *others[2:], *ids[:2]]


async def test_filters_that_do_not_match_the_queues_are_reported(connection: Connection) -> None:
    await publish(connection, 1)
    for arguments, error in [
        ("array['default'], filters => array['$ > 1', null]::jsonpath[]", InvalidArgumentError),
        ("filters => array['$ > 1']::jsonpath[]", InvalidArgumentError),
        ("array[null], filters => array['$ > 1']::jsonpath[]", InvalidArgumentError),
        (
            "array['default'], filter => '$ > 1', filters => array['$ > 1']::jsonpath[]",
            InvalidArgumentError,
        ),
        (
            "array['default', 'nowhere'], filters => array[null, null]::jsonpath[]",
            QueueNotFoundError,
        ),
    ]:
        with pytest.raises(error):
            await connection.fetch(f"select * from messages.claim({arguments})")


async def test_an_index_finds_one_among_a_hundred_thousand(connection: Connection) -> None:
    await connection.execute("""
        select messages.publish_many('default', array(
          select jsonb_build_object('v', n) from generate_series(1, 100000) as n
        ));
        create index message_payload_idx on messages.message
          using gin (message jsonb_path_ops) where state = 'waiting';
    """)
    explained = Explained(connection)
    await explained.start()
    for filter_, wanted in (("$.v == 90000", [90_000]), ("$.v == 0", []), ("$.v == 3", [3])):
        call = f"select * from messages.claim(array['default'], 2, filter => '{filter_}')"
        async with connection.transaction():
            plans = await explained.plans(call)
        scans = [plan.text for plan in plans if "message_payload_idx" in plan.text]
        assert len(scans) == 1, filter_
        read = [row for plan in plans for row in plan.rows_of("on message m")]
        assert max(read) <= 200, filter_
        found = await connection.fetch(
            "select (message->>'v')::integer from messages.message where state = 'locked'"
        )
        assert [row[0] for row in found] == wanted
        await explained.unexplained(
            "select messages.release(id, lock_token) from messages.message where state = 'locked'"
        )
    # Where the first ones match, they are what comes, in their order.
    found = await connection.fetch(
        "select message->>'v' from messages.claim(array['default'], 3, filter => '$.v != 2 && "
        "$.v * 0 == 0')"
    )
    assert [row[0] for row in found] == ["1", "3", "4"]


async def test_a_claim_by_an_index_does_not_wait_for_locked_rows(
    connection: Connection, connect: Connect
) -> None:
    await connection.execute("""
        select messages.publish_many('default', array(
          select jsonb_build_object('v', n % 2) from generate_series(1, 4) as n
        ));
        create index message_payload_idx on messages.message
          using gin (message jsonb_path_ops) where state = 'waiting';
    """)
    other = await connect()
    async with other.transaction():
        await other.execute("select from messages.message where id = (select min(id) from "
                            "messages.message) for update")  # fmt: skip
        await connection.execute("set lock_timeout = '5s'")
        found = await connection.fetch(
            "select id from messages.claim(array['default'], 2, filter => '$.v == 1')"
        )
    assert [row["id"] for row in found] == [3]


PREDICATES = [
    "$.n < 3",
    "strict $.n < 3",
    "$.n + 1 > 2 * ($.m - 1)",
    "1 == 1",
    '$.a == ")"',
    '$.a != "(" && !($.b <= 1 || $.c >= 2)',
    "!($.n == 1)",
    "!exists($.n)",
    "exists($.list[*] ? (@ > 1))",
    "exists($.a) || exists($.b)",
    "($.n > 1) is unknown",
    "($.n > 1 && $.m > 2) is unknown",
    '$.a like_regex "^(x" flag "q"',
    '$.a starts with "("',
    "$.list.size() > 1",
    "$.list[$.n - 1] == 1",
    "-$.n == 1",
    "true",
]


async def test_a_predicate_is_a_filter(connection: Connection) -> None:
    for filter_ in PREDICATES:
        await connection.fetch(CLAIM, filter_)


OTHER_PATHS = [
    "$",
    "$.flag",
    "$.v + 1",
    "-$.v",
    "$.list[*]",
    "$.list[*] ? (@ > 1)",
    "strict $.list[*] ? (@ > 1).size()",
    "$.list[0 to $.n - 1]",
    '$."a > 1"',
    '"a > 1"',
    "1",
    "null",
    "$.v.size()",
    "($.v > 1).type()",
    "(exists($.v)).type()",
    "($.v + 1).type()",
    "($.v ? (@ > 1)).size() + ($.w ? (@ > 1)).size()",
    "$priority",
]


async def test_every_function_with_a_filter_refuses_paths_that_are_no_predicates(
    connection: Connection,
) -> None:
    await value(connection, "create_stream", name="s")
    for statement in (
        "select id from messages.claim(array['default'], filters => array[{}::jsonpath])",
        "select id from notifyq.claim_owned(array['default'], array[{}::jsonpath])",
        "select id from notifyq.relay_claim(array['default'], 1, null, null, {}::jsonpath)",
        "call messages.wait(array['default'], '0 s', array[{}::jsonpath])",
        "select messages.forward('s', 'f', 'default', filter => {}::jsonpath)",
    ):
        for path in OTHER_PATHS:
            with pytest.raises(InvalidArgumentError, match="instead of true or false"):
                await connection.fetch(statement.format(f"$path${path}$path$"))
