"""The docs say what the code does: generated parts are fresh, every public word has its line, every link and example holds."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from lakewarden.cli import docs
from lakewarden.config.schema import SETTINGS, Config
from lakewarden.errors import UsageError
from lakewarden.model.actions import (
    AgeFiles,
    Bin,
    DropPartition,
    HandOff,
    ManifestRewrite,
    MergeBuckets,
    ReleaseSnapshots,
    RewriteGroup,
    Source,
)
from lakewarden.model.files import Bucket, Manifest
from lakewarden.model.plan import Bounds, Plan, Skipped
from lakewarden.model.prices import PRICES, AgeCost, HandOffCost
from lakewarden.model.reason import Reason, ReasonKind
from lakewarden.model.run import Job, Owner, Run, RunState, Step, Trigger
from lakewarden.model.table import Counters, Ref, Snapshot, TableRef, TableView
from lakewarden.policy.keys import KEYS
from lakewarden.policy.resolve import Layers, resolve, validate
from tests.mutants import catalogue as mutants

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *DOCS.rglob("*.md")])

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
MOMENT = datetime(2026, 11, 16, tzinfo=UTC)
TABLE = TableRef("lake", ("db",), "events")


def page(name: str) -> str:
    return (DOCS / name).read_text("utf-8")


def names(pages: list[Path]) -> list[str]:
    return [str(each.relative_to(ROOT)) for each in pages]


# ------------------------------------------------------------ generated parts


def test_generated_parts_are_up_to_date() -> None:
    assert not names([each for each, _ in docs.stale(DOCS)]), "run `make docs`"


def test_every_part_is_on_a_page() -> None:
    text = "".join(each.read_text("utf-8") for each in DOCS.rglob("*.md"))
    missing = [name for name in docs.PARTS if f"<!-- generated:{name} -->" not in text]
    assert not missing
    assert text.count("<!-- generated:") == text.count("<!-- /generated -->")


def test_check_names_the_stale_page_and_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stale = tmp_path / "docs" / "errors.md"
    stale.parent.mkdir()
    old = "before\n<!-- generated:errors -->\nold\n<!-- /generated -->\nafter\n"
    stale.write_text(old, "utf-8")
    assert docs.main(["--check", "--folder", str(stale.parent)]) == 1
    assert "docs/errors.md" in capsys.readouterr().out
    assert stale.read_text("utf-8") == old

    assert docs.main(["--folder", str(stale.parent)]) == 0
    new = stale.read_text("utf-8")
    assert new.startswith("before\n") and new.endswith("after\n") and "CommitLost" in new
    assert docs.main(["--check", "--folder", str(stale.parent)]) == 0


def test_a_part_nobody_makes_is_an_error() -> None:
    with pytest.raises(UsageError, match="nosuch"):
        docs.fill("<!-- generated:nosuch -->\n<!-- /generated -->", "page.md")


# ------------------------------------------------------------ every word has its line


def test_every_command_has_its_section() -> None:
    text = page("cli.md")
    for name in docs._commands():
        assert f"\n### {name}\n" in text
    for code, _ in docs.EXIT_CODES:
        assert f"\n| {code} |" in text


def test_exit_codes_are_those_of_errors_and_states() -> None:
    told = {code for code, _ in docs.EXIT_CODES}
    raised = {kind.exit_code for kind in docs.error_classes()} | {state.exit_code for state in RunState}
    assert told == raised | {0}


def test_every_setting_has_its_line() -> None:
    text = page("configuration.md")
    for each in SETTINGS:
        assert f"| `[{each.section}]` | `{each.name}` |" in text


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
def test_every_policy_key_has_its_line(key: Any) -> None:
    lines = [line for line in page("policy.md").splitlines() if line.startswith(f"| `{key.name}` |")]
    assert len(lines) == 1
    used = key.name in docs.keys_in_use()
    assert lines[0].endswith("| yes |" if used else "| later |")


def test_a_key_is_called_acted_on_only_where_its_job_exists() -> None:
    jobs = {*Job, "the whole pass", "the commit hook", "the gateway"}
    for key in KEYS:
        assert (key.name in docs.keys_in_use()) == (docs.job_of(key) in jobs), key.name


def test_every_error_has_its_line() -> None:
    text = page("errors.md")
    defined = ast.parse((ROOT / "lakewarden/errors.py").read_text("utf-8")).body
    classes = [node.name for node in defined if isinstance(node, ast.ClassDef) and node.name[0] != "_"]
    classes.remove("Outage")  # an enumeration: which part an Unreachable is about
    assert set(classes) <= {kind.__name__ for kind in docs.error_classes()}
    for name in classes:
        assert f"\n| `{name}` |" in text


def test_every_state_and_job_is_explained() -> None:
    text = page("concepts.md")
    for state in RunState:
        assert f"| `{state}` |" in text
    for job in Job:
        assert f"**{job}**" in text


# ------------------------------------------------------------ the fields of --json


def view() -> TableView:
    head = Snapshot(2, 1, 2, MOMENT, "replace", {})
    return TableView(
        TABLE, "iceberg", 2, "u", "/t", "/m", 2, (head,), (Ref("main", "branch", 2),), 0, "{}",
        (), 0, (), 0, {}, Counters(1, 0, 1, 1, 1, 1),
    )  # fmt: skip


def plans() -> Iterator[Plan]:
    group = RewriteGroup(0, 0, "day=1", 0, 0, (Bin((Source("/a", 1, 1, 0, 1, 1, None),)),), "small files")
    fold = ManifestRewrite(0, 100, 1000, 1, "many")
    drop = DropPartition(0, 0, "day=1", 1, 1, 1, MOMENT, "old")
    merge = MergeBuckets(0, "dt=1", (Bucket("A", "dt=1", 0, 9, 9, 9, 9, 9, 0),), True, "many sorted runs")
    hand = HandOff((1,), "cold", 1, 1, 0, "they expire", HandOffCost(1, 1, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0))
    age = AgeFiles(1, 1, "DEEP_ARCHIVE", 1, AgeCost(1.0, 1.0, 1.0, 1.0), "old")
    for job, action in (
        (Job.HANDOFF, hand),
        (Job.HANDOFF, age),
        (Job.HANDOFF, ReleaseSnapshots((1,), 1, 1, 1.0, "past their retention")),
        (Job.COMPACT, group),
        (Job.REWRITE_MANIFESTS, fold),
        (Job.EXPIRE_PARTITIONS, drop),
        (Job.COMPACT, merge),
    ):
        skipped = (Skipped("file", 1, 1, Reason(ReasonKind.LARGE_ENOUGH, "large enough")),)
        yield Plan(job, TABLE, MOMENT, Bounds(2, "main", 1), "hash", "why", (action,), skipped)


def documents() -> Iterator[dict[str, Any]]:
    from lakewarden.cli.checks import AdoptReport, FsckReport
    from lakewarden.cli.demo import DemoPromise, DemoReport, Picture
    from lakewarden.cli.doctor import Check, DoctorReport
    from lakewarden.cli.migrate import MigrateReport
    from lakewarden.jobs.fsck.adopt_folder import Claim
    from lakewarden.jobs.fsck.findings import CheckCounts, Fault, Finding, FsckResult, Severity
    from lakewarden.report.plan import PlanReport
    from lakewarden.report.policy import PolicyReport
    from lakewarden.report.run import PassReport, RunReport, RunsReport
    from lakewarden.report.table import JobForecast, TableReport, TableRow, TablesReport
    from lakewarden.report.trash import ReceiptsReport, RestoreReport, TrashedReport
    from lakewarden.state.database import Migrated
    from lakewarden.state.trash_batches import (
        BatchFiles,
        BatchState,
        FileState,
        RestoreResult,
        Tally,
        TrashBatch,
        TrashedFile,
        TrashedList,
    )
    from lakewarden.tables.places import TableMetadataFile

    run = Run("r", str(TABLE), "compact", RunState.DONE, "", MOMENT, MOMENT, Owner("h", 1, 1.0), Trigger())
    plan = next(plans())
    yield from (PlanReport(each, "lakewarden run").to_dict() for each in plans())
    yield RunReport(run, (Step("r", 1, "writing", MOMENT, {}),)).to_dict()
    yield RunsReport((run,), MOMENT).to_dict()
    yield PassReport(str(TABLE), (run,)).to_dict()
    policy = PolicyReport(resolve(TABLE, Layers())).to_dict()
    yield {**policy, "keys": policy["keys"][:1]}
    yield TablesReport((TableRow.of(view()),), MOMENT).to_dict()
    manifest = Manifest("/m", 1, 0, "data")
    yield TableReport(view(), (manifest,), (JobForecast.of(plan),), MOMENT).to_dict()
    yield DoctorReport((Check("java", "ok", "17"),)).to_dict()
    batch = TrashBatch("r", str(TABLE), "u", "expire", "why", BatchState.ACTIVE, MOMENT, MOMENT)
    file = TrashedFile("/f", "data", 1, FileState.TRASHED, batch, "r", MOMENT, "")
    batch_files = BatchFiles(batch, {FileState.TRASHED: Tally(1, 1)})
    yield TrashedReport(str(TABLE), TrashedList(((batch_files, MOMENT),), (file,)), MOMENT).to_dict()
    yield RestoreReport(str(TABLE), RestoreResult(1, 1, 0, 0, 0)).to_dict()
    yield ReceiptsReport(str(TABLE), (file,), MOMENT).to_dict()
    yield MigrateReport(Migrated("sqlite", None, "0001")).to_dict()
    picture = Picture(1, 1, 1, 1, "c", 0.1, 1)
    proofs = (DemoPromise("rows", True, "equal"),)
    yield DemoReport(str(TABLE), "f", picture, picture, run, {}, proofs, (("a", "b"),)).to_dict()
    finding = Finding(Fault.MISSING_FILE, Severity.ERROR, "gone", "bring it back", 1, ("/a",), (2,))
    yield FsckReport(FsckResult(TABLE, MOMENT, 2, "/m", (finding,), CheckCounts(), False, 0.1)).to_dict()
    yield AdoptReport(Claim(TABLE, (TableMetadataFile("/m", "u", "/t"),), "ana", "r")).to_dict()
    yield UsageError(reason="wrong").to_dict()
    yield from holding()
    yield from tiering()
    yield from watching()
    yield from over_http()


def tiering() -> Iterator[dict[str, Any]]:
    from lakewarden.cli.tiers import RecallReport
    from lakewarden.jobs.cold.cost import TableCost, hand_off_cost, tier_cost
    from lakewarden.jobs.cold.locate import DEEP, SnapshotLocation, SnapshotQuestion
    from lakewarden.jobs.cold.recall import Recall
    from lakewarden.report.cost import CostReport
    from lakewarden.report.snapshot_location import WhereReport

    found = SnapshotLocation(SnapshotQuestion(snapshot_id=2), DEEP, TABLE, 2, MOMENT, "archived", MOMENT)
    yield WhereReport(str(TABLE), found).to_dict()
    done = Recall(found, 2, 1, 1, 1, 1, 0, MOMENT, None, 0.1)
    yield RecallReport(str(TABLE), done, MOMENT).to_dict()
    tier, next_ = tier_cost("live", [1], None, PRICES), hand_off_cost([1], None, None, PRICES)
    yield CostReport(TableCost(str(TABLE), (tier,), next_, 1)).to_dict()


def watching() -> Iterator[dict[str, Any]]:
    from datetime import timedelta

    from lakewarden.cli.health import FleetHealth, TableHealthReport, WhatIfReport
    from lakewarden.config.schema import HealthConfig
    from lakewarden.health import table_details as portrait
    from lakewarden.health.collect import Sweep
    from lakewarden.health.score import judge
    from lakewarden.health.what_if import replay
    from lakewarden.state.health import Numbers, Point, StoredWarning, TableHealth

    health = TableHealth(str(TABLE), "u", MOMENT, "v", 90, 1.0, Numbers())
    warned = (StoredWarning(str(TABLE), "small-files", "many", MOMENT),)
    yield FleetHealth((health,), warned, MOMENT, Sweep(1, 1, 0, 0, 0, 0, 0.1, 0.0)).to_dict()
    painted = portrait.TableDetails(
        "iceberg", 2, "/t", "/m", 1, 0,
        columns=(portrait.ColumnLine("id", "long"),),
        snapshots=(portrait.SnapshotLine(1, MOMENT, "append", "by hand"),),
        refs=(portrait.RefLine("main", "branch", 1),),
        holds=(portrait.HoldLine("pin", "p", "h"),),
        due=(portrait.DueLine("expire", True, "why"),),
        policy=(portrait.PolicyLine("k", "v", "default"),),
        partitions=(portrait.PartitionLine("d=1", 1, 1, 0, 1, 1),),
        score_parts=(portrait.PartLine("deletes", 20, 1.0, "some"),),
    )  # fmt: skip
    score = judge(Numbers(), HealthConfig())
    points = (Point(MOMENT, 90, Numbers()),)
    yield TableHealthReport(health, score, painted, warned, points, MOMENT).to_dict()
    old, new = (resolve(TABLE, Layers(call=call)) for call in ({}, {"snapshot_retention_hours": "1h"}))
    yield WhatIfReport(
        replay(str(TABLE), (), points, Numbers(), old, new, MOMENT - timedelta(days=1), MOMENT)
    ).to_dict()


def over_http() -> Iterator[dict[str, Any]]:
    from lakewarden.cli.servers import ConsoleReport
    from lakewarden.console.server import ConsoleAddress
    from lakewarden.state.audit_log import OperatorAction
    from lakewarden.state.health import Numbers, StoredWarning, TableHealth
    from lakewarden.state.locks import Lease
    from lakewarden.state.requests import PassRequest, RequestState
    from lakewarden.state.runs import ProgressPoint
    from lakewarden.state.schedule import Suspension, TableSchedule

    yield ConsoleReport(ConsoleAddress("a", True).to_dict()).to_dict()
    yield {**TableHealth(str(TABLE), "u", MOMENT, "1", 9, 0.1, Numbers()).to_dict(), "numbers": {}}
    yield StoredWarning(str(TABLE), "k", "t", MOMENT).to_dict()
    yield TableSchedule(str(TABLE), "pass").to_dict()
    yield Suspension(str(TABLE), MOMENT, "r", "b").to_dict()
    yield Lease("worker", 1, "t", "h", 1, MOMENT, MOMENT, {}, True, 1.0).to_dict()
    yield OperatorAction(MOMENT, "w", "r", "a", "t", "done").to_dict()
    yield ProgressPoint("w", 1, 2, "n", MOMENT).to_dict()
    asked = PassRequest(
        "r", str(TABLE), RequestState.PENDING, Trigger(), MOMENT, MOMENT, None, None, None, (), ""
    )
    yield asked.to_dict()


def holding() -> Iterator[dict[str, Any]]:
    from datetime import timedelta

    from lakewarden.cli.servers import GatewayReport
    from lakewarden.gateway.server import GatewayAddress
    from lakewarden.model.hold import Hold, HoldKind
    from lakewarden.report.holds import (
        HeartbeatsReport,
        HoldsReport,
        LoadReport,
        PinReport,
        PinsReport,
        TagReport,
    )
    from lakewarden.state.holds import Heartbeat, Load, LoadState, Pin

    pin = Pin("p", str(TABLE), "u", 2, "h", "", MOMENT)
    yield HoldsReport(str(TABLE), (Hold(HoldKind.PIN, "p", "h"),), MOMENT).to_dict()
    yield GatewayReport(GatewayAddress("a", "c", "u")).to_dict()
    yield PinsReport((pin,), MOMENT).to_dict()
    yield PinReport(pin, MOMENT).to_dict()
    yield TagReport(str(TABLE), "t", (Ref("t", "tag", 2),)).to_dict()
    beat = Heartbeat(str(TABLE), "w", "h", MOMENT, MOMENT, timedelta(minutes=1))
    yield HeartbeatsReport(str(TABLE), (beat,), MOMENT).to_dict()
    yield LoadReport(Load("l", str(TABLE), "u", "h", "", LoadState.OPEN, (), (), MOMENT), MOMENT).to_dict()


def fields(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, each in value.items():
            yield name
            yield from fields(each)
    elif isinstance(value, list):
        for each in value:
            yield from fields(each)


def test_every_field_of_json_is_in_the_contract() -> None:
    told = set(re.findall(r"`([a-z_]+)`", page("json.md")))
    printed = {name for document in documents() for name in fields(document)}
    assert printed <= told | {"tables", "runs"}, printed - told


def test_every_counter_is_in_the_contract() -> None:
    from lakewarden.jobs.compact.result import _counters
    from lakewarden.jobs.purge.execute import PurgeCounts

    told = set(re.findall(r"`([a-z_]+)`", page("json.md")))
    assert set(_counters([])) <= told
    assert set(PurgeCounts().counters()) <= told


# ------------------------------------------------------------ links and examples


def anchors(text: str) -> set[str]:
    """As GitHub makes them of headings."""
    return {re.sub(r"[^\w\- ]", "", each.strip().lower()).replace(" ", "-") for each in HEADING.findall(text)}


@pytest.mark.parametrize("name", names(PAGES))
def test_every_link_leads_somewhere(name: str) -> None:
    here = ROOT / name
    text = FENCE.sub("", here.read_text("utf-8"))
    for link in LINK.findall(text):
        if link.startswith(("https://", "http://")):
            continue
        path, _, anchor = link.partition("#")
        target = (here.parent / path).resolve() if path else here
        assert target.exists(), f"{name} links to {link}"
        if anchor:
            assert anchor in anchors(target.read_text("utf-8")), f"{name} links to {link}"


def examples(language: str) -> list[tuple[str, str]]:
    return [
        (str(each.relative_to(ROOT)), body)
        for each in PAGES
        for kind, body in FENCE.findall(each.read_text("utf-8"))
        if kind == language
    ]


@pytest.mark.parametrize(("name", "text"), examples("toml"))
def test_every_configuration_example_loads(name: str, text: str, tmp_path: Path) -> None:
    tomllib.loads(text)
    file = tmp_path / "lakewarden.toml"
    file.write_text(text, "utf-8")
    # Each its own and long: tokens have to be.
    variables = {each: f"filled-for-{each}" for each in re.findall(r"\$\{(\w+)\}", text)}
    config = Config.load(file, variables)
    validate(config.policy)
    layers = Layers.of(config.policy)
    for pattern in ["lake.db.events", *(pattern.replace("*", "x") for pattern, _ in config.policy.patterns)]:
        resolve(TableRef.parse(pattern), layers)
    assert "filled" not in str(config), f"a secret of {name} is shown"


@pytest.mark.parametrize(("name", "text"), examples("python"))
def test_every_python_example_parses(name: str, text: str) -> None:
    if f"\n```python\n{text}```" in docs.api():
        return  # a signature, not a program
    try:
        ast.parse(text)
    except SyntaxError:
        assert f"```python\n{text}```" in docs.api(), f"{name}: {text}"


@pytest.mark.parametrize(("name", "text"), examples(""))
def test_every_command_in_an_example_exists(name: str, text: str) -> None:
    known = set(docs._commands())
    for line in text.splitlines():
        found = re.match(r"(?:\$ )?(?:\.venv/bin/)?lakewarden (?:--config \S+ )?([a-z][a-z-]*)", line.strip())
        assert found is None or found[1] in known, f"{name}: {line}"


def test_every_make_target_in_the_docs_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    for each in PAGES:
        text = each.read_text("utf-8")
        named = {*re.findall(r"^make ([a-z-]+)", text, re.MULTILINE), *re.findall(r"`make ([a-z-]+)", text)}
        assert named <= targets, f"{each.name}: {named - targets}"


# ------------------------------------------------------------ what must not be committed

# Split, so that this file does not name them itself.
HOSTS = (
    "py" + "pi.org",
    "pythonhosted" + ".org",
    "repo1.maven" + ".org",
    "repo.maven" + ".apache",
    "registry.npm" + "js",
)
PATHS = ("/ro" + "ot/", "/home" + "/", "/wo" + "rk/", "/Us" + "ers/")


def committed() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / each for each in listed.stdout.split("\0") if each and (ROOT / each).is_file()]


def test_no_committed_file_names_a_registry_or_a_machine() -> None:
    found = []
    for path in committed():
        text = path.read_bytes().decode("utf-8", "replace")
        found += [
            f"{path.relative_to(ROOT)}: {word}"
            for word in (*HOSTS, *PATHS)
            if re.search(rf"(?<![\w.]){re.escape(word)}", text)
        ]
    assert not found


def test_every_mutant_can_be_put_back_and_stands_on_the_safety_page() -> None:
    every = mutants.mutants()
    assert mutants.faults(every) == []
    page = mutants.PAGE.read_text("utf-8")
    assert mutants.filled(page, every) == page, "run `python -m tests.mutants --docs`"


def test_two_mutants_never_make_the_same_change() -> None:
    first, *rest = mutants.mutants()
    one = next(each for each in rest if each.name == "a page with a wrong checksum is copied")
    again = replace(one, subject="other", name="the same under another name", test=first.test)
    assert mutants.faults([one, again]) == [f"{again.name}: makes the same change as {one.name}"]
    assert mutants.faults([one, replace(again, replace="    if not body:")]) == []


@pytest.mark.parametrize(
    ("code", "reason"), [("if nothing_of_that_name:", "Undefined name"), ("if (:", "Expected")]
)
def test_a_mutant_that_only_crashes_is_refused(code: str, reason: str) -> None:
    """A test that is red because of a NameError says nothing of what it asserts."""
    one = next(each for each in mutants.mutants() if each.name == "a page with a wrong checksum is copied")
    found = mutants.faults([replace(one, replace=f"    {code}")])
    assert found and all(each.startswith(f"{one.name}: would only crash: ") for each in found)
    assert reason in found[0]


# ------------------------------------------------------------ promises


def promises() -> list[str]:
    """What README and safety.md promise, each by its opening words."""
    readme = section("README.md", "What it never does")
    never = [re.split("[:.]", each, maxsplit=1)[0] for each in re.findall(r"^- (.+)", readme, re.MULTILINE)]
    sure = re.findall(r"^\*\*(.+?)\.?\*\*", section("docs/safety.md", "What is guaranteed"), re.MULTILINE)
    assert len(never) >= 7 and len(sure) >= 7
    return [*never, *sure]


def section(path: str, title: str) -> str:
    text = (ROOT / path).read_text("utf-8")
    return re.split(r"^## ", text.split(f"## {title}\n")[1], maxsplit=1, flags=re.MULTILINE)[0]


def test_every_promise_names_tests_that_exist() -> None:
    rows = re.findall(
        r"^\| (.+?) \| (`.+`) \|$", section("docs/safety.md", "Each promise and its tests"), re.MULTILINE
    )
    assert sorted(promise for promise, _ in rows) == sorted(promises())
    for promise, tests in rows:
        for path, name in (each.split("::") for each in re.findall("`(.+?)`", tests)):
            tree = ast.parse((ROOT / "tests" / path).read_text("utf-8"))
            found = {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}
            assert name in found, f"{promise}: {path} has no {name}"
