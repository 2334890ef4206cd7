"""Query many shops for a price each morning, one message each, and keep the best offer.

notifyq worker prices:app
python -c 'import asyncio, prices; print(asyncio.run(prices.today()))'
"""

from __future__ import annotations

from pydantic import BaseModel

from notifyq import App, Message, Policy, Reject

app = App()
PRICES = {"north": 9.5, "south": 8.0, "east": None}  # instead of web pages
ONE_BY_ONE = Policy(ordered=True, concurrency=20)  # one at a time of a shop, 20 of all


class Offer(BaseModel):
    """The price of a shop."""

    shop: str
    price: float


@app.handler(
    "prices", policy=ONE_BY_ONE, max_attempts=4, backoff={TimeoutError: 1, LookupError: Reject}
)
async def query(shop: str, message: Message) -> Offer:
    """Query one shop: a slow one is tried again, one without the product fails at once."""
    if shop == "south" and message.attempts == 1:
        raise TimeoutError(f"{shop} does not answer")
    if (price := PRICES[shop]) is None:
        raise LookupError(f"{shop} does not have it")
    return Offer(shop=shop, price=price)


@app.handler("best offer")
async def choose(_: None, message: Message) -> Offer:
    """Runs when all shops have answered or failed; the archive keeps the result."""
    answers = await app.archive.dependencies(message.id)
    offers = [Offer.model_validate(it.value()) for it in answers if it.state == "success"]
    if not offers:
        raise Reject("no shop has it")
    return min(offers, key=lambda offer: offer.price)


@app.cron("0 6 * * *", name="compare", queue="compare", timezone="Europe/Oslo")
async def compare() -> int:
    """Query all shops; one that has a live message is not queried twice."""
    group = await app.publish_group(
        "prices", PRICES, callback=("best offer", None), key=str, dedup_key=str
    )
    return group.callback


async def today() -> Offer:
    """Compare now, and wait for the best offer; a worker must be running."""
    async with app:
        handle = await compare.publish()
        return await app.result(await handle.result(timeout=60), Offer, timeout=60)
