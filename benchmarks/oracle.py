"""Everything one can ask for, in small: make runs, and compare two outcomes of the same commands.

    python benchmarks/oracle.py make /tmp/before
    python benchmarks/oracle.py make /tmp/after           # with the changed code
    python benchmarks/oracle.py compare /tmp/before /tmp/after
    python benchmarks/oracle.py compare /tmp/before /tmp/after --allow pages,outputs

A refactoring must not change what a command does. `make` does the commands of `oracle_cases.py`,
about 700 short runs, in three minutes of CPU time. It uses nothing but the command line and the
files that it writes, so it works before and after. It needs AFIELD_DATA with the folder `weights`.
Started again, it continues; changed code, also of these scripts, needs a new folder.

Every group is a folder of texts in OUT/oracle, and `digests.json` has the digest of each text:

    keys        the runs of each command, in the order of their plan
    weights     digests of all weight files, by run
    records     the records, without times, memory and versions
    tables      `afield table`: all rules, metrics and formats
    commands    the commands of the report that reproduce its rows
    pages       the report pages, from copies of the stores in which all times are equal
    models      folders of `fit` and `merge`: description, card, digests of weights; predictions
    outputs     what each command printed, and its exit code; numbers of diagnoses

Paths of this machine are replaced by WORK and DATA, versions of afield by VERSION. `compare` exits
with 1 if a group differs that is not allowed to.
"""

import argparse
import base64
import difflib
import hashlib
import html
import json
import os
import re
import resource
import shlex
import shutil
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from oracle_cases import SCENARIOS, write_data

GROUPS = ("keys", "weights", "records", "tables", "commands", "pages", "models", "outputs")
# How `afield table` shows every store; a metric that records lack is a dash.
METRICS = ("balanced_accuracy", "macro_f1", "worst_class", "nll", "worst_group", "mean_group")
VIEWS = [f"--format {name}" for name in ("csv", "md", "latex", "console")]
VIEWS += [f"--format csv --metric {name}" for name in METRICS]
# What a record or a model is given in place of what differs from run to run.
EQUAL_FIELDS = {"seconds": 1.0, "memory": 2**20, "at": 0.0, "trace": ""}
# Commands that keep runs in a store.
STORING = ("bench", "sweep", "train", "fit", "recipe run")


@dataclass(frozen=True)
class Printed:
    """A command, its exit code, and what it printed."""

    command: str
    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        """All of it, with notes and errors only if the command failed."""
        return f"afield {self.command}\nexit code {self.code}\n{self.out}" + self.err * bool(
            self.code
        )


