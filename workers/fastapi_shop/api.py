"""A shop on FastAPI: an order and its message in one transaction, and progress for the browser.

uvicorn api:web
notifyq worker api:app
"""

import os
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Depends, FastAPI, Request, Response
from pydantic import BaseModel
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from notifyq import App, emit, within
from notifyq.contrib.starlette import lifespan, output_events, stream_events

app = App()
web = FastAPI(lifespan=lifespan(app))
engine = create_async_engine(
    os.environ["NOTIFYQ_DSN"].replace("postgresql:", "postgresql+asyncpg:", 1)
)


class Order(BaseModel):
    """An order of a customer."""

    customer: str
    items: list[str]


@app.handler("orders")
async def pack(order: Order) -> str:
    """Pack the items, and report each one."""
    for item in order.items:
        await emit({"packed": item})
    return f"a parcel for {order.customer}"


async def transaction() -> AsyncIterator[AsyncSession]:
    """Give the session of a request, in one transaction."""
    async with AsyncSession(engine) as session, session.begin():
        yield session


# With the scope "function" it is committed before the answer is sent.
Session = Annotated[AsyncSession, Depends(transaction, scope="function")]


@web.post("/orders", status_code=202)
async def store(order: Order, session: Session) -> dict[str, int]:
    """Store an order; its message exists if the order does."""
    await session.execute(text("insert into orders values (:name)"), {"name": order.customer})
    return {"message": await within.publish(session, pack, order)}


@web.get("/orders/{message}/events")
async def packed(request: Request, message: int) -> Response:
    """Send what is packed, as it happens."""
    return await output_events(request, message)


@web.get("/news")
async def news(request: Request) -> Response:
    """Send the events of stream "news", as they are published."""
    return await stream_events(request, "news")
