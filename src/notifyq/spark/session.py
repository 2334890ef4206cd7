"""A session of Spark with the settings that the pipelines need."""

from __future__ import annotations

import atexit
import functools
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from notifyq.errors import ConfigurationError
from notifyq.spark import machines

_HERE = Path(__file__).parent
GATEWAY = "PYSPARKGATEWAY_PORT"
"""Set where spark-submit runs the program: its settings take precedence."""
_REMOTE = "SPARK_REMOTE"
"""The server of Spark Connect."""
_PYTHON = "PYSPARK_PYTHON"

_WRAPPER = """#!/bin/sh
# Spark puts an archive of itself first on the path, and each worker would compile it again.
kept=
IFS=:
for entry in $PYTHONPATH; do
  case $entry in
    */pyspark.zip | */py4j-*-src.zip) ;;
    *) kept=$kept${kept:+:}$entry ;;
  esac
done
# Spark starts its own daemon, not this one, for workers that plan a read or commit.
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
    """Return the active session of Spark, else a new one with UTC.

    Precedence: settings of spark-submit, `conf`, settings of notifyq. An active session is returned
    unchanged, also to a thread that did not start it. `is_short`: starts faster and runs slower,
    for tests and small runs.

    `master`: executors on another machine get the address of this one that the master reaches, and
    run the interpreter of this process at the same path, or PYSPARK_PYTHON. Raises
    ConfigurationError if `conf` gives them a loopback address. With SPARK_REMOTE in the
    environment, it is a client of that server of Spark Connect, which needs notifyq, too.
    """
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    if (active := SparkSession.getActiveSession()) is not None:
        return active
    with suppress(PySparkRuntimeError):  # no thread has started one
        started = SparkSession.active()
        # Spark finds data sources by name only in threads with an active session: this activates it
        # here.
        started.createDataFrame([], "nothing int")
        return started
    given = dict(conf or {})
    used = given.get("spark.master") or master or f"local[{os.cpu_count() or 1},4]"
    is_connected = _REMOTE in os.environ
    is_remote = machines.is_remote(used) and not is_connected
    if is_remote:
        _check_address(used, given.get("spark.driver.host"))
    builder = SparkSession.builder.appName(name)
    for key, value in {**_wanted(used, is_short=is_short), **given}.items():
        # A client of Spark Connect only has settings of its session.
        if key not in _submitted() and (key.startswith("spark.sql.") or not is_connected):
            builder = builder.config(key, value)
    # The JVM and the session read it now; it must not reach programs that this process starts.
    is_set_here = GATEWAY not in os.environ and _PYTHON not in os.environ
    if is_set_here:
        # The wrapper is in a temporary folder, which other machines do not have.
        os.environ[_PYTHON] = sys.executable if is_remote else _python()
    try:
        return builder.getOrCreate()
    finally:
        if is_set_here:
            del os.environ[_PYTHON]


def _check_address(master: str, host: str | None) -> None:
    reached = machines.address_for(master)
    if host is None or reached is None or machines.is_loopback(reached):
        return
    if machines.is_loopback(host):
        raise ConfigurationError(
            f"executors of {master} cannot reach the driver at {host}: remove spark.driver.host "
            f"(the default is {reached}), or set an address that they reach"
        )


def _wanted(master: str, *, is_short: bool) -> dict[str, str]:
    wanted = {
        f"spark.executorEnv.{machines.DRIVER}": machines.this_machine(),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.redaction.options.regex": "(?i)url|dsn|password|storage[.]",
        "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|dsn",
        "spark.driver.memory": "2g",
        "spark.ui.showConsoleProgress": "false",
    }
    if GATEWAY in os.environ:
        return wanted
    wanted |= {
        "spark.master": master,
        "spark.python.daemon.module": "notifyq.spark.daemon",
        "spark.driver.extraJavaOptions": " ".join(_java(is_short=is_short)),
    }
    if machines.is_remote(master):
        is_set = {"SPARK_LOCAL_IP", "SPARK_LOCAL_HOSTNAME"} & os.environ.keys()
        reached = None if is_set else machines.address_for(master)
        return wanted if reached is None else wanted | {"spark.driver.host": reached}
    return wanted | {
        # Other machines must not reach it.
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
    if GATEWAY not in os.environ:
        return set()
    from pyspark import SparkConf

    return {key for key, _ in SparkConf().getAll()}


@functools.cache
def _python() -> str:
    """Write a program that runs this interpreter without Spark's archive on its path."""
    if os.name != "posix" or re.search(r"\s", tempfile.gettempdir()):
        return sys.executable
    folder = Path(tempfile.mkdtemp(prefix="notifyq-spark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    wrapper = folder / "python"
    wrapper.write_text(_WRAPPER % shlex.quote(sys.executable), encoding="utf-8")
    wrapper.chmod(0o700)
    return str(wrapper)
