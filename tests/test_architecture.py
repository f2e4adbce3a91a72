"""The shape of the code: which way imports point, who may delete, who asks the time."""

from __future__ import annotations

import ast
import inspect
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from lakewarden.model.run import Job
from tests.support import purity

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "lakewarden"

# From top to bottom. A module may import its own layer and those below it; names in one row are one layer.
LAYERS = (
    ("cli",),
    ("console",),
    ("worker", "report"),
    ("client",),
    ("services",),
    ("lake", "gateway"),
    ("http_server",),
    ("health",),
    ("jobs",),
    ("deletion",),
    ("rewrite",),
    ("spark", "storage"),
    ("tables",),
    ("policy", "lineage"),
    ("state",),
    ("config",),
    ("model",),
    ("errors", "clock", "formatting", "redact", "version", "rate_limit"),
)
DEPTH = {name: depth for depth, names in enumerate(LAYERS) for name in names}

ASKS_THE_TIME = re.compile(
    r"(datetime|date)\.(now|utcnow|today)$"
    r"|time\.(time|time_ns|monotonic|monotonic_ns|perf_counter|perf_counter_ns|localtime|gmtime|sleep)$"
)
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")


def modules() -> list[str]:
    """Every module as a dotted name; migrations are numbered scripts of their own."""
    files = sorted(PACKAGE.rglob("*.py"))
    return [name_of(each) for each in files if "versions" not in each.parts]


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def path_of(module: str) -> Path:
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(path_of(module).read_text("utf-8"))


def imports(module: str) -> Iterator[str]:
    """Every lakewarden module it imports: at the top, inside functions, and for type checking."""
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "lakewarden")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively: write the whole name"
            source = node.module or ""
            if source == "lakewarden" or source.startswith("lakewarden."):
                yield from (f"{source}.{alias.name}" for alias in node.names)


def part(module: str) -> str:
    """The folder or file right below the package that a module belongs to."""
    names = module.split(".")
    return names[1] if len(names) > 1 else ""


def dotted(node: ast.AST) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name):
            return f"{dotted(value)}.{name}"
        case _:
            return ""


def calls(module: str) -> Iterator[str]:
    return (dotted(node.func) for node in ast.walk(tree_of(module)) if isinstance(node, ast.Call))


def test_every_part_has_its_layer() -> None:
    found = {part(module) for module in modules()} - {""}
    assert found == set(DEPTH), "a new folder or file needs its row in LAYERS and in CONTRIBUTING.md"


