"""Settings of a shop whose messages are in its own database."""

import os

import django

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "notifyq.contrib.django",
    "shop",
]
if django.VERSION < (6,):
    INSTALLED_APPS.append("django_tasks")

TASKS = {
    "default": {
        "BACKEND": "notifyq.contrib.django.tasks.NotifyqBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"max_attempts": 3, "backoff": 10},
    }
}

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": os.environ.get("PGHOST", ""),
        "PORT": os.environ.get("PGPORT", ""),
        "USER": os.environ.get("PGUSER", "postgres"),
        "PASSWORD": os.environ.get("PGPASSWORD", ""),
        "NAME": os.environ.get("PGDATABASE", "shop"),
    }
}

SECRET_KEY = "only for an example"  # noqa: S105
USE_TZ = True
TIME_ZONE = "UTC"
ROOT_URLCONF = "urls"
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
