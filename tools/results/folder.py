"""The results folder: pages from data files, its README, and the generated parts of documents."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bitcycle.analysis.config_id import config_id
from bitcycle.analysis.numbers import (
    DECIMALS,
    UNITS,
    bitops_text,
    cost_text,
    decimals_for,
    difference_text,
    fixed,
)
from bitcycle.files import write_text
from bitcycle.study.study import STUDIES
from bitcycle.study.summary import MethodSummary
from bitcycle.tables import escape_markdown
from tools.results.comparison import UNKNOWN, CyclicComparison, compare
from tools.results.measurements import (
    KINDS,
    OTHERS_NOTE,
    kind_of,
    others_table,
    speed_table,
    speed_words,
)
from tools.results.page import (
    Data,
    Page,
    link,
    name_file_in_errors,
    read_data,
    sentence,
    table,
    to_json,
)
from tools.results.pictures import FRONT_STUDY, front
from tools.results.run_times import time_sentence
from tools.results.sentences import bit_operations_sentence, place, study_sentence
from tools.results.study_data import StudyData, restore
from tools.results.study_data import merge as merge_studies
from tools.results.study_page import study_page

# the studies of the first page: their runs are long enough to tell something
FRONT_STUDIES = {"lengths": "Images", "table5-small": "Language"}
TIMES = "studies"  # the data file of what every study takes
PART = re.compile(
    r"(?P<open><!-- made: (?P<name>[\w-]+) -->\n)(?:(?!<!-- made: ).)*?(?P<end><!-- end -->)",
    re.DOTALL,
)


def read_studies(folder: Path) -> list[StudyData]:
    """The studies of a folder, by name."""
    found = []
    for path in sorted((folder / "data").glob("*.json")):
        data = read_data(path)
        if data.get("kind") == "study":
            with name_file_in_errors(path):
                found.append(restore(data))
                if found[-1].name != path.stem:
                    raise ValueError(f"it holds the study {found[-1].name!r}")
        elif data.get("kind") not in (*KINDS, TIMES):
            raise ValueError(f"{path} has the kind {data.get('kind')!r}; known: study, {[*KINDS]}")
    return found


def render(folder: Path) -> dict[str, str]:
    """File name -> text of every page and picture; writes nothing."""
    if not (folder / "data").is_dir():
        raise ValueError(f"there is no folder {folder / 'data'}; gather results first")
    studies, pages = read_studies(folder), list[Page]()
    for study in studies:
        with name_file_in_errors(folder / "data" / f"{study.name}.json"):
            pages.append(study_page(study, studies))
    for name, kind in KINDS.items():
        path = folder / "data" / f"{name}.json"
        if path.exists():
            with name_file_in_errors(path):
                pages.append(kind.page(read_data(path)))
    files = {name: text for page in pages for name, text in page.files().items()}
    path = folder / "data" / f"{FRONT_STUDY}.json"
    if path.exists():
        with name_file_in_errors(path):
            picture = front(read_data(path))
            files |= {"front.svg": picture} if picture else {}
    return {"README.md": overview(studies, pages, summary_lines(studies, folder)), **files}


def write(folder: Path, documents: Sequence[Path] = ()) -> list[Path]:
    """Write every page and fill the documents; return the paths that changed."""
    files = {folder / name: text for name, text in render(folder).items()}
    files |= {path: fill(path.read_text(encoding="utf-8"), folder, path) for path in documents}
    changed = []
    for path, text in files.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            write_text(path, text)
            changed.append(path)
    return changed


# -- adding data --------------------------------------------------------------------------------


def add(folder: Path, data: Data) -> Path:
    """Write the data file of a study or measurement, merged with what is there of the same runs.

    Data from which no page can be made raises an error and changes nothing.
    """
    name = data["name"] if data["kind"] == "study" else data["kind"]
    if data["kind"] == "study" and name in (*KINDS, TIMES, "README"):
        raise ValueError(f"a study cannot be named {name!r}, which is another page")
    path = folder / "data" / f"{name}.json"
    merge = KINDS[name].merge if name in KINDS else merge_studies
    if merge is not None and path.exists():
        with name_file_in_errors(path):
            data = merge(read_data(path), data)
    text = to_json(data)
    if name in KINDS:
        KINDS[name].page(json.loads(text))
    else:
        study_page(restore(json.loads(text)))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
    return path


def gather_files(paths: Sequence[Path]) -> dict[str, Any]:
    """The data of the files of a measurement, all of one kind."""
    contents, kinds = [], set()
    for path in paths:
        try:
            contents.append(json.loads(path.read_text(encoding="utf-8")))
            kinds.add(kind_of(contents[-1]))
        except (OSError, ValueError, AttributeError) as error:
            raise ValueError(f"{path}: {error}") from None
    if len(kinds) > 1:
        raise ValueError(f"files of several kinds ({', '.join(sorted(kinds))}): one at a time")
    with name_file_in_errors(", ".join(map(str, paths))):
        return KINDS[kinds.pop()].gather(contents)


# -- the README of the folder -------------------------------------------------------------------


def overview(studies: Sequence[StudyData], pages: Sequence[Page], lines: str) -> str:
    """Where cycling pays and where not, the runs that say so, links to all pages."""
    found = front_comparisons(studies)
    pictures = {page.name: page.picture[0] for page in pages if page.picture is not None}
    shown = [name for name in FRONT_STUDIES if name in pictures][:1]
    parts = [
        "<!-- made by tools/results from data/*.json; an edit here is lost -->",
        "# Results",
        "Where cycling the bits pays, and where not:",
        lines,
        *(f"[![{pictures[name]}]({name}.svg)]({name}.md)" for name in shown),
        headline_table(found),
        "Difference: CPT minus static, 95 % interval, paired by seed. Cost: training BitOPs, "
        "static = 1. Published: the paper's difference, in longer runs of larger networks. "
        "[More on the numbers](../docs/statistics.md).",
        _links("Measurements", [page for page in pages if page.name in KINDS]),
        _links(
            "Short studies, which say little about long runs",
            [page for page in pages if page.name not in (*KINDS, *FRONT_STUDIES)],
        ),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def front_comparisons(studies: Sequence[StudyData]) -> list[CyclicComparison]:
    """CPT against the static baseline in the studies of the first page."""
    known = {study.name: study for study in studies}
    found = [each for name in FRONT_STUDIES if name in known for each in compare(known[name])]
    return [each for each in found if each.static.label == each.group.baseline]


def summary_lines(studies: Sequence[StudyData], folder: Path, links: str = "") -> str:
    """Four lines: bit operations, time, images, language; none of a study without an interval."""
    found = front_comparisons(studies)
    known = {study.name: study for study in studies}
    path = folder / "data" / "run-times.json"
    lines = {
        "Bit operations": bit_operations_sentence(found),
        "Time": time_sentence(read_data(path)) if path.exists() else "",
        **{
            title: study_sentence(known[name])
            for name, title in FRONT_STUDIES.items()
            if any(each.verdict != UNKNOWN for each in found if each.study == name)
        },
    }
    pages = {"Time": "run-times", **{title: name for name, title in FRONT_STUDIES.items()}}
    return "\n".join(
        f"- **{link(title, f'{links}{pages[title]}.md') if title in pages else title}.** "
        f"{escape_markdown(text)}"
        for title, text in lines.items()
        if text
    )


def _links(title: str, pages: Sequence[Page]) -> str:
    """A paragraph of links, which takes less room than a list."""
    found = (link(_short(page.title), f"{page.name}.md") for page in pages)
    return f"{title}: {'; '.join(found)}." if pages else ""


def _short(title: str) -> str:
    """A title without its second half, unless the first half is only a number in a paper.

    >>> _short("Ten schedules: does cost predict quality?"), _short("Table 1 on digits: two halves")
    ('Ten schedules', 'Table 1 on digits: two halves')
    """
    return title if title.startswith(("Table ", "Fig. ")) else re.split("[:?]", title)[0]


def headline_table(comparisons: Sequence[CyclicComparison]) -> str:
    """CPT against static bits, a row per network, length and schedule."""
    rows = [
        [
            link(" on ".join(place(each.group)[:2]), f"{each.study}.md"),
            f"{each.cyclic.method.config.steps:,}",
            _value(each.cyclic, each.group.metric),
            _value(each.static, each.group.metric),
            difference_text(each.difference),
            cost_text(each.cost),
            str(each.difference.n),
            "" if each.published is None else fixed(each.published, DECIMALS, sign=True),
        ]
        for each in comparisons
    ]
    names = ["network", "steps", "CPT", "static", "difference", "cost", "n", "published"]
    return table(names, rows) if rows else ""


def _value(row: MethodSummary, metric: str) -> str:
    assert row.summary is not None
    name = "" if metric in UNITS else f"{metric} "
    mean = fixed(row.summary.mean, decimals_for(row.summary.std))
    return f"{row.label}: {name}{mean}{UNITS.get(metric, '')}"


# -- made parts of documents --------------------------------------------------------------------


def fill(text: str, folder: Path, document: Path) -> str:
    """The document with the parts between `<!-- made: NAME -->` and `<!-- end -->` replaced."""
    if text.count("<!-- made: ") != len(PART.findall(text)):
        raise ValueError(f"{document}: a part has no <!-- end --> before the next part")
    links = f"{os.path.relpath(folder, document.parent)}/"
    studies = read_studies(folder)

    def new(part: re.Match[str]) -> str:
        if part["name"] not in PARTS:
            raise ValueError(f"{document}: no part {part['name']!r}; known: {', '.join(PARTS)}")
        return f"{part['open']}{PARTS[part['name']](studies, folder, links)}\n{part['end']}"

    return PART.sub(new, text)


def _machine(studies: Sequence[StudyData], folder: Path, links: str) -> str:
    path = folder / "data" / f"{TIMES}.json"
    with name_file_in_errors(path):
        machine = read_data(path)["machine"]
        return escape_markdown(
            f"Times are of one core of {machine['processor']} ({machine['cpu_capability']}), torch "
            f"{machine['torch']}: measured where a study was run here (the fastest run of each "
            "method, times its seeds), otherwise estimated (about) from a step on random inputs. "
            "BitOPs are those of all runs together."
        )


def _reproduce(scale: str, studies: Sequence[StudyData], folder: Path, links: str) -> str:
    """A row per study of a scale: its data, its cost and time, and the runs that were made."""
    known = {study.name: study for study in studies}
    path = folder / "data" / f"{TIMES}.json"
    rows = []
    with name_file_in_errors(path):
        for entry in read_data(path)["studies"]:
            if entry["scale"] != scale:
                continue
            name, study = entry["name"], known.get(entry["name"])
            rows.append(
                [
                    f"[`{name}`]({links}{name}.md)" if study else f"`{name}`",
                    entry["description"],
                    ", ".join(entry["data"]) or "built in",
                    str(entry["runs"]),
                    *_cost_and_time(entry, study),
                ]
            )
    names = ["study", "what it answers", "data", "runs", "BitOPs", "time", "run here"]
    return table(names, rows)


def _cost_and_time(entry: Data, study: StudyData | None) -> tuple[str, str, str]:
    """(BitOPs, time, runs made): of the runs where all were made, else estimated."""
    rows = [] if study is None else [(study.ids[m.method.key], m) for m in study.result.methods]
    planned = _planned_runs(entry["name"]) if rows else {}
    done = [min(planned.get(identity, 0), len(method.results)) for identity, method in rows]
    if rows and sum(done) == entry["runs"]:
        bitops = sum(n * (method.bitops or 0.0) for n, (_, method) in zip(done, rows, strict=True))
        seconds = sum(
            n * min(run.seconds for run in method.results.values())
            for n, (_, method) in zip(done, rows, strict=True)
            if n
        )
        number = sum(len(method.results) for _, method in rows)
        here = "all" if number == entry["runs"] else f"all ({number} with more seeds)"
        return bitops_text(bitops), human(seconds), here
    bitops, uncounted, untimed = (entry[k] for k in ("bitops", "without_bitops", "without_time"))
    return (
        bitops_text(bitops) + (f" ({uncounted} runs not counted)" if uncounted else ""),
        "unknown"
        if untimed >= entry["runs"]
        else f"about {human(entry['seconds'])}"
        + (f" ({untimed} runs not timed)" if untimed else ""),
        f"{sum(done)} of {entry['runs']}" if sum(done) else "no",
    )


def _planned_runs(name: str) -> Counter[str]:
    """The number of runs of each configuration of a study, by its id."""
    runs = {run.config.run_name: run.method.config for run in STUDIES[name]().runs("runs")}
    return Counter(config_id(config) for config in runs.values())


def human(seconds: float) -> str:
    """A time with two digits, from seconds to years.

    >>> [human(s) for s in (8, 200, 5000, 200_000, 4e7)]
    ['8 s', '3 min', '1.4 h', '2.3 days', '1.3 years']
    """
    for size, unit in ((365 * 86_400, "years"), (86_400, "days"), (3600, "h")):
        if seconds >= size:
            number = seconds / size
            return f"{number:.1f} {unit}" if number < 10 else f"{number:,.0f} {unit}"
    return f"{seconds / 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"


def _speed_data(folder: Path) -> Data:
    return read_data(folder / "data" / "speed.json")


def _speed(studies: Sequence[StudyData], folder: Path, links: str) -> str:
    with name_file_in_errors(folder / "data" / "speed.json"):
        data = _speed_data(folder)
        answer = escape_markdown(sentence(speed_words(data)))
        return f"{speed_table(data)}\n\n{answer} {link('All bits', f'{links}speed.md')}."


def _others(studies: Sequence[StudyData], folder: Path, links: str) -> str:
    with name_file_in_errors(folder / "data" / "speed.json"):
        return f"{others_table(_speed_data(folder))}\n\n{OTHERS_NOTE}"


PARTS: Mapping[str, Callable[[Sequence[StudyData], Path, str], str]] = {
    "summary": summary_lines,
    "machine": _machine,
    "speed": _speed,
    "others": _others,
    "reproduce-small": partial(_reproduce, "small"),
    "reproduce-full": partial(_reproduce, "full"),
}
