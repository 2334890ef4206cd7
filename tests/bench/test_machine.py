"""CPU time and memory of processes: the CPU time of ended processes counts."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from bench.machine import cpu_seconds, describe, memory

BURN = """
import time
while time.process_time() < 0.3:
    pass
"""


def used() -> float:
    found = cpu_seconds([os.getpid()])
    assert found is not None
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_child_counts_alive_and_ended() -> None:
    before = used()
    subprocess.run([sys.executable, "-c", BURN], check=True)
    ended = used()
    assert ended - before > 0.2
    command = [sys.executable, "-c", f"{BURN}print(flush=True)\ninput()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert used() - ended > 0.2
        child.communicate(b"\n")


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_memory_includes_children() -> None:
    before = memory(os.getpid())
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert memory(os.getpid()) > before
        child.communicate(b"\n")


def test_a_machine_has_the_facts_of_the_report() -> None:
    assert describe().keys() == {"cpu", "cores", "ram", "kernel", "python", "notifyq"}
