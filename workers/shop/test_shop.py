"""How to test a program that uses notifyq: publish, check, drain, advance the time."""

import pytest

from notifyq.testing import Sandbox
from shop import Invoice, Order, confirm, send, sent


@pytest.mark.asyncio
async def test_an_order_sends_an_invoice(sandbox: Sandbox) -> None:
    await confirm.publish(Order(id=1, customer="Ada", amount=9.5))
    await sandbox.published(confirm, {"id": 1, "customer": "Ada", "amount": 9.5})

    done = await sandbox.drain()

    await sandbox.published(send, Invoice(order=1, text="Ada owes 9.50"), dedup_key="order-1")
    assert [message.status for message in done] == ["success", "success"]
    assert sent[-1].order == 1


@pytest.mark.asyncio
async def test_an_order_without_an_amount_sends_none(sandbox: Sandbox) -> None:
    await confirm.publish(Order(id=2, customer="Bob", amount=0))

    (order,) = await sandbox.drain(check=False)

    assert order.details == "order 2 has no amount"
    await sandbox.published(send, times=0)


@pytest.mark.asyncio
async def test_an_invoice_that_cannot_be_sent_is_retried(sandbox: Sandbox) -> None:
    await confirm.publish(Order(id=3, customer="nobody", amount=1))

    with pytest.raises(AssertionError, match="no such address"):
        await sandbox.drain()

    await sandbox.advance(61)
    (invoice,) = await sandbox.drain(check=False)
    assert (invoice.status, invoice.attempts) == ("failed", 2)
