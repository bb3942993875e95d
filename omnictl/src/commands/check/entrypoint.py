"""Says what is wrong with a model's module: one JSON value on standard output, null if nothing is.

Run by `omnictl check` as python -I -S -c SCRIPT FILE FUNCTION SIZE KIND, where SIZE is that of batches and KIND that of
the model. Compiles the file and looks at its syntax tree; nothing of it is executed.
"""

import ast
import difflib
import json
import sys
import warnings

KINDS = {
    "Embeddings": "embeddings",
    "Rerank": "rerank",
    "SpeechToText": "speech-to-text",
    "TextGeneration": "text-generation",
    "TextToImage": "text-to-image",
    "TextToSpeech": "text-to-speech",
}
"""Request types of the package `omni`, and the kind of each (`omni/_engine/kinds.py`)."""
PACKAGE = ("omni", "omni.generation", "omni.tasks")


def top_level(body):
    """The statements that run when the module is imported, also those inside if, try, match, with and loops."""
    for statement in body:
        yield statement
        if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            for block in ("body", "orelse", "finalbody"):
                yield from top_level(getattr(statement, block, []))
            for clause in getattr(statement, "handlers", []) + getattr(statement, "cases", []):
                yield from top_level(clause.body)


def names(statement):
    """The names a statement binds; "*" when only an import could tell."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [statement.name]
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return [alias.asname or alias.name.split(".")[0] for alias in statement.names]
    if isinstance(statement, (ast.Assign, ast.AnnAssign)):
        return [
            node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        ]
    return []


def takes(statement, count):
    """True if a function can be called with this many arguments; the effect of decorators is unknown."""
    arguments = statement.args
    positional = len(arguments.posonlyargs) + len(arguments.args)
    required = positional - len(arguments.defaults)
    keywords_have_defaults = all(default is not None for default in arguments.kw_defaults)
    fits = required <= count and (positional >= count or arguments.vararg is not None) and keywords_have_defaults
    return fits or bool(statement.decorator_list)


def called_wrongly(bound, function, parameters):
    """Line, message and hint when a function of the module is none, or cannot be called as a start calls it."""
    statement = bound.get(function)
    example = "write `def %s(%s):`" % (function, ", ".join(parameters))
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
        if not takes(statement, len(parameters)):
            return statement.lineno, "`%s` cannot be called with (%s)" % (function, ", ".join(parameters)), example
    elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        empty = isinstance(statement.value, ast.Constant) and statement.value.value is None
        literal = isinstance(statement.value, (ast.Constant, ast.List, ast.Dict, ast.Set, ast.Tuple, ast.JoinedStr))
        if literal and not (empty and len(parameters) == 1):  # a hook that is None is left out
            return statement.lineno, "`%s` is not a function" % function, example
    return None


def imported(body):
    """The names that a module has from the package: each with its dotted name there."""
    found = {}
    for statement in top_level(body):
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                if alias.name in PACKAGE:
                    found[alias.asname or "omni"] = alias.name if alias.asname else "omni"
        elif isinstance(statement, ast.ImportFrom) and statement.module in PACKAGE and not statement.level:
            for alias in statement.names:
                names = KINDS if alias.name == "*" else [alias.name]
                found.update({alias.asname or name: statement.module + "." + name for name in names})
    return found


def type_name(annotation, known):
    """The name of a type of the package, also in a list; None for any other annotation."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        try:
            annotation = ast.parse(annotation.value, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
        return type_name(annotation, known) if not isinstance(annotation, ast.Constant) else None
    if isinstance(annotation, ast.Subscript):
        outer = getattr(annotation.value, "attr", getattr(annotation.value, "id", ""))
        return type_name(annotation.slice, known) if outer in ("list", "List", "Sequence") else None
    parts = []
    while isinstance(annotation, ast.Attribute):
        parts.insert(0, annotation.attr)
        annotation = annotation.value
    if not isinstance(annotation, ast.Name) or annotation.id not in known:
        return None
    module, _, name = ".".join([known[annotation.id], *parts]).rpartition(".")
    is_near = name in KINDS or difflib.get_close_matches(name, KINDS, 1)  # others may be right: `omni.Request`
    return name if module in PACKAGE and is_near else None


def is_pydantic(annotation, bound):
    """True for a class of this module that is a pydantic model."""
    statement = bound.get(annotation.id) if isinstance(annotation, ast.Name) else None
    bases = statement.bases if isinstance(statement, ast.ClassDef) else []
    return any(getattr(base, "attr", getattr(base, "id", "")) == "BaseModel" for base in bases)


def of_another_kind(statement, known, bound, kind):
    """Line, message, hint and True for a note, when a handler's annotation is not that of the model's kind."""
    if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    parameters = statement.args.posonlyargs + statement.args.args
    if not parameters:
        return None
    line, name = parameters[0].lineno, type_name(parameters[0].annotation, known)
    right = next((name for name, other in KINDS.items() if other == kind), None)
    if right and is_pydantic(parameters[0].annotation, bound):
        message = "`%s` takes a pydantic model, and gets requests for %s" % (statement.name, kind)
        return line, message, "annotate it with `%s`" % right, True
    return None if name in (None, right) else (line, *of_type(statement.name, name, kind, right))


def of_type(function, name, kind, right):
    """Message, hint and True for a note, about a type of the package that is not the right one of this kind."""
    if name not in KINDS:
        near = difflib.get_close_matches(name, KINDS, 1)
        return "`omni` has no `%s`" % name, "did you mean `%s`?" % near[0], False
    takes = "`%s` takes requests for %s" % (function, KINDS[name])
    hint = 'write `kind = "%s"` in [model] of omni.toml' % KINDS[name]
    if kind == "custom":
        return takes + ", and the model's kind is `custom`: its clients have /ai/run alone", hint, True
    message = "%s, and `kind` in [model] of omni.toml is %s: every request is refused" % (takes, kind)
    return message, "annotate it with `%s`, or %s" % (right, hint), False


def wrong(path, function, size, kind):
    """Line, message and hint of the first thing that is wrong, and True if it is a note; None if nothing is."""
    with open(path, "rb") as file:
        source = file.read()
    try:
        tree = ast.parse(source, path)
        compile(tree, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        python = "%d.%d" % sys.version_info[:2]
        return error.lineno, "Python %s does not accept it: %s" % (python, error.msg), "correct the line"
    except (ValueError, RecursionError, MemoryError) as error:
        return None, "Python cannot read it: %s" % error, "correct the file"

    bound = {name: statement for statement in top_level(tree.body) for name in names(statement)}
    definition = "write `def %s(request, context):`" % function
    if size > 1 and "handle_batch" not in bound and "*" not in bound:
        hint = "write `def handle_batch(requests, context):`, or remove `max` from [batching] in omni.toml"
        return None, "`handle_batch` is not defined at the top level, and [batching] needs it", hint
    if function not in bound and "handle_batch" not in bound and "*" not in bound:
        near = difflib.get_close_matches(function, bound, 1)
        hint = "did you mean `%s`?" % near[0] if near else definition
        return None, "`%s` is not defined at the top level" % function, hint
    found = called_wrongly(bound, function, ("requests" if function == "handle_batch" else "request", "context"))
    found = found or called_wrongly(bound, "handle_batch", ("requests", "context"))
    for hook in ("setup", "healthcheck", "teardown"):
        found = found or called_wrongly(bound, hook, ("context",))
    known = imported(tree.body)
    for name in (function, "handle_batch"):
        found = found or of_another_kind(bound.get(name), known, bound, kind)
    return found or None


warnings.simplefilter("ignore")
found = wrong(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
json.dump(found and dict(zip(("line", "message", "hint", "is_note"), found)), sys.stdout)
