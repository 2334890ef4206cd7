"""What the shop stores."""

from django.db import models


class Order(models.Model):
    """An order of a customer."""

    id = models.AutoField(primary_key=True)
    customer = models.TextField()
    is_confirmed = models.BooleanField(default=False)
