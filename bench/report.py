"""The results as tables, made from the file alone."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from .cases import CASES
from .results import METRICS, NOTIFYQ, Metric, Results

if TYPE_CHECKING:
    from collections.abc import Iterator


_NOTABLE = 1.05
"""How many times better a peer must be to be listed; less is noise."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table; the first cell of a row is a system."""

    title: str
    columns: list[str]
    rows: list[list[str]]


def machine_line(results: Results) -> str:
    """Describe machine and server in one line."""
    facts, settings = results.machine, results.settings
    shown = ", ".join(
        f"{name}={value}" for name, value in settings.items() if name != "server_version"
    )
    return (
        f"{facts['cpu']}, {facts['cores']} cores, {facts['ram']}, {facts['kernel']}; "
        f"PostgreSQL {settings['server_version']} ({shown}); Python {facts['python']}; "
        f"{results.options['rounds']} rounds, {results.started}"
    )


def tables(results: Results) -> Iterator[Table]:
    """Yield the tables of all cases: one for each metric, or one for a case with one variant."""
    for case in results.names("case"):
        variants = results.names("variant", case)
        metrics = _metrics(results, case)
        if len(variants) == 1:
            heads = [_head(name) for name in metrics]
            cells = [(variants[0], name) for name in metrics]
            yield _table(results, case, f"{case} ({variants[0]})", heads, cells)
            continue
        for name in metrics:
            cells = [(variant, name) for variant in variants]
            yield _table(results, case, f"{case}: {_head(name)}", variants, cells)


def _head(metric: str) -> str:
    return f"{METRICS[metric].label}, {METRICS[metric].unit}"


def _metrics(results: Results, case: str) -> list[str]:
    found = {name for sample in results.samples if sample.case == case for name in sample.values}
    return [name for name in METRICS if name in found]


def _table(
    results: Results, case: str, title: str, heads: list[str], cells: list[tuple[str, str]]
) -> Table:
    failed = results.failed(case)
    rows = [
        [system, *(cell(results, case, variant, system, metric) for variant, metric in cells)]
        for system in dict.fromkeys([*results.names("system", case), *failed])
    ]
    for row in rows:
        if count := failed.get(row[0]):
            row[0] += f", failed in {count} of {results.options['rounds']} rounds"
    if (baseline := _baseline(case)) != NOTIFYQ:
        title += f", divided by {baseline}"
    shown = [row for row in rows if any(row[1:]) or "failed" in row[0]]
    return Table(title, ["system", *heads], shown)


def _baseline(case: str) -> str:
    return CASES[case].baseline if case in CASES else NOTIFYQ


def cell(results: Results, case: str, variant: str, system: str, metric: str) -> str:
    """Return the text of a median, the spread of its rounds, and its ratio to the baseline's."""
    values = results.values(case, variant, system, metric)
    if not values:
        return ""
    shown = number(METRICS[metric], median(values))
    if len(values) > 1:
        least, most = (number(METRICS[metric], it(values)) for it in (min, max))
        shown += f" [{least} to {most}]"
    baseline = _baseline(case)
    ratio = results.ratio(case, variant, system, metric, baseline)
    return shown if ratio is None or system == baseline else f"{shown} ({ratio:.2f})"


def number(metric: Metric, value: float) -> str:
    """Return a value in the metric's unit, with three significant digits."""
    scaled = value * metric.scale
    return f"{scaled:,.0f}" if scaled >= 100 else f"{scaled:.3g}"


def lists(results: Results) -> dict[str, list[str]]:
    """Return lists of lines by heading; empty lists are left out."""
    measured = [CASES[name] for name in results.names("case") if name in CASES]
    lines = {
        "cases": [f"{case.name}: {case.title}" for case in measured],
        "where a peer is better (divided by notifyq's)": list(_better(results)),
        "systems": [f"{name} {about}" for name, about in results.systems.items()],
        "not run": [f"{name}: {reason}" for name, reason in results.not_run.items()],
        "failed": [
            f"{it.system}, {it.case}, round {it.round + 1}: {it.reason}" for it in results.failures
        ],
    }
    return {title: found for title, found in lines.items() if found}


def _better(results: Results) -> Iterator[str]:
    """Yield a line for each headline metric in which a peer is better."""
    for case in results.names("case"):
        for variant in results.names("variant", case):
            for name, metric in METRICS.items():
                if not metric.is_headline:
                    continue
                better = [
                    f"{system} {ratio:.2f}"
                    for system in results.names("system", case)
                    if not system.startswith((NOTIFYQ, "bare", "limit"))
                    and (ratio := results.ratio(case, variant, system, name)) is not None
                    and (ratio if metric.larger_is_better else 1 / max(ratio, 1e-9)) > _NOTABLE
                ]
                if better:
                    yield f"{case}, {variant}, {metric.label}: {', '.join(better)}"
