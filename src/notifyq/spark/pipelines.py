"""All pipelines as functions, in one place: `from notifyq.spark import pipelines`.

The modules beside this one have the names of their functions, so that the package itself cannot
give both. Nothing here needs a session of Spark, or Java, until it is called with one.
"""

from notifyq.spark.anomalies import Anomaly, Findings, anomalies
from notifyq.spark.engine import Engine, LocalEngine, SparkEngine
from notifyq.spark.export import ExportSummary, export
from notifyq.spark.handling import Handled, handle_batch, handle_queue
from notifyq.spark.history import Choice, Count
from notifyq.spark.lake import Lake, LakeFile
from notifyq.spark.load import LoadSummary, load
from notifyq.spark.mapping import Mapping, mapping
from notifyq.spark.prune import PruneSummary, prune, verify
from notifyq.spark.replay import ReplaySummary, replay
from notifyq.spark.rollup import RollupResult, rollup
from notifyq.spark.session import session
from notifyq.spark.streaming import stream_to_lake
from notifyq.spark.tidy import TidySummary, tidy

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
    "stream_to_lake",
    "tidy",
    "verify",
]
