"""A shop that sends an invoice for each order, in at most two attempts."""

from pydantic import BaseModel

from notifyq import App, Reject

app = App()


class Order(BaseModel):
    """An order of a customer."""

    id: int
    customer: str
    amount: float


class Invoice(BaseModel):
    """An invoice for the customer."""

    order: int
    text: str


sent: list[Invoice] = []


@app.handler("orders")
async def confirm(order: Order) -> None:
    """Check an order, and publish its invoice."""
    if order.amount <= 0:
        raise Reject(f"order {order.id} has no amount")
    text = f"{order.customer} owes {order.amount:.2f}"
    await send.publish(Invoice(order=order.id, text=text), dedup_key=f"order-{order.id}")


@app.handler("invoices", max_attempts=2, backoff=60)
def send(invoice: Invoice) -> str:
    """Send an invoice; without an address it fails, and is retried a minute later."""
    if "nobody" in invoice.text:
        raise ValueError("no such address")
    sent.append(invoice)
    return f"sent invoice {invoice.order}"
