"""What every study takes, for the tables of docs/reproduce.md: BitOPs, and hours on this machine.

    python benchmarks/study_times.py results/data/studies.json [--only table2]

Reads no data. Counts the BitOPs of all runs and measures a step of each network on random inputs.
With --only, which may be repeated, what the file says of other studies stays.
`bitcycle study publish --render results --fill docs/reproduce.md` then makes the tables again.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from bitcycle.study.publish.jsontext import to_json
from bitcycle.study.publish.restore import read_data
from bitcycle.study.publish.times import study_times, times_file
from bitcycle.train.files import write_text


def main() -> None:
    """Measure and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", action="append", metavar="STUDY")
    options = parser.parse_args()
    torch.set_num_threads(1)  # its processor time is what one core takes
    options.file.parent.mkdir(parents=True, exist_ok=True)
    known = read_data(options.file)["studies"] if options.file.exists() else []
    rows = {row["name"]: row for row in known}
    for row in study_times(options.only, say=lambda line: print(line, flush=True)):
        rows[row["name"]] = row
        write_text(options.file, to_json(times_file(rows)))  # as far as it is known


if __name__ == "__main__":
    main()
