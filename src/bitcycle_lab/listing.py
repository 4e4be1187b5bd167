"""What registries hold, read from the source: lists that need neither torch nor the objects.

`bitcycle ls` and the state of a study name models, datasets and metrics. Their registries import
every file of a package, and with it torch; the decorators of those files say the same.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Constants = dict[str, Any]
Definition = ast.FunctionDef | ast.ClassDef


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A registration as its file states it.

    summary: the first line of the docstring. arguments: the keyword arguments of the decorator.
    parameters: of the function, or of the class's own `__init__`. attributes: of the class.
    Arguments and attributes that are not constants are left out.
    """

    name: str
    summary: str = ""
    arguments: Constants = field(default_factory=dict)
    parameters: tuple[str, ...] = ()
    attributes: Constants = field(default_factory=dict)


@functools.cache
def read_entries(package: str, decorator: str) -> dict[str, Entry]:
    """What the files of a package register, by sorted name, read without importing them.

    decorator: as the files write it, such as "QUANTIZERS.register". The name is its first argument,
    its argument `name`, or the name of the function. It may stand in a loop over constants.

    >>> read_entries("bitcycle.quantizers", "QUANTIZERS.register")["pow2"].summary
    '`absmax` with steps that are powers of two.'
    """
    spec = importlib.util.find_spec(package)  # imports only the packages above it
    if spec is None or spec.submodule_search_locations is None:
        raise ValueError(f"{package!r} is not a package")
    found: dict[str, Entry] = {}
    for folder in spec.submodule_search_locations:
        for file in Path(folder).rglob("*.py"):
            text = file.read_text(encoding="utf-8")
            if f"{decorator}(" in text:
                entries = _read_block(ast.parse(text).body, decorator, {})
                found |= {entry.name: entry for entry in entries}
    return dict(sorted(found.items()))


def _read_block(body: list[ast.stmt], decorator: str, known: Constants) -> Iterator[Entry]:
    """The registrations of a file or of a loop. known: the constants that it can refer to."""
    for node in body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                known = known | _evaluate({name: value}, known)
            case ast.For(target=target, iter=rows, body=inner):
                names = [each.id for each in ast.walk(target) if isinstance(each, ast.Name)]
                for row in _evaluate({"rows": rows}, known).get("rows", ()):
                    values = row if isinstance(target, ast.Tuple) else (row,)
                    own = dict(zip(names, values, strict=True))
                    yield from _read_block(inner, decorator, known | own)
            case ast.FunctionDef() | ast.ClassDef():
                for call in node.decorator_list:
                    if isinstance(call, ast.Call) and ast.unparse(call.func) == decorator:
                        yield _read_entry(call, node, known)
            case ast.Expr(value=ast.Call(func=ast.Call() as call)):  # register("name")(function)
                if ast.unparse(call.func) == decorator:
                    yield _read_entry(call, None, known)


def _read_entry(call: ast.Call, item: Definition | None, known: Constants) -> Entry:
    given = {word.arg: word.value for word in call.keywords if word.arg is not None}
    arguments = _evaluate({**given, "": call.args[0]} if call.args else given, known)
    name = arguments.pop("", None) or arguments.get("name") or (item.name if item else "")
    if item is None:
        return Entry(name=name, arguments=arguments)
    attributes: dict[str, ast.expr] = {}
    function = item if isinstance(item, ast.FunctionDef) else None
    for node in [] if function else item.body:
        match node:
            case ast.AnnAssign(target=ast.Name(id=attribute), value=ast.expr() as value):
                attributes[attribute] = value
            case ast.FunctionDef(name="__init__"):
                function = node
    options = [] if function is None else [*function.args.args, *function.args.kwonlyargs]
    return Entry(
        name=name,
        summary=(ast.get_docstring(item) or "").partition("\n")[0],
        arguments=arguments,
        parameters=tuple(each.arg for each in options if each.arg != "self"),
        attributes=_evaluate(attributes, known),
    )


def _evaluate(expressions: Mapping[str, ast.expr], known: Constants) -> Constants:
    """The values of expressions made of constants: literals, f-strings, and names in `known`."""
    found: Constants = {}
    for name, node in expressions.items():
        code = compile(ast.Expression(node), "<source>", "eval")
        with suppress(Exception):  # anything else fails: there are no names, not even built-in ones
            found[name] = eval(code, {"__builtins__": {}}, known)
    return found