@dataclass(frozen=True)
class Outcome:
    """The folder in which the commands run, and that of the texts to compare."""

    work: Path
    texts: Path

    def write(self, group: str, name: str, text: str) -> None:
        """Write a text without paths of this machine and versions of afield."""
        data = os.environ["AFIELD_DATA"]
        # Names of downloads have underscores in place of slashes.
        for place in (str(self.work), re.sub(r"\W+", "_", str(self.work)).strip("_")):
            text = text.replace(place, "WORK")
        text = text.replace(data, "DATA").replace(str(Path(data).resolve()), "DATA")
        path = self.texts / group / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(re.sub(r"afield \d+\.\d+\.\d+", "afield VERSION", text))

    def write_json(self, group: str, name: str, value: Any) -> None:
        """Write a value in a canonical form."""
        self.write(group, name, json.dumps(value, indent=1, sort_keys=True) + "\n")

    def write_digests(self) -> int:
        """Write the digests of all texts; return their number."""
        files = sorted(self.texts.glob("*/**/*.*"))
        digests = {str(path.relative_to(self.texts)): digest(path) for path in files}
        (self.texts / "digests.json").write_text(json.dumps(digests, indent=1) + "\n")
        return len(digests)


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def prepare_worker() -> None:
    """Import what all commands need; their output is never that of a terminal."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    for name in ("pandas", "sklearn.covariance", "torch", "torchvision"):
        import_module(name)
    from afield.cli import main  # noqa: F401  it is loaded when it is asked for


def call_all(commands: Sequence[str], work: Path) -> list[Printed]:
    """Do commands in one forked process, so that they share nothing with those before."""
    results = work / f"results-{os.getpid()}.json"
    pid = os.fork()
    if not pid:
        os.chdir(work)
        results.write_text(json.dumps([_call(command) for command in commands]))
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    if not results.exists():
        ended = os.waitstatus_to_exitcode(status)
        return [Printed(command, ended, "", "the process ended") for command in commands]
    printed = [Printed(*each) for each in json.loads(results.read_text())]
    results.unlink()
    return printed


def _call(command: str) -> tuple[str, int, str, str]:
    """Call the command line in this process, with its output in files."""
    from afield.cli import main

    files = [Path(f"printed-{os.getpid()}-{number}.txt") for number in (1, 2)]
    for number, file in enumerate(files, start=1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.argv = ["afield", *(_first_match(word) for word in shlex.split(command))]
    code: Any = 0
    try:
        main()
    except SystemExit as end:
        code = end.code or 0
    except BaseException:  # noqa: BLE001  whatever a command ends with is its outcome
        traceback.print_exc()
        code = 70
    sys.stdout.flush()
    sys.stderr.flush()
    out, err = (file.read_text() for file in files)
    for file in files:
        file.unlink()
    return command, code, out, err


def _first_match(word: str) -> str:
    """The first path that a word with a star matches; other words as they are."""
    return next(map(str, sorted(Path().glob(word))), word) if "*" in word else word


def scenario_commands(name: str) -> Iterator[str]:
    """The commands of a scenario, with its store."""
    for line in filter(None, map(str.strip, SCENARIOS[name].splitlines())):
        command = " ".join(line.replace("DATA", os.environ["AFIELD_DATA"]).split())
        stores = command.startswith(STORING) and "--store" not in command
        yield f"{command} --store runs/{name}" if stores else command


def play(name: str, outcome: Outcome) -> tuple[str, int, int]:
    """Do one scenario and write down its outcome; its name, runs, and commands with an error."""
    store, failed = outcome.work / "runs" / name, 0
    stamp = outcome.work / f"{name}.done.json"
    if stamp.exists():
        return tuple(json.loads(stamp.read_text()))
    for number, command in enumerate(scenario_commands(name)):
        (printed,) = call_all([command], outcome.work)
        failed += printed.code != 0
        group = "models" if command.startswith("predict") else "outputs"
        outcome.write(group, f"{name}-{number}.txt", printed.text)
        for folder in re.findall(r"--out (models/\w+)", command):
            if (outcome.work / folder).is_dir():
                write_model(outcome, outcome.work / folder)
    if store.is_dir():
        write_store(outcome, store)
        write_views(outcome, store.name)
    result = name, len(list(store.glob("*/record.json"))), failed
    stamp.write_text(json.dumps(result))
    return result


def write_store(outcome: Outcome, store: Path) -> None:
    """Write the keys, weights and records of a store, and a copy of it without times."""
    plans = [json.loads(path.read_text()) for path in store.glob("plans/*.json")]
    finished = sorted(path.parent.name for path in store.glob("*/record.json"))
    keys = {"finished": finished, "plans": {plan["command"]: plan["keys"] for plan in plans}}
    outcome.write_json("keys", f"{store.name}.json", keys)
    files = sorted(store.glob("*/*.safetensors"))
    weights = {str(path.relative_to(store)): digest(path) for path in files}
    outcome.write_json("weights", f"{store.name}.json", weights)
    for path in store.glob("diagnostics/*.csv"):
        outcome.write("outputs", f"{store.name}/{path.name}", path.read_text())
    copy = outcome.work / "shown" / store.name
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir(parents=True)
    for path in store.glob("*.json"):
        shutil.copy(path, copy)
    for path in [*store.glob("*/record.json"), *store.glob("*/failure.json")]:
        key, value = path.parent.name, without_times(json.loads(path.read_text()))
        outcome.write_json("records", f"{store.name}/{key}.json", value)
        (copy / key).mkdir()
        (copy / key / path.name).write_text(json.dumps(value))


def without_times(value: dict[str, Any]) -> dict[str, Any]:
    """A record, a failure or the description of a model, with equal times and versions."""
    versions = value.get("versions", {})
    kept = {name: text if name == "first weights" else "0" for name, text in versions.items()}
    equal = {**EQUAL_FIELDS, "versions": kept}
    return {name: equal.get(name, content) for name, content in value.items()}


def write_views(outcome: Outcome, name: str) -> None:
    """Write the tables and the page of a store, and the commands that the page shows."""
    page = outcome.work / "shown" / f"{name}.html"
    page.unlink(missing_ok=True)
    commands = [f"table shown/{name} {view}" for view in VIEWS]
    report = f"report shown/{name} --out shown/{page.name}"
    *tables, reported = call_all([*commands, report], outcome.work)
    for view, printed in zip(VIEWS, tables, strict=True):
        place = f"{name}/{'-'.join(view.split()[1::2])}.txt"
        outcome.write("tables", place, f"{printed.text}\n{printed.err}")
    text = with_plain_downloads(page.read_text()) if page.exists() else reported.text
    outcome.write("pages", page.name, text)
    outcome.write("commands", f"{name}.txt", "".join(f"{line}\n" for line in page_commands(text)))


def with_plain_downloads(page: str) -> str:
    """A page with the texts that it offers for download in plain letters, without paths."""

    def decoded(found: re.Match[str]) -> str:
        return f"{found[1]},{base64.b64decode(found[2]).decode()}"

    return re.sub(r"(charset=utf-8);base64,([\w+/=]+)", decoded, page)


def page_commands(page: str) -> Iterator[str]:
    """The commands of a page, each with the term of its list: the label of the row."""
    for part in page.split("</dl>"):
        term = ""
        for tag, content in re.findall(r"<(dt|code)\b[^>]*>(.*?)</\1>", part, re.DOTALL):
            text = html.unescape(re.sub(r"<[^>]+>", "", content)).strip()
            if tag == "code" and text.startswith("afield "):
                yield f"{term}: {text}" if term else text
            term = text if tag == "dt" else ""


def write_model(outcome: Outcome, folder: Path) -> None:
    """Write the description, the card and the digests of a model folder."""
    value = without_times(json.loads((folder / "model.json").read_text()))
    value["digests"] = {path.name: digest(path) for path in sorted(folder.glob("*.safetensors"))}
    outcome.write_json("models", f"{folder.name}/model.json", value)
    card = (folder / "README.md").read_text()
    card = re.sub(r"(?m)^- made with .*$", "- made with VERSIONS", card)
    outcome.write("models", f"{folder.name}/README.md", card)


def make(out: Path, names: Sequence[str], jobs: int) -> str:
    """Do the scenarios and write OUT/oracle; return why that is impossible, if it is."""
    import afield

    started, package = time.monotonic(), Path(afield.__file__).parent
    files = [*sorted(package.rglob("*.py")), *sorted(Path(__file__).parent.glob("oracle*.py"))]
    code = hashlib.sha256("".join(map(digest, files)).encode()).hexdigest()
    outcome, stamp = Outcome(out / "work", out / "oracle"), out / "code.txt"
    if not (Path(os.environ.get("AFIELD_DATA", "")) / "weights").is_dir():
        return "set AFIELD_DATA to a folder with weights"
    if out.exists() and any(out.iterdir()) and not (stamp.exists() and stamp.read_text() == code):
        return f"{out} is not empty, or from other code; give a new folder"
    print(f"package in {package}", flush=True)
    if not stamp.exists():
        write_data(outcome.work / "data")
        stamp.write_text(code)
    os.environ |= {"AFIELD_CACHE": str(outcome.work / "cache"), "HF_HUB_OFFLINE": "1"}
    os.environ |= {"COLUMNS": "100"}
    runs = 0
    with ProcessPoolExecutor(jobs, initializer=prepare_worker) as pool:
        waiting = [pool.submit(play, name, outcome) for name in names]
        for number, future in enumerate(as_completed(waiting), start=1):
            name, count, failed = future.result()
            runs += count
            note = f", {failed} commands with an error" * bool(failed)
            print(f"{number}/{len(names)} {name}: {count} runs{note}", flush=True)
    count, used = outcome.write_digests(), resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{runs} runs, {count} texts in {outcome.texts}; {time.monotonic() - started:.0f} s, "
        f"{used.ru_utime + used.ru_stime:.0f} s of CPU time"
    )
    return ""


def compare(old: Path, new: Path, allowed: Iterable[str] = (), lines: int = 12) -> bool:
    """Print the differences of two outcomes by group; return whether all of them are allowed."""
    before, after = (
        json.loads((out / "oracle" / "digests.json").read_text()) for out in (old, new)
    )
    good = True
    for group in GROUPS:
        names = sorted(name for name in before | after if name.startswith(f"{group}/"))
        differing = [name for name in names if before.get(name) != after.get(name)]
        tolerated = group in allowed
        good &= tolerated or not differing
        print(f"{group}: {len(differing)} of {len(names)} differ" + " (allowed)" * tolerated)
        for name in differing:
            print(f"  {name}")
            for line in differing_lines(old / "oracle" / name, new / "oracle" / name, lines):
                print(f"    {line}")
    return good


def differing_lines(old: Path, new: Path, limit: int) -> list[str]:
    """The first lines that differ, cut where they are long."""
    missing = [f"missing: {path}" for path in (old, new) if not path.exists()]
    if missing:
        return missing
    changes = difflib.unified_diff(
        old.read_text().splitlines(), new.read_text().splitlines(), lineterm="", n=0
    )
    found = [line for line in changes if not line.startswith(("---", "+++", "@@"))]
    shown = [line if len(line) <= 200 else f"{line[:200]} …" for line in found[:limit]]
    return shown + [f"… and {len(found) - limit} more lines"] * (len(found) > limit)


def main() -> None:
    """Make an outcome, or compare two."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(required=True, dest="command")
    one = commands.add_parser("make", help="do the runs and write their digests")
    one.add_argument("out", type=Path)
    one.add_argument("--only", default=",".join(SCENARIOS), help="scenarios, with commas")
    one.add_argument("--jobs", type=int, default=2, help="scenarios at a time")
    two = commands.add_parser("compare", help="list the differences of two outcomes")
    two.add_argument("old", type=Path)
    two.add_argument("new", type=Path)
    two.add_argument("--allow", default="", help=f"groups that may differ: {', '.join(GROUPS)}")
    two.add_argument("--lines", type=int, default=12, help="lines to show of each difference")
    asked = parser.parse_args()
    if asked.command == "make":
        sys.exit(make(asked.out.resolve(), asked.only.split(","), asked.jobs) or 0)
    allowed = [name for name in asked.allow.split(",") if name]
    if not set(allowed) <= set(GROUPS):
        parser.error(f"--allow {asked.allow}: the groups are {', '.join(GROUPS)}")
    sys.exit(not compare(asked.old, asked.new, allowed, asked.lines))


if __name__ == "__main__":
    main()
