"""The README's alert rules: of Prometheus' form, and about metrics that a gymserve really exposes."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import trio
import yaml
from counting import Counting
from prometheus_client.parser import text_string_to_metric_families
from stage import Stage, raise_the_curtain
from trio.testing import MockClock, wait_all_tasks_blocked

from gymserve.gridsim.faults import parse_fault
from gymserve.gridsim.server import EnvironmentServer

README = (Path(__file__).parent.parent / "README.md").read_text()
OPERATING = README.partition("\n## Operating it\n")[2].partition("\n## ")[0]

DURATION = re.compile(r"([0-9]+(ms|[smhdwy]))+")
TARGETS = {"job", "instance"}
"""Labels that every scraped sample has from Prometheus itself."""

METRIC = re.compile(r"\b(gymserve_[a-z_]+|up)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'([a-z_]+)\s*(?:=~|!~|!=|=)\s*"[^"]*"')
GROUPING = re.compile(r"\b(?:by|on)\s*\(([^)]*)\)")


def rule_files() -> list[Any]:
    blocks = re.findall(r"^```yaml\n(.*?)^```$", OPERATING, re.MULTILINE | re.DOTALL)
    return [document for document in map(yaml.safe_load, blocks) if "groups" in document]


def rules() -> list[dict[str, Any]]:
    [file] = rule_files()
    return [rule for group in file["groups"] for rule in group["rules"]]


@pytest.fixture(params=rules(), ids=lambda rule: rule["alert"])
def rule(request: Any) -> dict[str, Any]:
    return request.param


# -- their form (https://prometheus.io/docs/prometheus/latest/configuration/alerting_rules/) -------------------------


def test_the_file_has_groups_of_rules() -> None:
    [file] = rule_files()
    assert list(file) == ["groups"]
    for group in file["groups"]:
        assert list(group) == ["name", "rules"] and group["name"]
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names) == 9


def test_a_rule_has_what_prometheus_reads_and_says_what_to_do(rule: Mapping[str, Any]) -> None:
    assert list(rule) == ["alert", "expr", "for", "labels", "annotations"]
    assert re.fullmatch(r"Gymserve[A-Za-z]+", rule["alert"])
    assert isinstance(rule["for"], str) and DURATION.fullmatch(rule["for"])
    assert list(rule["labels"]) == ["severity"] and rule["labels"]["severity"] in ("critical", "warning")
    assert list(rule["annotations"]) == ["summary", "description"]
    assert all(isinstance(text, str) and text and "\n" not in text for text in rule["annotations"].values())


def test_parentheses_and_quotes_of_an_expression_are_closed(rule: Mapping[str, Any]) -> None:
    expression = rule["expr"]
    assert isinstance(expression, str)
    for opening, closing in ("()", "{}", "[]"):
        assert expression.count(opening) == expression.count(closing)
    assert expression.count('"') % 2 == 0


# -- what they are about ---------------------------------------------------------------------------------------------


async def scrape(stage: Stage) -> dict[str, set[str]]:
    """The labels of each sample, by its name, once everything has happened that is counted."""
    client = stage.client()
    await client.send("GET", "/gymserve/metrics")
    assert client.peer is not None
    exposed = (await client.peer.reply()).body.decode()
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(exposed):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    return labels


async def play(stage: Stage) -> None:
    """A rollout of each kind: verified, reclaimed though alive, masked, one that waits, one whose client leaves."""
    verified, reclaimed = stage.client(), stage.client()
    for client in (verified, reclaimed):
        await client.seed({"gymserve_label": "run"})
    await verified.step()
    waits, leaves = stage.client(), stage.client()
    for client in (waits, leaves):
        await client.send("POST", "/seed_session", {})
    await trio.sleep(20)
    await leaves.hang_up()
    await verified.verify()
    await waits.answer()
    await trio.sleep(200)
    await reclaimed.verify()
    for _ in range(3):
        await stage.client().send("POST", "/seed_session", {})
        await wait_all_tasks_blocked()


@pytest.fixture(scope="module")
def exposed() -> dict[str, set[str]]:
    async def play_and_scrape() -> dict[str, set[str]]:
        server = EnvironmentServer(Counting, capacity=2, faults=[parse_fault("slow-close:1")])
        async with raise_the_curtain(server, idle_timeout_seconds=100) as stage:
            await play(stage)
            return await scrape(stage)

    return trio.run(play_and_scrape, clock=MockClock(autojump_threshold=0))


def asked_of(expression: str) -> Iterator[tuple[str, set[str]]]:
    """The metrics of an expression, each with the labels that are asked of it by name."""
    for name, matchers in METRIC.findall(GROUPING.sub("", expression)):
        yield name, set(MATCHER.findall(matchers))


def grouped_by(expression: str) -> set[str]:
    return {label.strip() for labels in GROUPING.findall(expression) for label in labels.split(",")}


def test_every_metric_of_a_rule_is_exposed_with_the_labels_that_it_asks_for(exposed: dict[str, set[str]]) -> None:
    for rule in rules():
        metrics = [(name, labels) for name, labels in asked_of(rule["expr"]) if name != "up"]
        assert metrics or rule["expr"] == 'up{job="gymserve"} == 0'
        there = set().union(*(exposed[name] for name, _ in metrics)) if metrics else set()
        for name, labels in metrics:
            assert labels <= exposed[name], (rule["alert"], name)
        assert grouped_by(rule["expr"]) <= there | TARGETS, rule["alert"]


def test_annotations_name_labels_that_the_alert_has(exposed: dict[str, set[str]]) -> None:
    for rule in rules():
        expression = rule["expr"]
        named = set(re.findall(r"\$labels\.([a-z_]+)", " ".join(rule["annotations"].values())))
        first_grouping = re.search(r"\bby\s*\(([^)]*)\)", expression)
        if "sum by" in expression and not expression.startswith("gymserve_"):
            assert first_grouping is not None
            kept = {label.strip() for label in first_grouping[1].split(",")} - {"le"}
        else:
            kept = TARGETS.union(*(exposed.get(name, set()) for name, _ in asked_of(expression)))
        assert named <= kept, rule["alert"]


def test_the_section_names_no_metric_that_there_is_not(exposed: dict[str, set[str]]) -> None:
    named = set(re.findall(r"gymserve_[a-z_]+", OPERATING.replace("gymserve_label", ""))) - {"gymserve_"}
    families = {re.sub(r"_(bucket|count|sum)$", "", name) for name in exposed} | set(exposed)
    assert named - families == set()
    told = {name for name in families if not name.endswith(("_created", "_bucket", "_count", "_sum"))}
    assert told - named == set()  # and leaves none out


def test_metrics_and_labels_are_found_in_an_expression() -> None:
    expression = 'sum by (job, le) (rate(gymserve_a_bucket{env!="", b=~"x"}[5m])) > on (job) gymserve_b'
    assert list(asked_of(expression)) == [("gymserve_a_bucket", {"env", "b"}), ("gymserve_b", set())]
    assert grouped_by(expression) == {"job", "le"}
