"""Says what is wrong with a model's module: one JSON value on standard output, null if nothing is.

Run by `omnictl check` as python -I -S -c SCRIPT FILE FUNCTION SIZE, where SIZE is that of batches. Compiles the file
and looks at its syntax tree; nothing of it is executed.
"""

import ast
import difflib
import json
import sys
import warnings


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


def wrong(path, function, size):
    """Line, message and hint of the first thing that is wrong; None if nothing is."""
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
    return found


warnings.simplefilter("ignore")
found = wrong(sys.argv[1], sys.argv[2], int(sys.argv[3]))
json.dump(found and dict(zip(("line", "message", "hint"), found)), sys.stdout)
