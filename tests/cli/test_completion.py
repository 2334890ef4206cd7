"""What a shell completes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cli.programs import NOTIFYQ, Notifyq, environment
from notifyq.cli.main import COMMANDS


def completed(words: str) -> list[str]:
    """Return what bash gets after Tab behind these words."""
    env = environment(
        _NOTIFYQ_COMPLETE="complete_bash",
        COMP_WORDS=words,
        COMP_CWORD=str(len(words.split(" ")) - 1),
    )
    return subprocess.run(
        NOTIFYQ, env=env, capture_output=True, text=True, check=True
    ).stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("notifyq que", {"queues"}),
        ("notifyq ", {name for group in COMMANDS.values() for name in group}),
        ("notifyq queues al", {"alter"}),
        ("notifyq worker --max", {"--max-memory"}),
        ("notifyq queues create --max-att", {"--max-attempts"}),
        ("notifyq dead ls --js", {"--json"}),
        ("notifyq ls --state wai", {"waiting"}),
    ],
)
def test_what_is_completed(words: str, offered: set[str]) -> None:
    assert set(completed(words)) == offered


def test_a_group_completes_its_commands_and_not_the_options_of_its_list() -> None:
    assert {"ls", "create", "pause"} <= set(completed("notifyq queues "))


def test_names_of_commands_are_completed_without_importing_them() -> None:
    code = (
        "import sys; from notifyq.cli.main import main\n"
        "try: main()\n"
        "finally: print(*sys.modules, file=sys.stderr)"
    )
    env = environment(_NOTIFYQ_COMPLETE="complete_bash", COMP_WORDS="notifyq ", COMP_CWORD="1")
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    modules = {
        f"notifyq.cli.{module}" for group in COMMANDS.values() for module, _ in group.values()
    }
    assert "queues" in done.stdout.split()
    assert not modules & set(done.stderr.split())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_printed(shell: str) -> None:
    env = environment(SHELL=f"/bin/{shell}", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    done = subprocess.run(
        [*NOTIFYQ, "--show-completion", shell], env=env, capture_output=True, text=True, check=True
    )
    assert "_NOTIFYQ_COMPLETE=complete_" in done.stdout


def test_ping_as_json(notifyq: Notifyq) -> None:
    [answer] = notifyq.good("ping", "--json").data
    assert answer["ok"] is True
    result = notifyq("ping", "--as", "nobody", "--json")
    assert (result.code, result.data, result.err) == (1, [{"ok": False, "sessions": 0}], "")