def test_no_modules_import_each_other() -> None:
    """When they are loaded; an import inside a function, or for types only, may point back."""
    known = set(modules())
    graph = {
        module: {_module_of(target, known) for target in loaded_with(module)} - {module} for module in known
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def loaded_with(module: str) -> Iterator[str]:
    """What it imports at its top level."""
    for node in tree_of(module).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "lakewarden":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _module_of(target: str, known: set[str]) -> str:
    return target if target in known else target.rpartition(".")[0]


def test_the_layers_are_those_of_contributing() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    table = text.split("| layer | contents |")[1].split("\n\n")[0]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    told = tuple(tuple(re.findall(r"`([a-z_]+)`", row.split("|")[1])) for row in rows)
    assert told == LAYERS


def upward(mine: str, targets: Iterable[str]) -> list[str]:
    """Targets that are neither in the same layer nor below it. A name no layer has, such as one the package hands out, counts as above."""
    return [each for each in targets if part(each) and DEPTH.get(part(each), -1) < DEPTH[mine]]


@pytest.mark.parametrize("module", modules())
def test_imports_point_downward(module: str) -> None:
    if not part(module):
        return  # the package itself hands out its public names, loaded when first used
    found = upward(part(module), imports(module))
    assert not found, f"{module} imports what is above it: {found}"


def test_the_rule_bites() -> None:
    assert upward("tables", ["lakewarden.spark.tasks.cancel"])
    assert upward("model", ["lakewarden.state.runs.Journal"])
    assert upward("jobs", ["lakewarden.Lakewarden"])
    assert not upward(
        "jobs", ["lakewarden.deletion.erase.erase", "lakewarden.jobs.compact.plan.plan", "lakewarden.clock"]
    )


def test_reports_are_used_by_what_shows_them_only() -> None:
    users = {module for module in modules() if any(part(target) == "report" for target in imports(module))}
    assert {part(module) for module in users} <= {"cli", "console", "report"}


def test_a_report_of_one_command_stands_beside_it() -> None:
    """In report/ is only what the console shows too, or several commands."""
    for report in (each for each in modules() if part(each) == "report" and each.count(".") == 2):
        users = {each for each in modules() if report in set(imports(each)) | sources(each)} - {report}
        commands = {each for each in users if part(each) == "cli"}
        assert len(commands) > 1 or any(part(each) in ("console", "report") for each in users), (
            f"only {', '.join(commands)} uses {report}: put it there"
        )


def sources(module: str) -> set[str]:
    """Modules that it imports names from."""
    return {target.rpartition(".")[0] for target in imports(module)}


def test_the_command_line_has_at_most_25_modules() -> None:
    assert len(list((PACKAGE / "cli").glob("*.py"))) <= 25


# Parts of rewrite/ that run in the driver. Everything else there is a kernel.
OF_THE_DRIVER = {
    f"lakewarden.rewrite.{name}"
    for name in ("arrow", "native", "interface", "shuffle", "output_names", "metadata.bulk")
}


def test_kernels_stand_alone() -> None:
    """They run in Spark's workers, thousands of times: nothing of the driver is loaded there."""
    kernels = [
        each for each in modules() if each.startswith("lakewarden.rewrite.") and each not in OF_THE_DRIVER
    ]
    kernels += ["lakewarden.storage.s3_connection", "lakewarden.storage.s3_copy", "lakewarden.rate_limit"]
    for module in kernels:
        own = (*(f"{each}." for each in kernels), "lakewarden.model.location.", "lakewarden.model.files.")
        foreign = [each for each in imports(module) if not f"{each}.".startswith(own)]
        assert not foreign, f"{module} imports {foreign}"


# Each asks deletion/permit.py for the leave it needs.
MAY_ERASE = {"lakewarden.jobs.compact.cleanup", "lakewarden.jobs.purge.execute"}


def test_only_these_erase() -> None:
    callers = {
        module for module in modules() if any(each.split(".")[-1] == "erase" for each in calls(module))
    }
    importers = {
        module
        for module in modules()
        if any(each == "lakewarden.deletion.erase.erase" for each in imports(module))
    }
    assert callers == importers
    assert callers <= MAY_ERASE


# The kinds of store behind `Objects`.
STORES = {
    f"lakewarden.storage.{name}"
    for name in (
        "interface",
        "arrow",
        "cloud",
        "local",
        "s3",
        "s3_client",
        "s3_delete",
        "s3_listing",
        "s3_stat",
    )
}


def test_only_erase_removes_what_a_path_names() -> None:
    """Beside `erase` and the stores it acts on, only a kernel that failed removes the file it was itself writing."""
    deletes = re.compile(
        r"(^|\.)(remove|delete_files?|delete_dir|delete_dir_contents|delete_objects?)$|\.delete$|^os\.unlink$"
    )
    of_rows = {"self.pins.remove"}  # forgets a pin of the state database
    found = {
        module
        for module in modules()
        if any(deletes.search(each) for each in calls(module) if each not in of_rows)
    }
    of_lists = {"lakewarden.spark.jars"}  # takes a resolver out of Ivy's list
    kernels = {"lakewarden.rewrite.read.store", "lakewarden.rewrite.write.output"}
    assert found - of_lists - STORES == {"lakewarden.deletion.erase", "lakewarden.storage.objects", *kernels}
    own = [each for each in calls("lakewarden.rewrite.write.output") if deletes.search(each)]
    assert own == ["reading.store.remove"]


def test_stores_are_reached_through_objects_only() -> None:
    """So that whoever deletes on a store is `Objects.delete`, which only `erase` calls; an archive is asked, and loses nothing."""
    users = {
        module
        for module in modules()
        if any(f"{each}.".startswith(tuple(f"{store}." for store in STORES)) for each in imports(module))
    }
    assert users - STORES == {"lakewarden.storage.objects", "lakewarden.storage.archive"}
    assert not [each for each in calls("lakewarden.storage.archive") if "delete" in each]


# A scheme in a text says that somebody takes paths apart, or compares them, by hand.
SCHEMES = re.compile(r"^\^?((s3|s3a|s3n|gs|gcs|hdfs|viewfs|abfss?|wasbs?)(:/*)?|file:/*)$")
# Who asks what kind of store there is, and compares no paths: where each library is named, and a catalog's own property.
SAYS_A_SCHEME = {
    "lakewarden.storage.objects": {"s3"},  # the kinds of stores
    "lakewarden.storage.s3_connection": {"s3"},  # botocore's name of the service
    "lakewarden.storage.s3_client": {"s3"},
    "lakewarden.tables.paimon.errors": {"s3"},  # the one scheme that Paimon's own jar takes
    "lakewarden.jobs.compact.binpack": {"gs", "abfs", "abfss"},  # the stores that kernels open
    "lakewarden.jobs.sweep.execute": {"s3://"},  # S3's inventories name bucket and key
    "lakewarden.lake": {"s3"},  # a group of jars
    "lakewarden.spark.jars": {"s3"},
}
TAKES_PATHS_APART = re.compile(
    r"(^|\.)(normpath|realpath|samefile|commonpath|commonprefix|relpath|urlparse|urlsplit)$"
)
# URLs of servers, which name no file of a table; and folders of this machine that are removed by their real names.
TAKES_APART = {
    "lakewarden.console.auth",
    "lakewarden.console.pages.routes",
    "lakewarden.jobs.quiet_windows",
    "lakewarden.gateway.request_kind",
    "lakewarden.storage.local",
    "lakewarden.storage.s3",  # the shortest prefix that a page of S3's listing can be asked for
}


def scheme_literals(tree: ast.AST) -> set[str]:
    texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return {each for each in texts if isinstance(each, str) and SCHEMES.search(each)}


def is_folder(argument: ast.expr) -> bool:
    """Whether a text is put together to end in a slash, as a folder does, or has a part behind one."""
    match argument:
        case ast.JoinedStr(values=[*_, ast.Constant(value=str(end))]):
            return "/" in end
        case ast.BinOp(op=ast.Add(), right=ast.Constant(value=str(end))):
            return "/" in end
    return False


def path_comparisons(tree: ast.AST) -> list[str]:
    """Prefixes of folders put together by hand: `.startswith(folder + "/")`, `.startswith(f"{folder}/")`, two normal forms
    held against each other, and paths that begin with what only a spelling has."""
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="startswith" | "removeprefix"), args=[argument, *_]):
                text = ast.unparse(argument)
                if "normal(" in text or ".location" in text or ".rstrip(" in text or is_folder(argument):
                    found.append(ast.unparse(node))
            case ast.Compare(left=left, ops=[ast.Eq() | ast.NotEq()], comparators=[right]):
                told = [ast.unparse(each) for each in (left, right)]
                if any(re.search(r"\.(metadata_)?location$", each) for each in told) or all(
                    re.search(r"\bnormal\(", each) for each in told
                ):
                    found.append(ast.unparse(node))
    return found


