"""The Django app `notifyq`."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class NotifyqConfig(AppConfig):
    """Add "notifyq.contrib.django" to INSTALLED_APPS."""

    name = "notifyq.contrib.django"
    label = "notifyq"
    verbose_name = "Messages"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Have `migrate` create the queues, which a program that only publishes needs."""
        post_migrate.connect(_create_queues, sender=self)


def _create_queues(*, using: str, **_: Any) -> None:
    from notifyq.contrib.django import database

    if using != database.alias():
        return
    [found] = database.fetch("select to_regnamespace('notifyq') is not null as is_installed")
    if found["is_installed"]:
        from notifyq.contrib.django.worker import app

        with app.sync() as calls:
            calls.create()
        app.dsn = None
