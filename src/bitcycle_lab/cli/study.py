"""`bitcycle study run|status|table|ls`: train and compare methods over seeds."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from bitcycle.extras import MissingExtraError

_OVERRIDES = (
    "Add any key of the configuration as an override for every method, such as "
    "--data.root ~/data --steps 100. A changed setting is a new run."
)

_EXAMPLES = """examples:
  bitcycle study run demo --jobs 2
  bitcycle study run table2 --data.root ~/data --num-seeds 3 --dry-run
  bitcycle study run my-study.yaml --seeds 0 1 2 --output runs/mine

Add any key of the configuration as an override for every method, such as --steps 100.
A changed setting is a new run.
"""


def register(subparsers: Any) -> None:
    """Add the command and its subcommands."""
    parser = subparsers.add_parser(
        "study", help="train and compare methods over seeds: run, status, table, ls"
    )
    inner = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_run(inner)
    status = inner.add_parser("status", help="print the state of a study's runs", epilog=_OVERRIDES)
    _add_study(status)
    status.set_defaults(run=run_status, takes_overrides=True)
    table = inner.add_parser(
        "table", help="print and write the tables of a study", epilog=_OVERRIDES
    )
    _add_study(table)
    table.set_defaults(run=run_table, takes_overrides=True)
    listing = inner.add_parser("ls", help="list the studies that come with the package")
    listing.add_argument("--json", action="store_true", help="print a JSON list")
    listing.set_defaults(run=run_ls)
    parser.set_defaults(run=run_ls, commands=inner.choices)


def _add_run(inner: Any) -> None:
    parser = inner.add_parser(
        "run",
        help="train the missing runs and resume interrupted ones",
        description="Train every method of a study with every seed, then print its table.\n"
        "Finished runs are kept and interrupted ones resume: repeat the command to complete it.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_study(parser)
    parser.add_argument("--jobs", type=int, metavar="N", help="parallel runs (default: 1)")
    parser.add_argument(
        "--engine", default="local", metavar="NAME", help="local (processes, default) or ray"
    )
    parser.add_argument("--address", help="address of a Ray cluster (default: Ray on this machine)")
    parser.add_argument("--retry-failed", action="store_true", help="repeat failed runs")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print the runs, their BitOPs, the time and what their seeds can tell, and exit",
    )
    parser.add_argument(
        "--quiet", action="store_true", help="print a line per finished run and the table"
    )
    parser.set_defaults(run=run_run, takes_overrides=True)


def _add_study(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("study", metavar="STUDY", help="a name of `study ls`, or a YAML file")
    parser.add_argument(
        "--output", default="runs", metavar="DIR", help="folder of the runs (default: runs)"
    )
    seeds = parser.add_mutually_exclusive_group()
    seeds.add_argument("--seeds", type=int, nargs="+", metavar="SEED", help="such as 0 1 2")
    seeds.add_argument("--num-seeds", type=int, metavar="N", help="seeds 0 to N-1")
    parser.add_argument(
        "--threads", type=int, metavar="N",
        help="threads per run, part of its configuration (default: the study's, or cores / jobs)",
    )  # fmt: skip


def run_run(arguments: argparse.Namespace) -> int:
    """Train, then print the table."""
    from bitcycle_lab.study.dry_run import dry_run
    from bitcycle_lab.study.engines import make_engine
    from bitcycle_lab.study.progress import make_watcher
    from bitcycle_lab.study.results import choose_options, read_study, write_options
    from bitcycle_lab.study.runner import check_data, run_study, runs_to_train
    from bitcycle_lab.study.study import adjust
    from bitcycle_lab.study.study_file import find_study

    output, jobs = arguments.output, arguments.jobs
    if jobs is not None and jobs < 1:
        raise ValueError(f"--jobs ({jobs}) must be at least 1")
    if Path(output).exists() and not Path(output).is_dir():
        raise ValueError(f"--output {output} is a file; give a folder")
    study = find_study(arguments.study)
    options = choose_options(
        study.name, output, study_options(arguments), num_jobs=jobs, engine=arguments.engine
    )
    study = adjust(study, options)
    before = read_study(study, output)
    todo = runs_to_train(before, retry_failed=arguments.retry_failed)
    if arguments.dry_run:
        print(dry_run(before, todo, num_jobs=jobs or 1))
        return 0
    check_data(run.config for run in todo)
    threads = max(method.config.threads or 1 for method in study.methods)
    engine = make_engine(
        arguments.engine, num_jobs=jobs, threads=threads, address=arguments.address
    )
    write_options(output, study.name, options)
    result = run_study(
        study,
        output,
        engine=engine,
        retry_failed=arguments.retry_failed,
        watcher=make_watcher("quiet" if arguments.quiet else "auto"),
    )
    return _finish(result)


def _finish(result: Any) -> int:
    """Print the results, the differences, the files and the failures; returns the exit code."""
    from bitcycle_lab.study.progress import failures_text

    print()
    _show(result, is_short=True)
    if not result.count("failed"):
        return 0
    print(f"\n{failures_text(result)}")
    return 1


def _show(result: Any, *, is_short: bool = False) -> None:
    """Print the tables; write tables and figures. is_short: results and differences only."""
    from bitcycle.tables import print_tables
    from bitcycle_lab.study.tables import study_tables, write_tables

    tables = study_tables(result)
    if is_short:
        tables = tuple(t for t in tables if t is tables[0] or t.name.endswith("-differences"))
    print_tables(tables)
    paths = write_tables(result)
    if result.count("done"):
        try:
            from bitcycle_lab.report.files import save_study

            paths += save_study(result)
        except (MissingExtraError, ValueError) as error:  # such as no finite value
            print(f"no picture: {error}")
    for path in paths:
        print(path)


def run_status(arguments: argparse.Namespace) -> int:
    """Print the state of the runs; changes nothing, and looks up no model: training does."""
    from bitcycle_lab.study.progress import status_text
    from bitcycle_lab.train.config import unchecked_names

    with unchecked_names():
        print(status_text(read(arguments)))
    return 0


def run_table(arguments: argparse.Namespace) -> int:
    """Print and write the tables of finished runs."""
    result = read(arguments)
    if not result.count("done"):
        raise ValueError(
            f"no run of {result.study.name} is finished in {arguments.output}: bitcycle study run "
            f"{arguments.study} trains them"
        )
    _show(result)
    return 0


def run_ls(arguments: argparse.Namespace) -> int:
    """Print the studies."""
    import json
    import shutil

    from bitcycle.tables import PIPE_WIDTH
    from bitcycle_lab.cli.ls import table
    from bitcycle_lab.study.study_file import list_studies

    rows = list_studies()
    width = shutil.get_terminal_size((PIPE_WIDTH, 24)).columns
    print(json.dumps(rows, indent=2) if arguments.json else table(rows, width=width))
    return 0


def read(arguments: argparse.Namespace) -> Any:
    """The study with its runs."""
    from bitcycle_lab.study.results import open_study, read_study

    output = Path(arguments.output)
    return read_study(open_study(arguments.study, output, study_options(arguments)), output)


def study_options(arguments: argparse.Namespace) -> Any:
    """The options of a study from the command line."""
    from bitcycle_lab.study.study import StudyOptions
    from bitcycle_lab.train.config_file import check_overrides

    seeds = arguments.seeds
    if arguments.num_seeds is not None:
        if arguments.num_seeds < 1:
            raise ValueError(f"--num-seeds ({arguments.num_seeds}) must be at least 1")
        seeds = range(arguments.num_seeds)
    options = StudyOptions(
        overrides=tuple(arguments.overrides),
        seeds=None if seeds is None else tuple(seeds),
        threads=arguments.threads,
    )
    check_overrides(arguments.overrides, arguments.options)
    return options
