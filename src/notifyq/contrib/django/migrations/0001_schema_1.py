"""Version 1 of the schema, and the models that show it."""

from __future__ import annotations

from typing import Any

from django.db import migrations, models

from notifyq.contrib.django import database


def install(_: Any, editor: Any) -> None:
    """Install the schema in the database that NOTIFYQ names."""
    if editor.connection.alias == database.alias():
        database.install()


class Migration(migrations.Migration):
    """Its reverse leaves the schema, as messages are in it."""

    initial = True
    # The installer has a transaction of its own.
    atomic = False
    operations = (
        migrations.RunPython(install, migrations.RunPython.noop),
        migrations.CreateModel(
            name="DeadMessage",
            fields=[
                ("id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("queue", models.TextField()),
                ("subscriber", models.TextField(null=True)),
                ("status", models.TextField()),
                ("type", models.TextField(null=True)),
                ("key", models.TextField(null=True)),
                ("priority", models.IntegerField()),
                ("attempts", models.IntegerField()),
                ("created_at", models.DateTimeField()),
                ("archived_at", models.DateTimeField()),
                ("handled_by", models.TextField(null=True)),
                ("details", models.TextField(null=True)),
                ("message", models.JSONField()),
                ("headers", models.JSONField()),
            ],
            options={
                "db_table": 'messages"."dead_message',
                "ordering": ("-archived_at", "-id"),
                "permissions": (("retry_deadmessage", "Can retry dead messages"),),
                "managed": False,
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="Queue",
            fields=[
                ("name", models.TextField(primary_key=True, serialize=False)),
                ("max_attempts", models.IntegerField()),
            ],
            options={
                "db_table": 'messages"."queue',
                "ordering": ("name",),
                "managed": False,
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="Schedule",
            fields=[
                ("name", models.TextField(primary_key=True, serialize=False)),
                ("cron", models.TextField()),
                ("timezone", models.TextField()),
                ("queue", models.TextField()),
                ("type", models.TextField(null=True)),
                ("message", models.JSONField()),
                ("headers", models.JSONField()),
                ("priority", models.IntegerField()),
                ("enabled", models.BooleanField()),
                ("next_at", models.DateTimeField()),
                ("last_at", models.DateTimeField(null=True)),
                ("last_id", models.BigIntegerField(null=True)),
                ("failed_at", models.DateTimeField(null=True)),
                ("last_error", models.TextField(null=True)),
            ],
            options={
                "db_table": 'messages"."schedule',
                "ordering": ("name",),
                "managed": False,
                "default_permissions": ("view",),
            },
        ),
    )
