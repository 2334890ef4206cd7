"""Reading a page of metrics as Prometheus does."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families


class Scrape:
    """The samples of one page."""

    def __init__(self, text: str) -> None:
        self.families = {it.name: it for it in text_string_to_metric_families(text)}
        self._samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for family in self.families.values():
            for sample in family.samples:
                key = sample.name, frozenset(sample.labels.items())
                assert key not in self._samples, f"{key} is there twice"
                self._samples[key] = sample.value

    def __call__(self, name: str, **labels: str) -> float:
        """Return the value of one sample."""
        return self._samples[name, frozenset(labels.items())]

    def of(self, name: str) -> Mapping[frozenset[tuple[str, str]], float]:
        """Return the values of all samples of this name, by their labels."""
        return {labels: it for (found, labels), it in self._samples.items() if found == name}

    @property
    def names(self) -> set[str]:
        """The names of all samples."""
        return {name for name, _ in self._samples}


def get(url: str, method: str = "GET") -> tuple[int, str]:
    """Return status and body."""
    request = urllib.request.Request(url, method=method)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def scrape(url: str) -> Scrape:
    """Read the metrics that are served there."""
    status, text = get(f"{url}/metrics")
    assert status == 200, text
    return Scrape(text)
