"""Hook of mkdocs: README, CONTRIBUTING, CHANGELOG and SECURITY become pages of the site, results are listed.

They lie in the repository's root, where people look for them, and link to `docs/...`. In the site their links
lead to pages.
"""

import re
from pathlib import Path
from typing import Any

PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}


def on_config(config: Any) -> Any:
    """List the result pages that the navigation does not name, by their own titles."""
    [results] = [section["Results"] for section in config["nav"] if "Results" in section]
    named = {next(iter(page.values())) if isinstance(page, dict) else page for page in results}
    pages = sorted(f"results/{path.name}" for path in Path(config["docs_dir"], "results").glob("*.md"))
    results += [page for page in pages if page not in named]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of the root."""
    from mkdocs.structure.files import File

    for source, page in PAGES.items():
        text = re.sub(r"(\]\(|src=\")docs/", r"\1", Path(source).read_text())
        for other, of in PAGES.items():
            text = text.replace(f"]({other}", f"]({of}")
        files.append(File.generated(config, page, content=text))
    files.append(File.generated(config, "cli.md", content=command_line()))
    return files


def command_line() -> str:
    """The page of the command line, from the code: verbs in the order of the help, with their options."""
    import typer

    from fleet.cli.app import app

    root: Any = typer.main.get_command(app)
    lines = ["# Command line", "", "Exit codes: 0 done, 1 failed with one line, 2 wrong usage.", ""]
    verbs = [("fleet", root)]
    while verbs:
        name, command = verbs.pop(0)
        context = command.make_context(name, [], resilient_parsing=True)
        lines += [f"## {name}", "", command.help or "", ""]
        rows = [
            f"| `{' '.join(parameter.opts) if parameter.opts[0].startswith('-') else parameter.metavar}` "
            f"| {(parameter.help or '').replace('|', chr(92) + '|')} |"
            for parameter in command.get_params(context)
        ]
        lines += ["| option | meaning |", "|---|---|", *rows, ""]
        if hasattr(command, "list_commands"):
            names = command.list_commands(context)
            verbs[:0] = [(f"{name} {verb}", command.get_command(context, verb)) for verb in names]
    return "\n".join(lines)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links to the root to its pages; a file that is no page is named without a link."""
    up = "../" * page.file.src_uri.count("/")
    for source, of in PAGES.items():
        markdown = markdown.replace(f"]({up}../{source}", f"]({up}{of}")
    return re.sub(r"\[([^\]]+)\]\([^)\s]*prometheus/alerts\.yaml\)", r"`\1`", markdown)