@pytest.mark.parametrize("module", modules())
def test_only_location_compares_and_normalises_paths(module: str) -> None:
    if module == "lakewarden.model.location":
        return
    tree = tree_of(module)
    schemes = scheme_literals(tree) - SAYS_A_SCHEME.get(module, set())
    assert not schemes, f"{module} knows {schemes}: ask lakewarden.model.location"
    if module not in TAKES_APART:
        asked = [each for each in calls(module) if TAKES_PATHS_APART.search(each)]
        assert not asked, f"{module} calls {asked}: ask lakewarden.model.location"
    compared = [] if module in TAKES_APART else path_comparisons(tree)
    assert not compared, f"{module} compares paths as text: {compared}; make Locations of them"


def test_the_rule_about_paths_bites() -> None:
    by_hand = 'path.startswith("file:"), scheme in ("s3a", "s3n"), re.match("^s3:/", path)'
    assert scheme_literals(ast.parse(by_hand)) == {"file:", "s3a", "s3n", "^s3:/"}
    assert path_comparisons(ast.parse("path.startswith(view.location.rstrip('/') + '/')"))
    assert path_comparisons(ast.parse("one.location == other.location"))
    for text in (
        'path.startswith(f"{folder}/")',
        'path.removeprefix(folder + "/data")',
        "normal(a) == normal(b)",
    ):
        assert path_comparisons(ast.parse(text)), text


def test_java_compares_no_spellings() -> None:
    """The helpers hand paths on as the library spells them. Which are one file is asked in Python."""
    by_hand = re.compile(
        r'"(file|s3a?|hdfs|viewfs):|java\.net\.URI|\.toUri\(|(location|path)\w*(\(\))?\.(startsWith|equalsIgnoreCase)\('
    )
    for source in sorted(PACKAGE.rglob("*.java")):
        found = [line.strip() for line in source.read_text("utf-8").splitlines() if by_hand.search(line)]
        assert not found, f"{source.name}: {found}"


# What people read. Attributes of these names, and locals made of them, decide nothing.
PROSE = frozenset({"reason", "text", "message", "kept", "note", "sentence", "trouble", "engine_reason"})
ASKS_A_TEXT = frozenset(
    {"startswith", "endswith", "find", "index", "count", "replace", "partition", "rpartition"}
    | {"removeprefix", "removesuffix", "search", "match", "fullmatch"}
)
TWO_WORDS = re.compile(r"[A-Za-z]\w* \w*[A-Za-z]")
# Sentences that others write, matched where they have no class or code of their own; and texts that are no reasons.
NOT_OUR_PROSE = {
    "lakewarden.cli": {"Value error, ", "No such option: --config"},  # Typer and pydantic
    "lakewarden.spark.jars": {"SERVER ERROR"},  # Ivy
    "lakewarden.spark.session": {  # py4j
        "KeyboardInterrupt while sending command.",
        "Exception while sending command.",
    },
    "lakewarden.spark.tasks": {"Traceback (most recent call last):", "_DIED"},  # Python, Spark
    "lakewarden.state.database": {"not a database"},  # SQLite
    "lakewarden.tables.iceberg.commit": {"_CAME_FIRST"},  # Iceberg
    "lakewarden.tables.iceberg.partitions": {"_GONE"},  # Iceberg
    "lakewarden.tables.paimon.errors": {"Status Code: 400"},  # the AWS client in Paimon's jar
    "lakewarden.rewrite.read.footer": {"_OTHER_SHAPES", "_STORE"},  # Arrow
    "lakewarden.health.build_table_details": {" NOT NULL", "NOT NULL"},  # how Paimon writes a type
    "lakewarden.config.load": {"list of"},  # a setting's type
    "lakewarden.console.pages.render": {" in the future"},  # shortens a text, decides nothing
    "lakewarden.jobs.fsck.manifests": {"manifest list"},  # a kind
    "lakewarden.tables.metadata_walk": {"manifest list"},
}


