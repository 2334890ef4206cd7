"""The App that `manage.py notifyq worker` runs: handlers of Django apps, and Django's tasks."""

from __future__ import annotations

import django
from django.apps import apps
from django.conf import settings
from django.utils.module_loading import autodiscover_modules

from notifyq.contrib.django.app import app

__all__ = ["app"]

if not apps.ready:  # a worker process imports this module alone
    django.setup()

# The module `handlers` of each Django app registers handlers of its own with `app`.
autodiscover_modules("handlers")

if getattr(settings, "TASKS", None):
    from notifyq.contrib.django.tasks import serve_tasks

    serve_tasks(app)
