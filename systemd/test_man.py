"""The man pages: every word of a help text is in one, and no unit names a page that the package has not.

Run by `make test`. Whether groff likes the pages is asked by lintian, in `make deb`.
"""

from __future__ import annotations

import re
from pathlib import Path

import man
import pytest

HELP = """\
Does things, slowly

Usage: program [OPTIONS] <COMMAND>

Commands:
  list  List them [alias: ls]
  help  Print this message

Options:
      --socket <PATH>  The daemon's socket [default:
                       /run/x.sock]
  -h, --help           Print help

.A line that looks like a request, and a \\ back-slash.

Examples:
  program list | wc -l        how many

Exit codes: 0 ok,
1 failed.
"""


def test_a_help_text_becomes_a_page() -> None:
    page, commands = man.described(HELP, whole=True)
    assert commands == ["list"]
    headings = re.findall(r"^\.SH (.+)$", page, re.MULTILINE)
    assert headings == ["SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXAMPLES", "EXIT STATUS"]
    assert "\\fB\\-\\-socket <PATH>\\fR\nThe daemon's socket [default: /run/x.sock]\n" in page
    assert "  program list | wc \\-l        how many\n" in page
    assert "0 ok,\n1 failed." in page
    assert "Print help" not in page


def test_text_is_not_read_as_a_roff_request() -> None:
    page, _ = man.described(HELP, whole=True)
    assert "\n\\&.A line that looks like a request, and a \\e back\\-slash.\n" in page


def test_a_commands_part_omits_common_text() -> None:
    text = "Lists\n\nUsage: p list\n\nGlobal options:\n      --socket <PATH>  Where\n"
    part, _ = man.described(text, whole=False)
    assert part == "Lists.\n.PP\n.nf\np list\n.fi\n"


@pytest.mark.parametrize("text", ["Lists\n\nOptions:\n  -x  X\n", "Lists\n\nUsage: p\n\nOptions:\nno entry\n"])
def test_another_form_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="no"):
        man.described(text, whole=True)


def test_the_configuration_is_shown_whole() -> None:
    page = man.configuration("1.0", "2026-01-01")
    shown = page.replace("\\-", "-").replace("\\(ga", "`").replace("\\e", "\\")
    assert man.CONFIG.read_text().rstrip("\n") in shown


def test_units_name_only_existing_pages() -> None:
    there = {f"man:{name}({section})" for name, (section, *_) in man.PAGES.items()} | {
        f"man:{man.TOML[0]}({man.TOML[1]})"
    }
    units = [*Path(__file__).parent.glob("*.service"), *Path(__file__).parent.glob("*.socket")]
    lines = [line for unit in units for line in unit.read_text().splitlines() if line.startswith("Documentation=")]
    named = {page for line in lines for page in line.removeprefix("Documentation=").split()}
    assert named
    assert named <= there
