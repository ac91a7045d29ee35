"""Pages of the site that are generated from the package: registries, commands and the API."""

import ast
import inspect
from importlib import import_module
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from typer.main import get_command

import afield
from afield import registry
from afield.cli.app import app
from afield.hyperparameters import Range, defaults, ranges

ROOMS = (
    "data",
    "networks",
    "training",
    "merging",
    "runs",
    "studies",
    "reporting",
    "diagnosis",
    "deployment",
)
TITLES = {
    "methods": "Methods",
    "averages": "Weight averages",
    "adaptations": "Test-time adaptations",
    "merges": "Merges",
    "datasets": "Datasets",
    "diagnostics": "Diagnostics",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    pages = {f"reference/{kind}.md": registry_page(kind) for kind in registry.KINDS}
    pages |= {f"api/{room}.md": api_page(room) for room in ROOMS}
    pages["api/afield.md"] = top_page()
    pages["api/hyperparameters.md"] = module_page("afield.hyperparameters")
    pages["reference/commands.md"] = commands_page()
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def registry_page(kind: str) -> str:
    """A table of all names of a kind, then the docstring and the settings of each."""
    names = registry.names(kind)
    lines = [f"# {TITLES.get(kind, kind.capitalize())}", "", "| name | summary |", "| --- | --- |"]
    lines += [f"| [`{name}`](#{name}) | {cell(registry.summary(kind, name))} |" for name in names]
    for name in names:
        lines += ["", f"## {name}", "", *entry(kind, name)]
    return "\n".join(lines) + "\n"


def entry(kind: str, name: str) -> list[str]:
    """The documentation of one name."""
    found = registry.find(kind, name)
    module = import_module(f"afield.{registry.ROOMS[kind]}.{kind}.{name}")
    lines = [as_markdown(inspect.getdoc(module) or "")]
    if kind != "datasets" and defaults(found):
        lines += ["", "| setting | default | range |", "| --- | --- | --- |"]
        known = ranges(found)
        for setting, default in defaults(found).items():
            lines.append(f"| `{setting}` | `{default!r}` | {cell(shown(known.get(setting)))} |")
    return lines


def shown(values: Range | None) -> str:
    """A range in words."""
    if values is None:
        return ""
    name = type(values).__name__
    if hasattr(values, "options"):
        options = ", ".join(f"`{option!r}`" for option in values.options)
        return f"{options} (sweeps keep the default)" if name == "Variant" else options
    scale = {"LogUniform": ", log-uniform", "Around": " times the default, log-uniform"}
    return f"{values.low:g} to {values.high:g}{scale.get(name, '')}"


def as_markdown(text: str) -> str:
    """A docstring with its indented formulas as fenced blocks."""
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        indented = line.startswith("    ")
        if indented and not inside and (not lines or not lines[-1].strip()):
            lines.append("```text")
            inside = True
        elif inside and line.strip() and not indented:
            while not lines[-1].strip():
                lines.pop()
            lines += ["```", ""]
            inside = False
        lines.append(line[4:] if inside else line.replace("<", "&lt;"))
    return "\n".join([*lines, "```"] if inside else lines)


def api_page(room: str) -> str:
    """The public names of a room, with their docstrings."""
    lines = [f"# `afield.{room}`", "", inspect.getdoc(import_module(f"afield.{room}")) or "", ""]
    for home, name in exports(f"afield.{room}"):
        lines += [f"::: {home}.{name}", ""]
    return "\n".join(lines)


def top_page() -> str:
    """The names that ``import afield`` gives, with links to the rooms that document them."""
    lines = ["# `afield`", "", "The functions and classes that most users need.", ""]
    lines += ["| name | summary |", "| --- | --- |"]
    for home, name in exports("afield"):
        room = home.split(".")[1]
        summary = (inspect.getdoc(getattr(afield, name)) or "").partition("\n")[0]
        link = f"[`{name}`]({room}.md#{home}.{name})" if room in ROOMS else f"`{name}`"
        lines.append(f"| {link} | {cell(summary)} |")
    return "\n".join(lines) + "\n"


def exports(package: str) -> list[tuple[str, str]]:
    """The module and the name of everything that a package exports, as its stub has it."""
    stub = Path(import_module(package).__file__ or "").with_suffix(".pyi")
    found = []
    for node in ast.parse(stub.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            home = f"{package}.{node.module}"
            names = [alias.name for alias in node.names]
            found += exports_of(home, names) if node.module in ROOMS else [(home, n) for n in names]
    return sorted(found, key=lambda export: export[1].lower())


def exports_of(room: str, names: list[str]) -> list[tuple[str, str]]:
    """Where the names that a room exports are defined."""
    return [(home, name) for home, name in exports(room) if name in names]


def module_page(name: str) -> str:
    """All public names of one module."""
    return f"# `{name}`\n\n::: {name}\n    options:\n      show_root_heading: false\n"


def commands_page() -> str:
    """Every command with its options, as ``afield COMMAND --help`` has them."""
    lines = ["# Commands", ""]
    for name, command in sorted(commands(get_command(app), "afield").items()):
        lines += [f"## {name}", "", as_markdown(inspect.cleandoc(command.help or "")), ""]
        arguments = [p for p in command.params if p.param_type_name == "argument"]
        options = [p for p in command.params if p.param_type_name == "option"]
        usage = " ".join([name, *(a.name.upper() for a in arguments)])
        lines += ["```console", f"$ {usage}" + " [OPTIONS]" * bool(options), "```", ""]
        for title, parameters in (("argument", arguments), ("option", options)):
            rows = [row(parameter) for parameter in parameters]
            if rows:
                lines += [f"| {title} | meaning | default |", "| --- | --- | --- |", *rows, ""]
    return "\n".join(lines)


def commands(group: Any, name: str) -> dict[str, Any]:
    """All commands below a group, by their full names."""
    found = {}
    for key, command in group.commands.items():
        full = f"{name} {key}"
        found |= commands(command, full) if hasattr(command, "commands") else {full: command}
    return found


def row(parameter: Any) -> str:
    """A table row for an argument or an option."""
    words = ", ".join(f"`{word}`" for word in parameter.opts)
    if parameter.param_type_name == "argument":
        words = f"`{parameter.name.upper()}`"
    default = parameter.default
    plain = default in (None, "", False, ()) or callable(default)
    return f"| {words} | {cell(parameter.help or '')} | {'' if plain else f'`{default}`'} |"


def cell(text: str) -> str:
    """Text for a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
