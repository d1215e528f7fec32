"""Parses the samples in a scrape of the metrics."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from packages.server.tests.frontends.http.asking import Reply, Web

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scraped(web: Web) -> Samples:
    return read(web.ask("GET", "/metrics"))


def read(reply: Reply) -> Samples:
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(reply.data.decode())
        for sample in family.samples
    }


def value_of(samples: Samples, metric: str, /, **labels: str) -> float:
    return samples[metric, frozenset(labels.items())]
