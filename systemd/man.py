#!/usr/bin/env python3
"""The package's man pages, made from what the programs say of themselves with --help: nothing is said twice.

Usage: systemd/man.py PROGRAMS VERSION DATE FOLDER      called by systemd/deb.sh

PROGRAMS is the folder of omnictl, omni-scheduler and omni-launcher; the pages go into FOLDER. Help of another form than
clap's is an error, not a page with holes.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

CONFIG = Path(__file__).parent.parent / "config/default-node.toml"
DOCUMENTS = "/usr/share/doc/omni"
# Each page: its section, one line on what it is, the pages to read next, and what no help text says.
PAGES = {
    "omnictl": (1, "looks after a node that runs AI models", "omni-scheduler(8), omni.toml(5)", ""),
    "omni-scheduler": (
        8,
        "serves AI models over HTTP",
        "omnictl(1), omni-launcher(8), omni.toml(5)",
        """.SH SIGNALS
.TP
SIGTERM, SIGINT
Finish the requests in flight, stop all models, end.
.TP
SIGHUP
A new process of the program on disk takes over, with the configuration as it is now; on a terminal: as SIGTERM.
.TP
SIGUSR2
Finish the requests in flight and end; models stay for the next process.
.SH EXIT STATUS
0 after a stop, 78 for a configuration that has to be corrected first, 1 for anything else.
""",
    ),
    "omni-launcher": (
        8,
        "starts AI models in sandboxes, for omni-scheduler",
        "omni-scheduler(8), omnictl(1), omni.toml(5)",
        """.SH SIGNALS
.TP
SIGUSR2
Finish the starts that have begun, and end with 76: the next process finds what runs.
.SH EXIT STATUS
0 after a stop, 75 where another launcher runs, 76 to be started again, 78 for a configuration that has to be corrected
first, 1 for anything else.
""",
    ),
}
# The last of them, which no program describes.
TOML = ("omni.toml", 5, "configuration of a node that runs AI models", "omni-scheduler(8), omnictl(1)")

ENTRY = re.compile(r"^ {2,6}(?P<name>\S+(?: \S+)*?)(?: {2,}(?P<text>\S.*))?$")


def roff(text: str) -> str:
    """The text as roff shows it: no character of it is a request or an escape."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "\\(ga")
    return "\n".join("\\&" + line if line.startswith((".", "'")) else line for line in text.split("\n"))


def verbatim(lines: list[str]) -> str:
    return ".PP\n.nf\n" + roff("\n".join(lines)) + "\n.fi\n"


def entries(lines: list[str]) -> list[tuple[str, str]]:
    """Names with their texts, from two columns; a text may go on below itself."""
    found: list[tuple[str, str]] = []
    indent = min(len(line) - len(line.lstrip()) for line in lines)
    for line in lines:
        goes_on = len(line) - len(line.lstrip()) > indent + 4
        if goes_on and found:
            name, text = found.pop()
            found.append((name, f"{text} {line.strip()}".strip()))
        elif entry := ENTRY.match(line):
            found.append((entry["name"], entry["text"] or ""))
        else:
            raise ValueError(f"not a line of a help text: {line!r}")
    return found


def listed(heading: str, lines: list[str]) -> str:
    items = [(name, text) for name, text in entries(lines) if not name.startswith(("-h,", "-V,"))]
    body = "".join(f".TP\n\\fB{roff(name)}\\fR\n{roff(text)}\n" for name, text in items)
    return f"{heading}\n{body}" if items else ""


def blocks(text: str) -> list[list[str]]:
    return [block.split("\n") for block in re.split(r"\n{2,}", text.strip("\n")) if block.strip()]


def described(text: str, whole: bool) -> tuple[str, list[str]]:
    """A program's `whole` page without its head, or a command's part of one; and the commands that it has."""
    about, usage, *rest = blocks(text)
    if not usage[0].startswith("Usage: "):
        raise ValueError(f"no usage where it should be: {usage!r}")
    synopsis = verbatim([usage[0].removeprefix("Usage: "), *usage[1:]])
    page = (".SH SYNOPSIS\n" + synopsis + ".SH DESCRIPTION\n") if whole else ""
    page += roff(" ".join(line.strip() for line in about)) + ".\n"
    page += "" if whole else synopsis
    commands: list[str] = []
    for block in rest:
        title, lines = block[0], block[1:]
        if title == "Commands:":
            commands = [name for name, _ in entries(lines) if name != "help"]
        elif title == "Examples:":
            page += ".SH EXAMPLES\n" if whole else ".PP\nExamples:\n"
            page += verbatim(lines)
        elif title == "Global options:" and not whole:
            continue  # said once, on the program's own page
        elif title in ("Arguments:", "Options:", "Global options:"):
            page += listed(".SH OPTIONS" if whole else f".PP\n{title}", lines)
        elif title.startswith("Exit codes: "):
            page += ".SH EXIT STATUS\n" + roff("\n".join(block).removeprefix("Exit codes: ")) + "\n"
        else:
            page += ".PP\n" + roff("\n".join(block)) + "\n"
    return page, commands


def ask(program: Path, *words: str) -> str:
    # Without the builder's environment, which help texts show.
    command = [str(program), *words, "-h"]
    return subprocess.run(command, env={"LANG": "C.UTF-8"}, capture_output=True, text=True, check=True).stdout


def head(name: str, section: int, about: str, version: str, date: str) -> str:
    return f'.TH {name.upper()} {section} {date} "omni {version}" "Omni"\n.SH NAME\n{roff(name)} \\- {roff(about)}\n'


def tail(pages: str) -> str:
    return f".SH SEE ALSO\n{roff(pages)}; the pages in {roff(DOCUMENTS)}.\n"


def program(path: Path, version: str, date: str) -> str:
    section, about, others, more = PAGES[path.name]
    page, commands = described(ask(path), whole=True)
    if commands:
        parts = [f".SS {roff(command)}\n{described(ask(path, command), whole=False)[0]}" for command in commands]
        page += ".SH COMMANDS\n" + "".join(parts)
    files = ".SH FILES\n.TP\n/etc/omni/omni.toml\nThe configuration of the node, where there is one.\n"
    return head(path.name, section, about, version, date) + page + more + files + tail(others)


def configuration(version: str, date: str) -> str:
    name, section, about, others = TOML
    text = "/etc/omni/omni.toml, in TOML. What follows is a whole file: every key with its default and its meaning."
    page = f".SH DESCRIPTION\n{roff(text)}\n" + verbatim(CONFIG.read_text().rstrip("\n").split("\n"))
    check = "omni-scheduler --check-config says everything that is wrong; systemctl reload omni puts a change in force."
    return head(name, section, about, version, date) + page + f".PP\n{roff(check)}\n" + tail(others)


def main() -> None:
    programs, version, date, folder = sys.argv[1:]
    pages = {f"{name}.{PAGES[name][0]}": program(Path(programs) / name, version, date) for name in PAGES}
    pages[f"{TOML[0]}.{TOML[1]}"] = configuration(version, date)
    for name, page in pages.items():
        (Path(folder) / name).write_text(page)


if __name__ == "__main__":
    main()
