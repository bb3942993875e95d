"""Alerts and dashboard ask for metrics and labels that there are, as the scheduler's own test lists them."""

from __future__ import annotations

import json
import re
from bisect import bisect
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml

HERE = Path(__file__).parent
LIST = HERE.parent / "scheduler/admin/src/snapshots/omni_admin__metrics__tests__names_and_help_of_all_metrics.snap"
# Labels that Prometheus adds to every sample.
TARGET = {"job", "instance"}
# Series that the servers of models name themselves; their own `instance` is `exported_instance` in Prometheus.
ENGINE = "omni_engine_"


def known() -> dict[str, set[str]]:
    """Each series with its labels."""
    series: dict[str, set[str]] = defaultdict(set)
    for name, labels in re.findall(r"^(omni_\w+)(?:\{(.*)\})? \S+$", LIST.read_text(), re.M):
        series[name] |= set(re.findall(r'(\w+)="', labels))
    return dict(series)


def own_labels(name: str | None) -> set[str] | None:
    """Labels of a series but those of its target; `None`: there is none of this name."""
    if name is not None and name.startswith(ENGINE):
        return {"model"}
    return set() if name == "up" else known().get(name or "")


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
    """Labels that tell the series below a node apart."""
    labels = set(TARGET)
    for part in parts(node):
        if isinstance(part, promql.VectorSelector):
            labels |= own_labels(part.name) or set()
    return labels


@pytest.mark.parametrize("text", expressions())
def test_dashboard_queries_use_existing_metrics(text: str) -> None:
    selectors = []
    for part in parts(promql.parse(text)):
        if isinstance(part, promql.VectorSelector):
            selectors.append(part.name)
            labels = own_labels(part.name)
            assert labels is not None, part.name
            assert {matcher.name for matcher in part.matchers.matchers} <= TARGET | labels, text
        elif isinstance(part, promql.AggregateExpr) and part.modifier is not None:
            assert set(part.modifier.labels) <= labels_of(part.expr), text
    assert selectors, text


def test_every_metric_is_on_the_dashboard() -> None:
    """A metric that is added must be put on the dashboard."""
    asked = " ".join(target["expr"] for panel in panels() for target in panel["targets"])
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in known()}
    assert {name for name in families if name not in asked} == set()


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: str(rule["alert"]))
def test_alerts_name_a_remedy(rule: dict[str, Any]) -> None:
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


# Seconds from one scrape to the next.
SCRAPE = 15
# Starts that fail after half a minute, with the pauses of `scheduler/policy/src/backoff.rs`.
SLOW_FAILURES = [
    part for pause in (0, 0.5, 1, 2, 4, 8, 16, 32, *[60] * 10) for part in (("starting", 30), ("failed", pause))
]
# The states that a model is in, each with its seconds, and whether somebody is woken within that time.
STORIES = {
    "its content is refused": ([("failed", 600)], True),
    "setup dies after half a minute": (SLOW_FAILURES, True),
    "each start takes ten minutes and fails": ([("starting", 600), ("failed", 60)] * 3, True),
    "mended soon": ([("failed", 120), ("preparing", 60), ("starting", 60), ("ready", 1200)], False),
    "asked again and again without room": ([("failed", 30), ("stopped", 60)] * 20, False),
    "asked once without room": ([("failed", 30), ("stopped", 1200)], False),
    "stopped by hand": ([("failed", 240), ("draining", 10), ("stopped", 1200)], False),
    "removed": ([("failed", 240), ("gone", 1200)], False),
    "a long first start": ([("stopped", 60), ("preparing", 900), ("starting", 900), ("ready", 60)], False),
    "it serves": ([("ready", 1800)], False),
}


def vector(node: Any, scrapes: list[str], now: int) -> dict[str, float]:
    """Result of an expression over `omni_instances` of one model at a scrape, by state; once aggregated, one value.

    Prometheus is not here to ask: this knows the few parts that the alert is made of, and refuses others.
    """
    match node:
        case promql.VectorSelector():
            if scrapes[now] == "gone":
                return {}
            (wanted,) = node.matchers.matchers
            assert node.name == "omni_instances" and wanted.op in (promql.MatchOp.Equal, promql.MatchOp.Re)
            return {state: float(state == scrapes[now]) for state in wanted.value.split("|")}
        case promql.Call() if node.func.name == "max_over_time":
            (matrix,) = node.args
            first = max(0, now + 1 - int(matrix.range.total_seconds()) // SCRAPE)
            found = [vector(matrix.vector_selector, scrapes, at) for at in range(first, now + 1)]
            return {state: max(each[state] for each in found if each) for each in found for state in each}
        case promql.AggregateExpr() if str(node.op) == "max" and node.modifier.labels == ["instance", "model"]:
            values = vector(node.expr, scrapes, now).values()
            return {"": max(values)} if values else {}
        case promql.BinaryExpr() if str(node.op) == "and":
            right = vector(node.rhs, scrapes, now)
            return {state: value for state, value in vector(node.lhs, scrapes, now).items() if state in right}
        case promql.BinaryExpr() if str(node.op) in (">", "=="):
            holds = {">": float.__gt__, "==": float.__eq__}[str(node.op)]
            left = vector(node.lhs, scrapes, now)
            return {state: value for state, value in left.items() if holds(value, node.rhs.val)}
    raise AssertionError(f"not known here: {node}")


@pytest.mark.parametrize(("story", "wakes"), STORIES.values(), ids=STORIES)
def test_a_model_that_cannot_serve_pages_a_person(story: list[tuple[str, float]], wakes: bool) -> None:
    (rule,) = (rule for rule in alerts() if rule["alert"] == "OmniModelFailed")
    expression, patience = promql.parse(rule["expr"]), 60 * int(rule["for"].removesuffix("m"))
    ends = [sum(seconds for _, seconds in story[: count + 1]) for count in range(len(story))]
    scrapes = [story[bisect(ends, at)][0] for at in range(0, int(ends[-1]), SCRAPE)]
    holds = [bool(vector(expression, scrapes, now)) for now in range(len(scrapes))]
    fires = any(all(holds[now : now + patience // SCRAPE + 1]) for now in range(len(holds) - patience // SCRAPE))
    assert fires == wakes


def test_panels_do_not_overlap() -> None:
    places = [panel["gridPos"] for panel in json.loads((HERE / "dashboard.json").read_text())["panels"]]
    cells = [(x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24
