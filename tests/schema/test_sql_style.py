"""Rules over the text of the SQL files, also inside function bodies, which linters do not read."""

import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from notifyq.schema.files import relative
from support.database import INIT_FILES, ROOT

CHAPTERS = sorted((ROOT / "db/init").glob("*.sql"))
FILES = [*INIT_FILES, *sorted((ROOT / "db/migrations").glob("*.sql"))]
CODE_FILES = [file for file in INIT_FILES if file.parent.name not in {"bootstrap", "tables"}]
LONGEST = 500

every_file = pytest.mark.parametrize("file", FILES, ids=relative)
every_init_file = pytest.mark.parametrize("file", INIT_FILES, ids=relative)

TOKEN = re.compile(
    r"--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|\"[^\"]*\"|\$\$|\w+|[^\w\s]", flags=re.DOTALL
)
CREATED = re.compile(
    r"^create (?:or replace )?(?:function|procedure) (messages\.\w+)", re.MULTILINE
)


def words(text: str) -> list[str]:
    """Return the words of the code: no comments, no literals, no quoted names."""
    return [token for token in TOKEN.findall(text) if re.match(r"\w", token)]


def code(text: str) -> str:
    return re.sub(r"--[^\n]*", "", text)


def test_there_are_files_to_check() -> None:
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
def test_a_file_has_no_transaction_control(file: Path) -> None:
    outside = re.sub(r"\$\$.*?\$\$", "", code(file.read_text()), flags=re.DOTALL)
    assert re.findall(r"^\s*(begin|commit|rollback)\b", outside, re.MULTILINE) == []


@every_file
def test_a_backslash_means_the_same_with_every_setting(file: Path) -> None:
    """With standard_conforming_strings off, one in a plain literal begins an escape."""
    tokens = [it for it in TOKEN.findall(file.read_text()) if not it.startswith("--")]
    plain = [
        token
        for before, token in pairwise(tokens)
        if token.startswith("'") and "\\" in token and before.lower() != "e"
    ]
    assert plain == []


@every_file
def test_a_file_begins_with_its_header(file: Path) -> None:
    lines = file.read_text().splitlines()
    comment = lines[: next(n for n, line in enumerate(lines) if not line.startswith("--"))]
    assert re.fullmatch(r"-- [A-Z][A-Za-z ]+: .+", comment[0])
    assert not re.search(r"^-- (owns|writes|calls):", "\n".join(comment), re.MULTILINE)


@every_init_file
def test_the_header_names_the_errors_that_the_file_raises(file: Path) -> None:
    text = file.read_text()
    header, _, body = text.partition("\n\n")
    raised = set(re.findall(r"errcode = '(NQ\d+)'", body))
    assert raised - set(re.findall(r"NQ\d+", header)) == set()


def test_a_chapter_is_a_table_of_contents() -> None:
    for chapter in CHAPTERS[:-1]:
        lines = chapter.read_text().splitlines()
        assert re.fullmatch(r"-- [A-Z][a-z]+: .+\.", lines[0])
        folder = chapter.stem.partition("_")[2]
        assert all(line.startswith(f"\\ir {folder}/") for line in lines[1:]), chapter.name


def test_every_file_is_in_one_chapter() -> None:
    assert len(CHAPTERS) <= 16
    assert sorted(INIT_FILES) == sorted({*(ROOT / "db/init").rglob("*.sql")} - {*CHAPTERS[:-1]})


def test_no_two_files_define_the_same_function() -> None:
    counts = Counter(name for file in FILES for name in set(CREATED.findall(file.read_text())))
    assert [name for name, count in counts.items() if count > 1] == []


def test_a_function_is_defined_once_in_its_file() -> None:
    # A text of no type has no way to a function of any type; progress is reported and read.
    overloaded = {"messages.enqueue", "messages.progress"}
    for file in INIT_FILES:
        counts = Counter(it for it in CREATED.findall(file.read_text()) if it not in overloaded)
        assert [name for name, count in counts.items() if count > 1] == [], file.name


@every_init_file
def test_a_file_has_one_duty_and_is_not_long(file: Path) -> None:
    assert len(file.read_text().splitlines()) <= LONGEST


def test_every_select_names_its_columns() -> None:
    """An asterisk alone would change with a column; `alias.*` is a row of a named type."""
    for file in CODE_FILES:
        found = re.findall(r"select \*(?! from moved)", code(file.read_text()))
        assert found == [], file.name


def test_no_function_returns_a_table() -> None:
    """Its columns would be variables that collide with column names."""
    for file in INIT_FILES:
        assert "returns table" not in code(file.read_text()), file.name
