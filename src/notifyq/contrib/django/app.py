"""The App of a Django project: `from notifyq.contrib.django.app import app`."""

from __future__ import annotations

from django.conf import settings

from notifyq.app import App
from notifyq.contrib.django.database import dsn


class DjangoApp(App):
    """An App on the database of Django."""

    @property
    def dsn(self) -> str | None:
        """The DSN that was given, else that of Django; in a test, of the test database."""
        return self._dsn or dsn()

    @dsn.setter
    def dsn(self, dsn: str | None) -> None:
        """Use another database; with None that of Django, whose name changes in a test."""
        self._dsn = dsn
        self._database = self._schemas = self._results = None


app = DjangoApp(**getattr(settings, "NOTIFYQ", {}).get("OPTIONS", {}))
"""The one that `manage.py notifyq worker` runs."""
