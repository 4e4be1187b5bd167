"""The `bitcycle` command: finds the commands, runs one, and prints an error as one line.

A command is a module of this package with `register(subparsers)`, which adds a parser and sets its
default `run`: a function of the parsed arguments that returns an exit code. A command with
subcommands has them, by name, as its default `commands`.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import pkgutil
import re
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any, NoReturn

import bitcycle_lab.cli
from bitcycle.extras import MissingExtraError
from bitcycle.registry import closest
from bitcycle.version import VERSION
from bitcycle.warnings import BitcycleWarning
from bitcycle_lab.plugins import import_plugins

OK, FAILURE, USAGE, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141
PATIENCE = 10.0  # seconds that other ranks wait for the first to print its error


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns its exit code: 0, 1 (failure), 2 (wrong usage or value)."""
    argv = list(sys.argv[1:] if argv is None else argv)
    is_debug = "--debug" in argv
    try:
        parser, commands = build_parser()
        own, overrides = split_overrides(argv, commands)
        arguments, unknown = parser.parse_known_args(own)
        if unknown:
            _fail_unknown(unknown, argv, parser, commands)
        arguments.overrides = overrides
        arguments.options = own_options(argv, commands)
        is_quiet = getattr(arguments, "quiet", False) or not hasattr(arguments, "shows_log")
        with _plain_warnings(), _shown_log(is_quiet=is_quiet), _only_first_prints():
            import_plugins(arguments.plugins)
            code: int = arguments.run(arguments)
        sys.stdout.flush()  # raises for a closed pipe here, not at interpreter exit
        return code
    except SystemExit as stop:  # argparse: help, version, usage
        return stop.code if isinstance(stop.code, int) else OK
    except KeyboardInterrupt:
        print("bitcycle: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # the reader is gone: what is still buffered must not raise again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception as error:
        if is_debug:
            raise
        return _report(error)


def _report(error: Exception) -> int:
    if isinstance(getattr(error, "exit_code", None), int):  # stopped by a signal
        if _is_first():
            print(f"bitcycle: {error}", file=sys.stderr)
        return int(error.exit_code)  # type: ignore[attr-defined]
    if isinstance(error, ValueError | FileNotFoundError):  # a wrong value or path
        message, code = str(error), USAGE
    elif isinstance(error, OSError | ArithmeticError | MissingExtraError):
        message, code = str(error), FAILURE
    elif isinstance(error, RuntimeError) and "Connection closed by peer" in str(error):
        message, code = "another process of this run ended; see its message", FAILURE
    else:
        message, code = f"unexpected {type(error).__name__}: {error} (--debug shows where)", FAILURE
    sender = "bitcycle"
    if not _is_first():
        # ranks usually fail with the same error: the launcher ends this one once the first has
        # printed it; otherwise this error is different
        time.sleep(PATIENCE)
        sender = f"bitcycle [process {os.environ.get('RANK')}]"
    print(f"{sender}: error: {message}", file=sys.stderr)
    return code


def _is_first() -> bool:
    """Whether this is the first process of the machine; torchrun starts several."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


@contextmanager
def _only_first_prints() -> Iterator[None]:
    """Discard the standard output of all ranks but the first."""
    if os.environ.get("RANK", "0") == "0":
        yield
        return
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        yield


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Print bitcycle's warnings as one line each, without the source line."""
    shown = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
        if issubclass(category, BitcycleWarning):
            if not _is_first():
                return
            print(f"bitcycle: warning: {message}", file=sys.stderr)
        else:
            shown(message, category, *rest, **more)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


@contextmanager
def _shown_log(*, is_quiet: bool) -> Iterator[None]:
    """Print the library's log to standard error, equal lines once; is_quiet: warnings alone."""
    log, shown = logging.getLogger("bitcycle"), set()

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if _is_first() and (text := record.getMessage()) not in shown:
                shown.add(text)
                print(f"bitcycle: {text}", file=sys.stderr)

    handler, level = Lines(), log.level
    log.addHandler(handler)
    log.setLevel(logging.WARNING if is_quiet else logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


_CHOICE = re.compile(
    r"(?P<what>.+): invalid choice: '(?P<name>.*)' \(choose from (?P<known>.*)\)", re.DOTALL
)


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors look like bitcycle's others.

    A command's default `if_missing` says what to give when a required argument is missing.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **options})

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        choice = _CHOICE.fullmatch(message)
        if choice is not None:
            names = [name.strip(" '") for name in choice["known"].split(",")]
            likely = closest(choice["name"], names)
            guess = f"did you mean {likely!r}? " if likely else ""
            message = (
                f"{choice['what']}: unknown {choice['name']!r}; {guess}known: {', '.join(names)}"
            )
        way_out = self.get_default("if_missing")
        if way_out and "arguments are required" in message:
            message = f"{message}; {way_out}"
        self.exit(USAGE, f"bitcycle: error: {message}\n")


Commands = Mapping[str, argparse.ArgumentParser]


def split_overrides(argv: Sequence[str], commands: Commands) -> tuple[list[str], list[str]]:
    """Split arguments into those of the command and `--key value` pairs of the configuration.

    argparse would take the value of an unknown option for a positional argument. Pairs may come
    before or after the name of the recipe.
    """
    command = _find_command(argv, commands)
    if command is None or not command.get_default("takes_overrides"):
        return list(argv), []
    known = own_options(argv, commands)
    own: list[str] = []
    overrides: list[str] = []
    words = iter(argv)
    for word in words:
        if not word.startswith("--") or word.partition("=")[0] in known:
            own.append(word)
            continue
        overrides.append(word)
        if "=" not in word:
            overrides.extend(value for value in [next(words, None)] if value is not None)
    return own, overrides


def _fail_unknown(
    unknown: Sequence[str],
    argv: Sequence[str],
    parser: argparse.ArgumentParser,
    commands: Commands,
) -> NoReturn:
    """Report arguments that the command does not take, with the nearest option of the first."""
    options = own_options(argv, commands)
    near = closest(unknown[0].partition("=")[0], options)
    hint = f"; did you mean {near!r}?" if near else ""
    command = _find_command(argv, commands) or parser
    command.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")


def own_options(argv: Sequence[str], commands: Commands) -> list[str]:
    """The options of the command itself, such as --quiet."""
    command = _find_command(argv, commands)
    # argparse has no public way to ask
    return [] if command is None else list(command._option_string_actions)


def _find_command(argv: Sequence[str], commands: Commands) -> argparse.ArgumentParser | None:
    """The command or subcommand that the arguments name."""
    command = next((commands[word] for word in argv if word in commands), None)
    inner: Commands = {} if command is None else command.get_default("commands") or {}
    return next((inner[word] for word in argv if word in inner), command)


def build_parser() -> tuple[argparse.ArgumentParser, Commands]:
    """The parser with every command of the package, and the commands by name."""
    parser = Parser(
        prog="bitcycle", description="Train PyTorch models at low precision on a schedule."
    )
    parser.add_argument("--version", action="version", version=f"bitcycle {VERSION}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in pkgutil.iter_modules(bitcycle_lab.cli.__path__):
        file = importlib.import_module(f"bitcycle_lab.cli.{module.name}")
        register = getattr(file, "register", None)
        if register is not None:
            register(commands)
    plugins: list[str] = []
    parser.set_defaults(plugins=plugins)
    _add_import(parser, plugins)
    for command in commands.choices.values():  # so that `bitcycle schedule --debug` works
        for each in (command, *(command.get_default("commands") or {}).values()):
            each.add_argument(
                "--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS
            )
            _add_import(each, plugins)
    return parser, commands.choices


def _add_import(parser: argparse.ArgumentParser, plugins: list[str]) -> None:
    """Add --import, which may stand before and after the command and be repeated."""

    class Append(argparse.Action):
        def __call__(self, parser: Any, namespace: Any, value: Any, option: Any = None) -> None:
            plugins.append(value)  # a namespace of a command would replace that of `bitcycle`

    parser.add_argument(
        "--import",
        action=Append,
        dest="plugins",
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="first execute this Python file, which registers schedules, quantizers, models or "
        "datasets of your own; may be repeated",
    )


if __name__ == "__main__":
    sys.exit(main())
