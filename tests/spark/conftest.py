"""One session of Spark for all tests that use it; without Spark or Java they are skipped."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_LACKING = [
    name
    for name in ("adbc_driver_postgresql", "deltalake", "pandas", "psycopg", "pyarrow", "pyspark")
    if importlib.util.find_spec(name) is None
]


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    # Their modules import what is not there.
    return True if _LACKING and collection_path.name.startswith("test_") else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        # The first one starts the session, and each compiles what it is the first to use.
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(240))


def _java_runs() -> bool:
    if (java := shutil.which("java")) is None:
        return False
    return not subprocess.run([java, "-version"], capture_output=True, check=False).returncode


@pytest.fixture(scope="session")
def spark_java() -> None:
    """Skip tests of Spark where there is no Java."""
    if not _java_runs():
        give_up = pytest.fail if os.environ.get("NOTIFYQ_REQUIRE_SPARK") == "1" else pytest.skip
        give_up("Spark needs Java 17: install openjdk-17-jre-headless")


@pytest.fixture(scope="session")
def spark(spark_java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Give the session of Spark of this run, which starts with the first test that needs it."""
    from notifyq.spark.session import session

    folder = tmp_path_factory.mktemp("spark")
    made = session(
        "notifyq tests",
        master="local[2,4]",
        is_short=True,
        conf={
            "spark.driver.memory": "1g",
            "spark.local.dir": str(folder / "local"),
            "spark.sql.shuffle.partitions": "2",
            # For a few rows it takes longer to compile a plan than to run it.
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.sql.streaming.pollingDelay": "20ms",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.ui.enabled": "false",
            # The data of the UI: tests search it for passwords.
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": f"file:{folder}",
        },
    )
    yield made
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the gateway leaves its sockets to the garbage collector
        made.stop()
