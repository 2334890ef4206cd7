"""Ask many shops for their price each morning, a message for each, and keep the best offer.

notifyq worker prices:app
python -c 'import asyncio, prices; print(asyncio.run(prices.today()))'
"""

from __future__ import annotations

from pydantic import BaseModel

from notifyq import App, Message, Policy, Reject

app = App()
PRICES = {"north": 9.5, "south": 8.0, "east": None}  # stand for what web pages say
ONE_BY_ONE = Policy(ordered=True, concurrency=20)  # those of a shop; and of all 20 at a time


class Offer(BaseModel):
    """What a shop wants."""

    shop: str
    price: float


@app.handler(
    "prices", policy=ONE_BY_ONE, max_attempts=4, backoff={TimeoutError: 1, LookupError: Reject}
)
async def ask(shop: str, message: Message) -> Offer:
    """Ask one shop: it may be slow, which passes, or not have it, which does not."""
    if shop == "south" and message.attempts == 1:
        raise TimeoutError(f"{shop} does not answer")
    if (price := PRICES[shop]) is None:
        raise LookupError(f"{shop} does not have it")
    return Offer(shop=shop, price=price)


@app.handler("best offer")
async def choose(_: None, message: Message) -> Offer:
    """Runs when all shops have answered or failed; what it returns is kept in the archive."""
    answers = await app.archive.dependencies(message.id)
    offers = [Offer.model_validate(it.value()) for it in answers if it.state == "success"]
    if not offers:
        raise Reject("no shop has it")
    return min(offers, key=lambda offer: offer.price)


@app.cron("0 6 * * *", name="compare", queue="compare", timezone="Europe/Oslo")
async def compare() -> int:
    """Ask all shops; one that is being asked already is not asked twice."""
    group = await app.publish_group(
        "prices", PRICES, callback=("best offer", None), key=str, dedup_key=str
    )
    return group.callback


async def today() -> Offer:
    """Compare now, and wait for what comes of it; a worker must be running."""
    async with app:
        asked = await compare.publish()
        return await app.result(await asked.result(timeout=60), Offer, timeout=60)
