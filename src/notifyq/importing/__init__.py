"""Move the waiting messages of another queue system to notifyq, each once.

A batch of rows is locked at the source, received at the destination with a receipt for each, and
deleted at the source. After a crash between the two commits the next import finds the receipts and
only deletes.
"""

from notifyq.importing.table import Census, Item, Table
from notifyq.importing.transfer import SYSTEMS, Refusal, Summary, Transfer

__all__ = ["SYSTEMS", "Census", "Item", "Refusal", "Summary", "Table", "Transfer"]
