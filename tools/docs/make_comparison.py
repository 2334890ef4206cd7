"""Make the table of comparison.md from features.toml, where each value has its source.

python tools/docs/make_comparison.py
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "docs/coming-from"
PAGE = FOLDER / "comparison.md"
_BEGIN, _END = "<!-- made by tools/docs/make_comparison.py -->\n", "<!-- end -->\n"


def data() -> dict[str, Any]:
    """Return the features by id, and the systems."""
    return tomllib.loads((FOLDER / "features.toml").read_text(encoding="utf-8"))


def render() -> str:
    """Return the text of comparison.md with the present data."""
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    _, _, tail = rest.partition(_END)
    features, systems = data()["features"], data()["system"]
    parts = [
        _table(
            ["", *features.values()],
            [[_link(it), *(it.get(id_, [""])[0] for id_ in features)] for it in systems],
        ),
        "## Where they are better\n",
        "\n".join(f"- **{it['name']}**: {it['better']}" for it in systems if "better" in it) + "\n",
        "## Sources\n",
        "Files of each project, or pages of this one, that were read for its line.\n",
        _table(
            ["system", "version", "licence", "read in"],
            [[it["name"], it["version"], it["licence"], _sources(it, features)] for it in systems],
        ),
    ]
    return head + _BEGIN + "\n" + "\n".join(parts) + _END + tail


def _link(system: dict[str, Any]) -> str:
    return f"[{system['name']}]({system['page']})"


def _sources(system: dict[str, Any], features: dict[str, str]) -> str:
    files = dict.fromkeys(system[id_][1] for id_ in features if id_ in system)
    return ", ".join(
        f"[{Path(it).stem}]({it})" if it.startswith("../") else f"`{it}`" for it in files
    )


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines).replace("  ", " ")


def main() -> None:
    """Write comparison.md."""
    PAGE.write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    main()
