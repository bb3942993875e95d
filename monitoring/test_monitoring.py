"""Alerts and dashboard ask for metrics and labels that there are, as the scheduler's own test lists them."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml

HERE = Path(__file__).parent
LIST = HERE.parent / "scheduler/src/snapshots/omni_scheduler__metrics__tests__names_are_those_of_the_design.snap"
# What Prometheus adds to every sample.
TARGET = {"job", "instance"}


def known() -> dict[str, set[str]]:
    """Each series with its labels."""
    series: dict[str, set[str]] = defaultdict(set)
    for name, labels in re.findall(r"^(omni_\w+)(?:\{(.*)\})? \S+$", LIST.read_text(), re.M):
        series[name] |= set(re.findall(r'(\w+)="', labels))
    return dict(series)


def alerts() -> list[dict[str, Any]]:
    """All rules of the file."""
    return [rule for group in yaml.safe_load((HERE / "alerts.yaml").read_text())["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    """All that the dashboard shows."""
    return [panel for panel in json.loads((HERE / "dashboard.json").read_text())["panels"] if panel["type"] != "row"]


def expressions() -> list[Any]:
    """Every question to Prometheus, with a name for it."""
    asked = [(rule["alert"], rule["expr"]) for rule in alerts()]
    asked += [(panel["title"], target["expr"]) for panel in panels() for target in panel["targets"]]
    return [pytest.param(text.replace("$__rate_interval", "5m"), id=name) for name, text in asked]


def parts(node: Any) -> Iterator[Any]:
    """A node of an expression, and all below it."""
    yield node
    for name in ("expr", "lhs", "rhs", "param", "vector_selector", "vs"):
        below = getattr(node, name, None)
        if below is not None:
            yield from parts(below)
    for below in getattr(node, "args", None) or []:
        yield from parts(below)


def labels_of(node: Any) -> set[str]:
    """What the series below a node can be told apart by."""
    labels = set(TARGET)
    for part in parts(node):
        if isinstance(part, promql.VectorSelector):
            labels |= known().get(part.name, set())
    return labels


@pytest.mark.parametrize("text", expressions())
def test_it_asks_for_what_there_is(text: str) -> None:
    selectors = []
    for part in parts(promql.parse(text)):
        if isinstance(part, promql.VectorSelector):
            selectors.append(part.name)
            assert part.name == "up" or part.name in known(), part.name
            allowed = TARGET | known().get(part.name, set())
            assert {matcher.name for matcher in part.matchers.matchers} <= allowed, text
        elif isinstance(part, promql.AggregateExpr) and part.modifier is not None:
            assert set(part.modifier.labels) <= labels_of(part.expr), text
    assert selectors, text


def test_every_metric_is_on_the_dashboard() -> None:
    """Who adds a metric says where it is seen."""
    asked = " ".join(target["expr"] for panel in panels() for target in panel["targets"])
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in known()}
    assert {name for name in families if name not in asked} == set()


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: str(rule["alert"]))
def test_an_alert_says_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("page", "ticket")
    words = rule["annotations"]
    assert len(words["summary"]) < 120 and words["description"].endswith(".")
    # A label that the expression does not keep would be empty in the message.
    kept = labels_of(promql.parse(rule["expr"]))
    for part in parts(promql.parse(rule["expr"])):
        if isinstance(part, promql.AggregateExpr) and part.modifier is not None:
            kept &= set(part.modifier.labels)
    named = set(re.findall(r"\$labels\.(\w+)", " ".join(words.values())))
    assert named <= kept, rule["expr"]


def test_panels_do_not_lie_on_each_other() -> None:
    places = [panel["gridPos"] for panel in json.loads((HERE / "dashboard.json").read_text())["panels"]]
    cells = [(x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24
