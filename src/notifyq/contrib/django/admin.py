"""Pages of Django's admin: queues, dead messages with a retry, and schedules, all read-only."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import admin, messages
from django.db import DatabaseError, transaction

from notifyq.contrib.django.database import alias, fetch
from notifyq.contrib.django.models import DeadMessage, Queue, Schedule
from notifyq.database import statements as sql


class _ReadOnly(admin.ModelAdmin):
    """A page that changes nothing, of the database that has the messages."""

    def get_queryset(self, request: Any) -> Any:
        """Read from the database that NOTIFYQ names."""
        return super().get_queryset(request).using(alias())

    def has_add_permission(self, request: Any) -> bool:
        """Allow nobody to add a row."""
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        """Allow nobody to change a row."""
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        """Allow nobody to delete a row."""
        return False


@admin.register(Queue)
class QueueAdmin(_ReadOnly):
    """How many messages wait, are scheduled and are handled."""

    list_display = ("name", "waiting", "scheduled", "locked", "oldest", "paused", "max_attempts")
    fields = list_display
    search_fields = ("name",)

    def waiting(self, queue: Any) -> int:
        """Count the messages that can be claimed."""
        return int(queue.info["waiting"])

    def scheduled(self, queue: Any) -> int:
        """Count the messages that are not due yet."""
        return int(queue.info["scheduled"])

    def locked(self, queue: Any) -> int:
        """Count the messages that a worker handles."""
        return int(queue.info["locked"])

    @admin.display(description="waiting since")
    def oldest(self, queue: Any) -> str | None:
        """Return when the oldest one that waits became available."""
        found: str | None = queue.info["oldest_waiting_at"]
        return found

    @admin.display(boolean=True)
    def paused(self, queue: Any) -> bool:
        """Return whether it hands out nothing."""
        return bool(queue.info["paused"])


@admin.register(DeadMessage)
class DeadMessageAdmin(_ReadOnly):
    """Dead messages; the permission `notifyq.retry_deadmessage` allows a retry."""

    list_display = ("id", "queue", "type", "status", "attempts", "archived_at", "reason")
    search_fields = ("=id", "=queue", "=type", "=key")
    actions = ("retry",)
    show_full_result_count = False

    @admin.display(description="details")
    def reason(self, message: Any) -> str:
        """Return the first line of the error."""
        return (message.details or "").partition("\n")[0][:200]

    def has_retry_permission(self, request: Any) -> bool:
        """Return whether the user may publish dead messages again."""
        return bool(request.user.has_perm("notifyq.retry_deadmessage"))

    @admin.action(description="Publish selected messages again", permissions=["retry"])
    def retry(self, request: Any, queryset: Any) -> None:
        """Publish dead messages again, each once, and note it in the audit."""
        ids = list(queryset.values_list("id", flat=True))
        try:
            with transaction.atomic(using=alias()):
                again = [row["dead_retry"] for row in fetch(sql.DEAD_RETRY, ids)]
                actor, origin = request.user.get_username(), request.META.get("REMOTE_ADDR")
                details = json.dumps({"done": len(again), "as": again})
                subject = ", ".join(map(str, ids))
                fetch(sql.AUDIT, actor, "dead.retry", subject, details, origin, None)
        except DatabaseError as error:
            self.message_user(request, str(error), messages.ERROR)
            return
        left = len(ids) - len(again)
        text = f"{len(again)} published again" + (
            f", {left} were retried before or are no longer kept" if left else ""
        )
        self.message_user(request, text, messages.WARNING if left else messages.SUCCESS)


@admin.register(Schedule)
class ScheduleAdmin(_ReadOnly):
    """What is published by the clock, and when next."""

    list_display = ("name", "cron", "timezone", "queue", "enabled", "next_at", "last_at")
    list_filter = ("enabled",)
    search_fields = ("name", "queue")
