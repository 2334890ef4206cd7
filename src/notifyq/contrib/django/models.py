"""Queues, dead messages and schedules as models to read; Django neither makes nor changes them."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Func


class _WithCounts(models.Manager):
    """Queues with the row of `messages.queue_info()` of each, as `info`."""

    def get_queryset(self) -> models.QuerySet:
        """Add the counts; each queue takes one call."""
        row = Func(F("name"), function="messages.queue_info")
        info = Func(row, function="to_jsonb", output_field=models.JSONField())
        return super().get_queryset().annotate(info=info)


class Queue(models.Model):
    """A queue, and how many messages are in it."""

    name = models.TextField(primary_key=True)
    max_attempts = models.IntegerField()
    objects = _WithCounts()

    class Meta:
        """Options for Django."""

        managed = False
        db_table = 'messages"."queue'
        ordering = ("name",)
        default_permissions = ("view",)

    def __str__(self) -> str:
        return str(self.name)


class DeadMessage(models.Model):
    """A message that failed permanently, also one that was published again since."""

    id = models.BigIntegerField(primary_key=True)
    queue = models.TextField()
    subscriber = models.TextField(null=True)
    status = models.TextField()
    type = models.TextField(null=True)
    key = models.TextField(null=True)
    priority = models.IntegerField()
    attempts = models.IntegerField()
    created_at = models.DateTimeField()
    archived_at = models.DateTimeField()
    handled_by = models.TextField(null=True)
    details = models.TextField(null=True)
    message = models.JSONField()
    headers = models.JSONField()

    class Meta:
        """Options for Django."""

        managed = False
        db_table = 'messages"."dead_message'
        ordering = ("-archived_at", "-id")
        default_permissions = ("view",)
        permissions = (("retry_deadmessage", "Can retry dead messages"),)

    def __str__(self) -> str:
        return f"{self.id} of {self.queue}"


class Schedule(models.Model):
    """What is published by the clock."""

    name = models.TextField(primary_key=True)
    cron = models.TextField()
    timezone = models.TextField()
    queue = models.TextField()
    type = models.TextField(null=True)
    message = models.JSONField()
    headers = models.JSONField()
    priority = models.IntegerField()
    enabled = models.BooleanField()
    next_at = models.DateTimeField()
    last_at = models.DateTimeField(null=True)
    last_id = models.BigIntegerField(null=True)
    failed_at = models.DateTimeField(null=True)
    last_error = models.TextField(null=True)

    class Meta:
        """Options for Django."""

        managed = False
        db_table = 'messages"."schedule'
        ordering = ("name",)
        default_permissions = ("view",)

    def __str__(self) -> str:
        return str(self.name)
