"""A shop that sends an invoice for each order, and asks twice before it gives up."""

from pydantic import BaseModel

from notifyq import App, Reject

app = App()


class Order(BaseModel):
    """What somebody buys."""

    id: int
    customer: str
    amount: float


class Invoice(BaseModel):
    """What is sent to the customer."""

    order: int
    text: str


sent: list[Invoice] = []


@app.handler("orders")
async def confirm(order: Order) -> None:
    """Check an order, and let its invoice be sent."""
    if order.amount <= 0:
        raise Reject(f"order {order.id} is about nothing")
    text = f"{order.customer} owes {order.amount:.2f}"
    await send.publish(Invoice(order=order.id, text=text), dedup_key=f"order-{order.id}")


@app.handler("invoices", max_attempts=2, backoff=60)
def send(invoice: Invoice) -> str:
    """Send an invoice; without an address that fails, and is tried again a minute later."""
    if "nobody" in invoice.text:
        raise ValueError("no such address")
    sent.append(invoice)
    return f"sent invoice {invoice.order}"
