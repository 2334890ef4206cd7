"""What NATS denies or would close the connection for is not tried without end."""

from __future__ import annotations

from notifyq.errors import BrokerRefusedError
from notifyq.relay.brokers.broker import Outgoing
from notifyq.relay.brokers.jetstream import JetStream
from relay.arrivals import There, jetstream
from support.brokers import nats_server

_DENIES = """
accounts { A { jetstream: enabled, users: [
  { user: owner, password: owner },
  { user: mute, password: mute, permissions: { subscribe: { deny: "_INBOX.>" } } }
] } }
"""


def outgoing(*names: str) -> Outgoing:
    return Outgoing("o/h/1", "orders.placed", b"1", dict.fromkeys(names, ""), None, "k")


async def test_names_of_headers_count_for_the_size_of_an_event(to_nats: There) -> None:
    made = JetStream(to_nats.url)
    await made.connect()
    answers = await made.publish([outgoing("a" * 60_000, "b" * 60_000), outgoing("c" * 60_000)])
    await made.close()
    assert isinstance(answers[0], str)
    assert answers[1] is True


async def test_a_user_that_may_not_read_answers_gets_an_error() -> None:
    with nats_server(_DENIES) as server:
        host = server.url.partition("//")[2]
        async with jetstream(f"nats://owner:owner@{host}") as context:
            await context.add_stream(name="orders", subjects=["orders.>"])
        made = JetStream(f"nats://mute:mute@{host}")
        await made.connect()
        await made._client.flush()  # the server has denied it by then
        [answer] = await made.publish([outgoing()])
        await made.close()
    assert isinstance(answer, BrokerRefusedError)
    assert "_inbox" in str(answer)
