"""Rules over the text of the SQL files, also inside function bodies where linters do not look."""

import re
from collections import Counter
from pathlib import Path

import pytest

from database import INIT_FILES, ROOT

FILES = sorted((ROOT / "db").rglob("*.sql"))
CODE_FILES = [file for file in INIT_FILES if not re.match(r"[01]\d[a-z]?_", file.name)]
LONGEST = 500

every_file = pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
every_init_file = pytest.mark.parametrize("file", INIT_FILES, ids=lambda file: file.name)

TOKEN = re.compile(
    r"--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|\"[^\"]*\"|\$\$|\w+|[^\w\s]", flags=re.DOTALL
)
CREATED = re.compile(
    r"^create (?:or replace )?(?:function|procedure) (messages\.\w+)", re.MULTILINE
)
CALLED = re.compile(r"\bmessages\.(_?\w+)\(")


def words(text: str) -> list[str]:
    """Return the words of the code: no comments, no literals, no quoted names."""
    return [token for token in TOKEN.findall(text) if re.match(r"\w", token)]


def code(text: str) -> str:
    return re.sub(r"--[^\n]*", "", text)


def test_there_are_files_to_look_at() -> None:
    assert len(INIT_FILES) >= 20
    assert words("select 'A', \"B\" -- C\nfrom D$$E$$") == ["select", "from", "D", "E"]


@every_file
def test_keywords_and_names_are_lower_case(file: Path) -> None:
    assert [word for word in words(file.read_text()) if word != word.lower()] == []


@every_file
def test_lines_are_short_and_clean(file: Path) -> None:
    text = file.read_text()
    lines = text.splitlines()
    assert [number for number, line in enumerate(lines, 1) if len(line) > 100] == []
    assert [number for number, line in enumerate(lines, 1) if line != line.rstrip()] == []
    assert "\t" not in text
    assert text.endswith("\n")
    assert not text.endswith("\n\n")


@every_file
def test_every_client_can_run_a_file(file: Path) -> None:
    """A line that starts with a backslash is a command of psql; COPY from stdin needs psql too."""
    text = file.read_text()
    assert re.findall(r"^\s*\\.*$", text, re.MULTILINE) == []
    assert re.findall(r"\bfrom stdin\b|(?<!:):'\w+'|(?<![:\w\[]):\w+", code(text)) == []


@every_file
def test_a_file_leaves_transactions_to_who_runs_it(file: Path) -> None:
    outside = re.sub(r"\$\$.*?\$\$", "", code(file.read_text()), flags=re.DOTALL)
    assert re.findall(r"^\s*(begin|commit|rollback)\b", outside, re.MULTILINE) == []


@every_init_file
def test_a_file_begins_with_its_header(file: Path) -> None:
    lines = file.read_text().splitlines()
    comment = lines[: next(n for n, line in enumerate(lines) if not line.startswith("--"))]
    assert re.fullmatch(r"-- [A-Z][a-z ]+: .+\.", comment[0])
    assert comment[1] == "--"
    keys = [found[1] for line in comment[2:] if (found := re.match(r"-- (\w+):  ? +\S", line))]
    without_calls = ["owns", "writes", "raises"]
    assert keys in (without_calls, ["owns", "writes", "calls", "raises"])
    assert "calls" in keys or file not in CODE_FILES


@pytest.mark.parametrize("file", CODE_FILES, ids=lambda file: file.name)
def test_the_header_names_every_function_of_other_files_that_is_called(file: Path) -> None:
    text = file.read_text()
    header = text[: text.index("\n\n")]
    body = code(text)
    own = {name.removeprefix("messages.") for name in CREATED.findall(text)}
    granted_or_commented = re.compile(
        r"comment on (?:function|procedure) messages\.\w+\(|"
        r"grant execute on (?:function|routine).*?;|"
        r"^create (?:or replace )?(?:function|procedure) messages\.\w+\(|"
        r"insert into messages\.\w+ ?\(",
        re.DOTALL | re.MULTILINE,
    )
    without_literals = re.sub(r"'(?:[^']|'')*'", "''", granted_or_commented.sub("", body))
    called = set(CALLED.findall(without_literals)) - own
    named = set(re.findall(r"messages\.(\w+)", header.partition("-- calls:")[2]))
    assert called - named == set()


def test_no_two_files_define_the_same_function() -> None:
    counts = Counter(name for file in FILES for name in set(CREATED.findall(file.read_text())))
    assert [name for name, count in counts.items() if count > 1] == []


def test_a_function_is_defined_once_in_its_file() -> None:
    # A text of no type has no way to a function of any type.
    overloaded = {"messages.enqueue"}
    for file in INIT_FILES:
        counts = Counter(it for it in CREATED.findall(file.read_text()) if it not in overloaded)
        assert [name for name, count in counts.items() if count > 1] == [], file.name


@every_init_file
def test_a_file_has_one_duty_and_is_not_long(file: Path) -> None:
    assert len(file.read_text().splitlines()) <= LONGEST


def test_the_files_run_in_the_order_of_their_numbers() -> None:
    numbers = [file.name.partition("_")[0] for file in INIT_FILES]
    assert all(re.fullmatch(r"\d\d[a-z]?", number) for number in numbers)
    assert numbers == sorted(set(numbers))


def test_every_select_names_its_columns() -> None:
    """An asterisk alone would change with a column; `alias.*` is a row of a named type."""
    for file in CODE_FILES:
        found = re.findall(r"select \*(?! from moved)", code(file.read_text()))
        assert found == [], file.name


def test_no_function_returns_a_table() -> None:
    """Its columns would be variables that collide with column names."""
    for file in INIT_FILES:
        assert "returns table" not in code(file.read_text()), file.name
