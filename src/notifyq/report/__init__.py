"""`notifyq report`: what became of the messages of some days, as a page or a picture."""

from __future__ import annotations

from notifyq.report.data import Report, gather
from notifyq.report.page import page
from notifyq.report.picture import picture

__all__ = ["Report", "gather", "page", "picture"]
