"""A session of Spark, with the settings that the pipelines were measured with."""

from __future__ import annotations

import atexit
import functools
import os
import re
import shlex
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from notifyq.errors import ConfigurationError
from notifyq.spark import machines

if TYPE_CHECKING:
    from collections.abc import Mapping

_HERE = Path(__file__).parent
_GATEWAY = "PYSPARK_GATEWAY_PORT"
"""Set where spark-submit runs the program, whose settings then win."""
_PYTHON = "PYSPARK_PYTHON"

_WRAPPER = """#!/bin/sh
# Spark puts an archive of itself before all else, and each worker would compile it anew.
kept=
IFS=:
for entry in $PYTHONPATH; do
  case $entry in
    */pyspark.zip | */py4j-*-src.zip) ;;
    *) kept=$kept${kept:+:}$entry ;;
  esac
done
# Planning a read, and each commit, has a worker as well, and Spark asks there for its own daemon.
if [ "$1 $2" = "-m pyspark.daemon" ]; then
  shift 2
  set -- -m notifyq.spark.daemon "$@"
fi
PYTHONPATH=$kept exec %s "$@"
"""


def session(
    name: str = "notifyq",
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    is_short: bool = False,
) -> Any:
    """Give the active session of Spark, else a new one, with UTC and filters that reach PostgreSQL.

    Settings of spark-submit win over those given here, and `conf` over those of notifyq. A session
    that is there already is given as it is, also to a thread that did not start it. `is_short`:
    starts sooner and works slower, for tests and small runs.

    `master`: executors of another machine get the address of this one that the master reaches, and
    run the interpreter of this process at the same path, or PYSPARK_PYTHON. Raises
    ConfigurationError if `conf` gives them a loopback address.
    """
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    if (active := SparkSession.getActiveSession()) is not None:
        return active
    with suppress(PySparkRuntimeError):  # there is none in any thread
        started = SparkSession.active()
        # Spark finds data sources by name only in threads where a session is active, and this is
        # what makes it so.
        started.createDataFrame([], "nothing int")
        return started
    given = dict(conf or {})
    used = given.get("spark.master") or master or f"local[{os.cpu_count() or 1},4]"
    is_remote = machines.is_remote(used)
    if is_remote:
        _check_address(used, given.get("spark.driver.host"))
    builder = SparkSession.builder.appName(name)
    for key, value in {**_wanted(used, is_short=is_short), **given}.items():
        if key not in _submitted():
            builder = builder.config(key, value)
    # Read once by the JVM and once by the session; programs that this process starts need it not.
    is_ours = _GATEWAY not in os.environ and _PYTHON not in os.environ
    if is_ours:
        # What is in a temporary folder of this machine is on no other one.
        os.environ[_PYTHON] = sys.executable if is_remote else _python()
    try:
        return builder.getOrCreate()
    finally:
        if is_ours:
            del os.environ[_PYTHON]


def register(spark: Any) -> None:
    """Make sure that a session knows the data source `notifyq`.

    Spark looks for data sources once, in a Python worker. If that is killed, the session would
    answer DATA_SOURCE_NOT_FOUND for as long as it lives.
    """
    from pyspark_notifyq import DefaultSource

    known = spark._jsparkSession.sessionState().dataSourceManager()  # noqa: SLF001 - not in Python
    if not known.dataSourceExists(DefaultSource.name()):
        spark.dataSource.register(DefaultSource)


def _check_address(master: str, host: str | None) -> None:
    reached = machines.address_for(master)
    if host is None or reached is None or machines.is_loopback(reached):
        return
    if machines.is_loopback(host):
        raise ConfigurationError(
            f"executors of {master} do not reach the driver at {host}: leave spark.driver.host "
            f"out, which is {reached} then, or give an address that they reach"
        )


def _wanted(master: str, *, is_short: bool) -> dict[str, str]:
    wanted = {
        f"spark.executorEnv.{machines.DRIVER}": machines.this_machine(),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.redaction.options.regex": "(?i)url|dsn|password",
        "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|dsn",
        "spark.driver.memory": "2g",
        "spark.ui.showConsoleProgress": "false",
    }
    if _GATEWAY in os.environ:
        return wanted
    wanted |= {
        # A task that fails is tried again here as well, as on a cluster.
        "spark.master": master,
        "spark.python.daemon.module": "notifyq.spark.daemon",
        "spark.driver.extraJavaOptions": " ".join(_java(is_short=is_short)),
    }
    if machines.is_remote(master):
        is_told = {"SPARK_LOCAL_IP", "SPARK_LOCAL_HOSTNAME"} & os.environ.keys()
        reached = None if is_told else machines.address_for(master)
        return wanted if reached is None else wanted | {"spark.driver.host": reached}
    return wanted | {
        # On one machine nobody else has to reach it.
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
    }


def _java(*, is_short: bool) -> list[str]:
    options = [
        f"-Dlog4j2.configurationFile=file:{_HERE / 'log4j2.properties'}",
        "-XX:+UseSerialGC",
    ]
    if is_short:
        options.append("-XX:TieredStopAtLevel=1")
    return options


def _submitted() -> set[str]:
    if _GATEWAY not in os.environ:
        return set()
    from pyspark import SparkConf

    return {key for key, _ in SparkConf().getAll()}


@functools.cache
def _python() -> str:
    """Write a program that runs this interpreter without Spark's archive of itself."""
    if os.name != "posix" or re.search(r"\s", tempfile.gettempdir()):
        return sys.executable
    folder = Path(tempfile.mkdtemp(prefix="notifyq-spark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    wrapper = folder / "python"
    wrapper.write_text(_WRAPPER % shlex.quote(sys.executable), encoding="utf-8")
    wrapper.chmod(0o700)
    return str(wrapper)
