"""Moving what waits in another queue over to notifyq, each message once.

A batch of rows is locked at the source, received at the destination with a receipt for each, and
removed at the source, in this order: an import that dies between the two commits finds the receipts
when it is run again, and then only removes.
"""

from notifyq.importing.table import Census, Item, Table
from notifyq.importing.transfer import SYSTEMS, Refusal, Summary, Transfer

__all__ = ["SYSTEMS", "Census", "Item", "Refusal", "Summary", "Table", "Transfer"]