def texts_of(node: ast.AST | None) -> list[str]:
    """The literal texts of an expression that is nothing but those: one, several, or with values between."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.Tuple(elts=parts) | ast.Set(elts=parts) | ast.List(elts=parts) | ast.JoinedStr(values=parts):
            return [text for each in parts for text in texts_of(each)]
        case ast.Call(func=ast.Attribute(attr="compile") | ast.Name(id="frozenset"), args=[first, *_]):
            return texts_of(first)
        case _:
            return []


@cache
def own_constants(module: str) -> dict[str, list[str]]:
    """Texts by the name of the module's constant that holds them."""
    found: dict[str, list[str]] = {}
    for node in tree_of(module).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if texts_of(value):
                found[name] = texts_of(value)
            case ast.AnnAssign(target=ast.Name(id=name), value=value) if texts_of(value):
                found[name] = texts_of(value)
    return found


def constants_of(module: str) -> dict[str, list[str]]:
    """The same with those it imports."""
    found = dict(own_constants(module))
    for node in tree_of(module).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lakewarden."):
            source = str(node.module)
            told = own_constants(source) if path_of(source).exists() else {}
            found |= {each.asname or each.name: told[each.name] for each in node.names if each.name in told}
    return found


def is_prose(node: ast.AST, locals_: Iterable[str] = ()) -> bool:
    """Whether an expression is made of what people read: `line.kept.lower()`, or a local that was."""
    names = set(locals_)
    match node:
        case ast.Attribute(attr=name):
            return name in PROSE
        case ast.Name(id=name):
            return name in names
        case ast.Call(func=ast.Attribute(attr="lower" | "strip" | "casefold" | "split", value=inner)):
            return is_prose(inner, names)
        case ast.Call(func=ast.Name(id="str"), args=[inner]):
            return is_prose(inner, names)
        case _:
            return False


