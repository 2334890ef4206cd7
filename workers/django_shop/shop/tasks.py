"""What the shop does after the answer to a request."""

try:
    from django.tasks import task
except ImportError:  # Django 5
    from django_tasks import task

from shop.models import Order


@task(queue_name="mail")
def confirm(order_id: int) -> str:
    """Confirm an order by mail; it is tried up to three times."""
    order = Order.objects.get(pk=order_id)
    if "@" not in order.customer:
        raise ValueError(f"{order.customer} is no address")
    Order.objects.filter(pk=order_id).update(is_confirmed=True)
    return f"mail to {order.customer}"
