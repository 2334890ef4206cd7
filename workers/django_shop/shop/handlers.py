"""Handlers beside Django's tasks: the worker imports the module `handlers` of each Django app."""

from notifyq.contrib.django.app import app
from shop.models import Order


@app.handler("cleanup")
def forget(customer: str) -> int:
    """Delete the orders of a customer; return how many there were."""
    deleted, _ = Order.objects.filter(customer=customer).delete()
    return deleted