def prose_locals(function: ast.AST) -> set[str]:
    return {
        target.id
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and is_prose(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def asked_texts(tree: ast.AST) -> Iterator[tuple[list[ast.expr], list[ast.expr]]]:
    """Everything that looks into a text or compares one: what is looked into, and what it is held against."""
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left=left, ops=ops, comparators=others):
                if any(isinstance(each, ast.Eq | ast.NotEq | ast.In | ast.NotIn) for each in ops):
                    yield [left, *others], [left, *others]
            case ast.Call(func=ast.Attribute(attr=name, value=value), args=args) if name in ASKS_A_TEXT:
                yield [value, *args], [value, *args]
            case ast.Match(subject=subject, cases=cases):
                found = [each for case in cases for each in ast.walk(case.pattern)]
                yield [subject], [each.value for each in found if isinstance(each, ast.MatchValue)]


def decisions_on_prose(tree: ast.AST, constants: Mapping[str, list[str]]) -> set[str]:
    """Literals or constants that a sentence is searched for, or that are sentences and compared with something."""
    found: set[str] = set()
    functions = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    for scope in [tree, *functions]:
        locals_ = set() if scope is tree else prose_locals(scope)
        for looked_into, against in asked_texts(scope):
            sentence = any(is_prose(each, locals_) for each in looked_into)
            for each in against:
                name = each.id if isinstance(each, ast.Name) else ""
                for text in texts_of(each) or constants.get(name, []):
                    if text and (sentence or TWO_WORDS.search(text)):
                        found.add(name or text)
    return found


@pytest.mark.parametrize("module", modules())
def test_no_decision_is_made_on_prose(module: str) -> None:
    """`Reason.kind`, the class of an error or a field decides. A sentence may be rewritten at any time."""
    if module == "lakewarden.policy.filters":
        return  # the texts there are tokens
    found = decisions_on_prose(tree_of(module), constants_of(module)) - NOT_OUR_PROSE.get(module, set())
    assert not found, f"{module} looks for {found} in a text: give the reason a kind, and ask that"


def test_the_exceptions_about_prose_are_needed() -> None:
    for module, texts in NOT_OUR_PROSE.items():
        assert texts <= decisions_on_prose(tree_of(module), constants_of(module)), module


def test_the_rule_about_prose_bites() -> None:
    for code in (
        'line.kept.startswith("inside the window")',
        'any(word in error.message for word in WORDS) or "tag" in line.kept.lower()',
        'error.parts["what"].startswith("the state database")',
        'closed(now).replace("nothing starts", setting)',
        'why == "switched off"',
        "each.reason in _SETTLED",
        'def f(line):\n    words = line.kept.lower()\n    return "min_retained" in words',
        'match run.reason:\n    case "cancelled":\n        pass',
    ):
        assert decisions_on_prose(ast.parse(code), {"_SETTLED": ["done"]}), code
    for code in ('path.startswith("s3:")', 'reason.kind == "tag"', 'state == "done"', 'reason == ""'):
        assert not decisions_on_prose(ast.parse(code), {}), code


def test_pages_decide_nothing_on_prose() -> None:
    looks_into = re.compile(
        rf"\.({'|'.join(sorted(PROSE))})\s*(\.(startswith|endswith|find|replace)\(|(==|!=|in)\s)"
        rf"|\"\s*in\s+[\w.]+\.({'|'.join(sorted(PROSE))})\b|startswith\(\"\w+ \w"
    )
    for page in sorted(PACKAGE.rglob("*.html")):
        found = [each[0] for each in looks_into.finditer(page.read_text("utf-8"))]
        assert not found, f"{page.name}: {found}"


def test_permits_are_made_in_one_place() -> None:
    makers = [
        module for module in modules() if any(each.split(".")[-1] == "Permit" for each in calls(module))
    ]
    assert makers == ["lakewarden.deletion.permit"]


def test_evidence_that_no_table_names_a_file_is_made_in_one_place() -> None:
    """An output is erased on the table's word, not on a flag: `ask_table` and `never_sent` are used by one module only."""
    named = {
        name: [each for each in modules() if any(call.split(".")[-1] == name for call in calls(each))]
        for name in ("Unnamed", "ask_table", "never_sent", "for_uncommitted_outputs", "for_native_outputs")
    }
    assert named.pop("Unnamed") == ["lakewarden.deletion.permit"]
    assert set(map(tuple, named.values())) == {("lakewarden.jobs.compact.cleanup",)}


@pytest.mark.parametrize("module", modules())
def test_only_the_clock_asks_the_time(module: str) -> None:
    """Kernels may measure their own CPU time with `time.process_time`, which is no time of day."""
    if module == "lakewarden.clock":
        return
    asked = [each for each in calls(module) if ASKS_THE_TIME.search(each) and not each.startswith("clock.")]
    assert not asked, f"{module} asks {asked}: take it from lakewarden.clock, or be handed it"
    names = [node for node in ast.walk(tree_of(module)) if isinstance(node, ast.ImportFrom)]
    assert all(node.module != "time" for node in names), (
        f"{module}: import the module `time`, not names of it"
    )


# The planner of every job, by the job's name: the function `plan` of these modules, below lakewarden.jobs.
PLANNERS = {
    "expire-partitions": ("partitions.plan",),
    "compact-deletes": ("compact.deletes",),
    "compact": ("compact.plan", "compact.buckets"),
    "rewrite-manifests": ("manifests",),
    "handoff": ("cold.handoff", "cold.transition", "cold.retention"),
    "expire": ("expire.plan",),
    "purge": ("purge.plan",),
    "sweep": ("sweep.plan",),
    "compact-history": ("history",),
}
# The links of this machine's own folders: two spellings of one place cannot be told from the text alone.
ASKED_BY_PLANNERS = {"lakewarden.model.location.real: os.path.realpath is of os.path"}


def planners() -> list[str]:
    return [module for each in PLANNERS.values() for module in each]


def test_every_job_has_a_planner() -> None:
    from lakewarden.model.run import Job

    assert set(PLANNERS) == {str(job) for job in Job}
    found = {
        module.removeprefix("lakewarden.jobs.")
        for module in modules()
        if part(module) == "jobs"
        and any(isinstance(node, ast.FunctionDef) and node.name == "plan" for node in tree_of(module).body)
    }
    assert found == set(planners())


@pytest.mark.parametrize("planner", planners())
def test_planners_are_handed_what_they_need(planner: str) -> None:
    """`plan` is pure: no clock, no session, no format among its names."""
    module = tree_of(f"lakewarden.jobs.{planner}")
    plan = next(node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == "plan")
    arguments = [each.arg for each in plan.args.args]
    assert "policy" in arguments and "now" in arguments
    assert {"view", "live", "copies"} & set(arguments)
    names = {
        dotted(node).split(".")[0] for node in ast.walk(plan) if isinstance(node, ast.Name | ast.Attribute)
    }
    assert not names & {"clock", "spark", "format_", "context", "os", "Path", "open"}


@pytest.mark.parametrize("planner", planners())
def test_planning_makes_no_io(planner: str) -> None:
    """Neither does anything that a planner calls: no file, no network, no clock, no JVM, no state database."""
    source = purity.source(f"lakewarden.jobs.{planner}")
    assert source is not None
    found = set(purity.asks_the_world(source, "plan")) - ASKED_BY_PLANNERS
    assert not found, f"{planner}.plan is not pure; hand it what it needs: {sorted(found)}"


def test_the_exception_about_planners_is_needed() -> None:
    sources = [purity.source(f"lakewarden.jobs.{each}") for each in planners()]
    found = [purity.asks_the_world(each, "plan") for each in sources if each is not None]
    assert {line for lines in found for line in lines} >= ASKED_BY_PLANNERS


def test_the_rule_about_planners_bites() -> None:
    head = (
        "import os, time\nfrom datetime import datetime\nfrom lakewarden import clock\n"
        "from lakewarden.state.database import State\nfrom lakewarden.spark.tasks import fan_out\n"
        "from lakewarden.deletion.holds import gather\n"
    )
    for code in (
        "def plan(view, policy, now):\n    return clock.now()",
        "def plan(view, policy, now):\n    return datetime.now()",
        "def plan(view, policy, now):\n    return open(view.path)",
        "def plan(view, policy, now):\n    return os.stat(view.path)",
        "def plan(view, policy, now):\n    return view.spark._jvm.Thing()",
        "def plan(view, policy, now):\n    return _later(view)\n\n\ndef _later(view):\n    return time.time()",
        "def plan(view: State, policy, now):\n    return view",
        "def plan(view, policy, now):\n    return gather(view)",
        "def plan(view, policy, now):\n    return One(view)\n\n\nclass One:\n    def go(self):\n        return fan_out(self)",
        "def plan(view, policy, now, make=open):\n    return make(view)",
    ):
        assert purity.asks_the_world(purity.read("mine", head + code), "plan"), code
    for code in (
        "def plan(view, policy, now):\n    return view.now + now",
        "def plan(view, policy, now):\n    time = view.time\n    return time.hours",
        "def plan(view, policy, now) -> State:\n    return view",
    ):
        assert not purity.asks_the_world(purity.read("mine", head + code), "plan"), code


@pytest.mark.parametrize("module", modules())
def test_nothing_is_left_unfinished(module: str) -> None:
    text = path_of(module).read_text("utf-8")
    marks = [line.strip() for line in text.splitlines() if UNFINISHED.search(line)]
    assert not marks, f"{module}: {marks}"
    names = {dotted(node) for node in ast.walk(tree_of(module)) if isinstance(node, ast.Name)}
    assert "NotImplementedError" not in names, f"{module} raises NotImplementedError"


@pytest.mark.parametrize("module", modules())
def test_every_module_says_what_it_is_for(module: str) -> None:
    assert ast.get_docstring(tree_of(module)), f"{module} has no docstring"


def test_every_public_name_of_the_api_is_documented() -> None:
    from lakewarden import client as api

    assert inspect.getdoc(api)
    for name, each in vars(api).items():
        if name.startswith("_") or getattr(each, "__module__", "") != api.__name__:
            continue
        assert each.__doc__, f"api.{name} has no docstring"
    lw = api.Lakewarden({}, environ={})
    for owner in (lw, lw.holds, lw.history, lw.tiers, lw.schedule, lw.health):
        for name, each in vars(type(owner)).items():
            if name.startswith("_"):
                continue
            target = each.__func__ if isinstance(each, classmethod) else each
            assert target.__doc__, f"{type(owner).__name__}.{name} has no docstring"


# Longer functions of today. A function that is cut leaves the list.
TOO_LONG = {"lakewarden.jobs.expire.plan.plan": 62}


def functions_of(tree: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (function.end_lineno or 0) - function.lineno + 1


def test_functions_stay_short() -> None:
    for module in modules():
        for node in functions_of(tree_of(module)):
            lines, most = lines_of(node), TOO_LONG.get(f"{module}.{node.name}", 60)
            assert lines <= most, f"{module}.{node.name} has {lines} lines: it does more than one thing"


def test_the_rule_about_functions_bites() -> None:
    (function,) = functions_of(ast.parse("def f():\n" + "    pass\n" * 60))
    assert lines_of(function) == 61


# Folders over 25 modules of today, with what they have. A folder that gets smaller leaves the list.
MOST_MODULES = 25
TOO_FULL = {"lakewarden/tables/paimon": 26}


def folder_sizes() -> Counter[str]:
    """Python files right inside each folder; migrations are numbered scripts of their own."""
    files = (each.relative_to(ROOT) for each in PACKAGE.rglob("*.py") if "versions" not in each.parts)
    return Counter(each.parent.as_posix() for each in files)


def test_no_folder_has_too_many_modules() -> None:
    for folder, modules_there in folder_sizes().items():
        most = TOO_FULL.get(folder, MOST_MODULES)
        assert modules_there <= most, (
            f"{folder} has {modules_there} modules: give one subject a folder of its own"
        )


# Public class names that two modules or more have today. It only ever gets lower.
REPEATED_CLASS_NAMES = 54


def test_public_class_names_stand_once() -> None:
    places: dict[str, list[str]] = {}
    for module in modules():
        for node in tree_of(module).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(module)
    repeated = {name: where for name, where in places.items() if len(where) > 1}
    assert len(repeated) <= REPEATED_CLASS_NAMES, f"rename one of each: {repeated}"


# Types of other libraries, which know less than what their own settings make them.
MAY_CAST = {"lakewarden.http_server", "lakewarden.gateway.server"}
FALLS_THROUGH = {"__getattr__", "__getattribute__", "__setattr__", "__delattr__"}


def fall_through(tree: ast.AST) -> list[str]:
    """Classes through which every method falls, also those that an interface gets later."""
    classes = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return [f"{each.name}.{name}" for each in classes for name in methods_and_names(each) & FALLS_THROUGH]


def methods_and_names(node: ast.ClassDef) -> set[str]:
    functions = {each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
    assigned = (each for each in node.body if isinstance(each, ast.Assign))
    return functions | {dotted(target) for each in assigned for target in each.targets}


def imports_cast(tree: ast.AST) -> bool:
    found = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    named = any(each.module == "typing" and "cast" in {one.name for one in each.names} for each in found)
    return named or any(dotted(node) == "typing.cast" for node in ast.walk(tree))


@pytest.mark.parametrize("module", modules())
def test_nothing_falls_through_an_interface(module: str) -> None:
    """A wrapper names every method it wraps, and its type is checked: a new committing method cannot skip the guard."""
    found = fall_through(tree_of(module))
    assert not found, f"{module} has {found}: write the methods out"
    if module not in MAY_CAST:
        assert not imports_cast(tree_of(module)), f"{module} casts: give the value its type where it is made"


def test_casts_are_of_types_that_others_made() -> None:
    ours = {
        name for module in modules() for name in classes_of(tree_of(module)) if is_interface(module, name)
    }
    for module in MAY_CAST:
        assert imports_cast(tree_of(module)), f"{module} casts no more"
        for node in ast.walk(tree_of(module)):
            if isinstance(node, ast.Call) and dotted(node.func) in ("cast", "typing.cast"):
                names = {dotted(each).split(".")[-1] for each in ast.walk(node.args[0])}
                assert not names & ours, f"{module} casts to {names & ours}"


def is_interface(module: str, name: str) -> bool:
    bases = classes_of(tree_of(module))[name].bases
    return bool({dotted(each) for each in bases} & {"Protocol", "typing.Protocol"})


def test_the_rule_about_interfaces_bites() -> None:
    assert fall_through(ast.parse("class A:\n    def __getattr__(self, name): ..."))
    assert fall_through(ast.parse("class A:\n    __getattribute__ = other"))
    assert imports_cast(ast.parse("from typing import Any, cast"))
    assert imports_cast(ast.parse("import typing\ntyping.cast(int, 1)"))
    assert not fall_through(ast.parse("def __getattr__(name): ..."))  # of a package: its public names
    assert not imports_cast(ast.parse("from sqlalchemy import cast"))


def test_erase_takes_a_permit() -> None:
    """And a permit that was granted: its fields cannot be changed, and none is made by default."""
    (erase,) = (
        node for node in functions_of(tree_of("lakewarden.deletion.erase")) if not node.name.startswith("_")
    )
    first, *_ = erase.args.args
    assert first.annotation is not None and dotted(first.annotation) == "Permit"
    assert len(erase.args.defaults) < len(erase.args.args)
    paths = [
        node for node in ast.walk(erase) if isinstance(node, ast.Call) and dotted(node.func)[-7:] == ".delete"
    ]
    assert [ast.unparse(each.args[0]) for each in paths] == ["permit.paths"]
    for module in modules():
        if module != "lakewarden.deletion.permit":
            annotated = re.findall(r"\bPermit\b[^,)=\n]*=", ast.unparse(tree_of(module)))
            assert not annotated, f"{module} has a permit by default: {annotated}"
            copied = [
                ast.unparse(node)
                for node in ast.walk(tree_of(module))
                if isinstance(node, ast.Call)
                and dotted(node.func).split(".")[-1] in ("replace", "copy", "deepcopy", "__replace__")
                and any("permit" in ast.unparse(each).lower() for each in node.args)
            ]
            assert not copied, f"{module} makes a permit of a permit: {copied}"


# Variables that are no settings: they are asked before a configuration is read, or outside one.
NOT_SETTINGS = {
    "LAKEWARDEN_",
    "LAKEWARDEN_CONFIG",
    "LAKEWARDEN_DEBUG",
    "LAKEWARDEN_CACHE",
    "LAKEWARDEN_IVY_SETTINGS",
    "LAKEWARDEN_COMMIT_HASH",
}


def test_a_setting_is_one_field() -> None:
    """Its type, default, sentence, variable and error come from there: every described field is a setting, and nothing else is."""
    from pydantic import BaseModel

    from lakewarden.config import schema

    models = [
        each for each in vars(schema).values() if isinstance(each, type) and issubclass(each, BaseModel)
    ]
    fields = Counter(
        (field.title or name, field.description)
        for model in set(models)
        for name, field in model.model_fields.items()
        if field.description
    )
    assert fields == Counter((each.name, each.sentence) for each in schema.SETTINGS)
    assert set(Counter((each.section, each.name) for each in schema.SETTINGS).values()) == {1}


@pytest.mark.parametrize("module", modules())
def test_no_setting_is_read_past_its_field(module: str) -> None:
    if module.startswith("lakewarden.config."):
        return
    texts = (node.value for node in ast.walk(tree_of(module)) if isinstance(node, ast.Constant))
    variables = {each for each in texts if isinstance(each, str) and re.fullmatch(r"LAKEWARDEN_\w*", each)}
    assert variables <= NOT_SETTINGS, (
        f"{module} reads {variables - NOT_SETTINGS}: make it a field of config/schema.py"
    )


# Loaded by another library, because Lakewarden uses a part of it that needs them: no module of the package imports these.
LOADED_BY_ANOTHER = {
    "arro3-core": "obstore, for listings as Arrow",
    "httptools": "uvicorn, whose httptools protocol the servers extend",
    "python-multipart": "starlette, for forms",
}


def distribution(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_declared_dependency_is_imported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    named = (re.match(r"[A-Za-z0-9._-]+", each) for each in project["dependencies"])
    declared = {distribution(each[0]) for each in named if each}
    nodes = [node for module in modules() for node in ast.walk(tree_of(module))]
    sources = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    sources += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    packages = packages_distributions()
    imported = {distribution(each) for name in sources for each in packages.get(name.split(".")[0], ())}
    assert declared - imported == set(LOADED_BY_ANOTHER)


def test_what_is_declared_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    pinned = {
        distribution(line.split("==")[0])
        for line in (ROOT / "requirements/pinned.txt").read_text("utf-8").splitlines()
        if "==" in line
    }
    named = (re.match(r"[A-Za-z0-9._-]+", each) for each in project["dependencies"])
    assert {distribution(each[0]) for each in named if each} <= pinned


@pytest.mark.parametrize("module", modules())
def test_no_module_of_another_library_is_replaced(module: str) -> None:
    written = [
        ast.unparse(node)
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.Subscript)
        and isinstance(node.ctx, ast.Store | ast.Del)
        and dotted(node.value) == "sys.modules"
    ]
    assert not written, f"{module} changes {written}"


# Classes that are still over the limit of `test_no_class_has_too_many_methods`.
TOO_MANY_METHODS = {"TableFormat", "Iceberg", "Paimon", "Settings"}


JOB_TABLE = "lakewarden.model.job_facts"
_LITERALS = (ast.Dict, ast.Set, ast.List, ast.Tuple)


def job_tables(tree: ast.AST) -> set[int]:
    """The lines of literals that name two jobs or more, or have a job as a key: a second table of jobs."""
    names = {*Job, *(job.name for job in Job)}
    found = set()
    for node in ast.walk(tree):
        if not isinstance(node, _LITERALS):
            continue
        inner = list(ast.walk(node))
        texts = {
            each.value for each in inner if isinstance(each, ast.Constant) and isinstance(each.value, str)
        }
        jobs = {
            each.attr for each in inner if isinstance(each, ast.Attribute) and dotted(each).startswith("Job.")
        }
        keys = node.keys if isinstance(node, ast.Dict) else []
        keyed = any(isinstance(each, ast.Attribute) and dotted(each).startswith("Job.") for each in keys)
        if keyed or len(texts & names) > 1 or len(jobs & names) > 1:
            found.add(node.lineno)
    return found


@pytest.mark.parametrize("module", modules())
def test_there_is_one_table_of_jobs(module: str) -> None:
    assert module == JOB_TABLE or not job_tables(tree_of(module)), "put what it says into the rows of JOBS"


def test_the_rule_about_tables_of_jobs_bites() -> None:
    assert job_tables(tree_of(JOB_TABLE))
    for text in (
        "X = {Job.EXPIRE: 'a', Job.PURGE: 'b'}",
        "X = {Job.EXPIRE: 'a'}",
        "X = frozenset({Job.EXPIRE, Job.PURGE})",
        "if job in (Job.COMPACT, Job.COMPACT_DELETES): pass",
        "X = (('rewrite_', 'compact'), ('purge_', 'purge'))",
        "X = ['expire', 'sweep']",
    ):
        assert job_tables(ast.parse(text)) == {1}, text
    assert not job_tables(ast.parse("ORPHANED = ('sweep', 'failed-load')"))
    assert not job_tables(ast.parse("match job:\n    case Job.EXPIRE: pass\n    case Job.PURGE: pass"))


def public_methods(classes: dict[str, ast.ClassDef], name: str) -> set[str]:
    """Methods and properties, also those of its bases in this package."""
    node = classes[name]
    own = {each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
    bases = [dotted(base).split(".")[-1] for base in node.bases]
    inherited = [public_methods(classes, base) for base in bases if base in classes and base != name]
    return {each for each in own if not each.startswith("_")}.union(*inherited)


def classes_of(tree: ast.Module) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def test_no_class_has_too_many_methods() -> None:
    every = [classes_of(tree_of(module)) for module in modules()]
    known = {name: node for classes in every for name, node in classes.items()}
    over = {name for each in every for name in each if len(public_methods({**known, **each}, name)) > 20}
    assert over <= TOO_MANY_METHODS


def test_the_rule_about_methods_bites() -> None:
    half = "".join(f"    def m{number}(self): ...\n" for number in range(11))
    source = f"class Base:\n{half}class Whole(Base):\n{half.replace('m', 'n')}"
    assert len(public_methods(classes_of(ast.parse(source)), "Whole")) == 22


def test_no_public_class_name_stands_twice() -> None:
    """A class name means one thing: who finds it in a traceback or a search knows the module."""
    homes: dict[str, list[str]] = {}
    for module in modules():
        for node in tree_of(module).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(module)
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}
