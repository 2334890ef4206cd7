"""All pipelines as functions: `from notifyq.spark import pipelines`.

The package itself exports nothing: a worker of Spark must be able to import it without pyarrow.
Nothing here needs Java, or a session of Spark, until it is called with one.
"""

from notifyq.spark.analysis.anomalies import Anomaly, Findings, anomalies
from notifyq.spark.analysis.rollup import RollupResult, rollup
from notifyq.spark.engine import Engine, LocalEngine, SparkEngine
from notifyq.spark.handling import Handled, handle_batch, handle_queue
from notifyq.spark.lake.export import ExportSummary, export
from notifyq.spark.lake.lake import Lake, LakeFile
from notifyq.spark.lake.prune import PruneSummary, prune, verify
from notifyq.spark.lake.storage import Storage, storage_at
from notifyq.spark.lake.tidy import TidySummary, tidy
from notifyq.spark.publish.history import Choice, Count
from notifyq.spark.publish.load import LoadSummary, load
from notifyq.spark.publish.mapping import Mapping, mapping
from notifyq.spark.publish.replay import ReplaySummary, replay
from notifyq.spark.session import session
from notifyq.spark.streaming import stream_to_lake

__all__ = [
    "Anomaly",
    "Choice",
    "Count",
    "Engine",
    "ExportSummary",
    "Findings",
    "Handled",
    "Lake",
    "LakeFile",
    "LoadSummary",
    "LocalEngine",
    "Mapping",
    "PruneSummary",
    "ReplaySummary",
    "RollupResult",
    "SparkEngine",
    "Storage",
    "TidySummary",
    "anomalies",
    "export",
    "handle_batch",
    "handle_queue",
    "load",
    "mapping",
    "prune",
    "replay",
    "rollup",
    "session",
    "storage_at",
    "stream_to_lake",
    "tidy",
    "verify",
]
