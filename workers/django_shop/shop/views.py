"""The requests of the shop."""

from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse

from shop.models import Order
from shop.tasks import confirm


@transaction.atomic
def order(request: HttpRequest) -> HttpResponse:
    """Store an order; its message exists if the order does."""
    order = Order.objects.create(customer=request.POST["customer"])
    result = confirm.enqueue(order.pk)
    return JsonResponse({"order": order.pk, "result": result.id}, status=202)


def state(request: HttpRequest, result_id: str) -> HttpResponse:
    """Report whether an order is confirmed yet."""
    return JsonResponse({"status": confirm.get_result(result_id).status})
