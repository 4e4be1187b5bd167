"""Runs of shipped studies are found again: their folders are named after settings and recipes."""

import hashlib

import pytest

from bitcycle_lab.study.study import STUDIES

# first digits of the sha256 of the sorted folder names; a change loses the runs that people have
FOLDERS = {
    "critical-periods": "b55c3d0b975a",
    "critical-periods-small": "dfa1badd5bfd",
    "demo": "22e66fb2013c",
    "digits": "acf7492d47e9",
    "fig1": "9d581cd8d451",
    "fig1-small": "4dc9d70305d3",
    "fig2": "58d3696b198f",
    "fig2-small": "4dc9d70305d3",
    "fig4": "2cbae80e3403",
    "fig4-small": "65ba1b109161",
    "fig5": "9773a7a18224",
    "fig5-small": "9fabb3da8285",
    "fig6": "f5d40a86fd21",
    "fig6-small": "49e57d61710d",
    "fig7": "c9e963e59cd2",
    "fig7-small": "e8baac6cbb73",
    "fig8": "715fa0ee2022",
    "fig8-small": "dcb279d6dedd",
    "fig9": "122481b08256",
    "fig9-small": "cb0a3fdfbb50",
    "formats-small": "2a00b9361ad9",
    "gcn-small": "57bf0a2c000f",
    "lengths": "3cd96f9c968b",
    "quantizers-small": "642135c46809",
    "schedule-suite": "6a96fe6cd070",
    "schedule-suite-lstm-small": "a57bdc636d8f",
    "schedule-suite-small": "f8c607beb322",
    "snli-small": "c9df2b4dc7bc",
    "table1": "17bd7f9bbdae",
    "table1-small": "7c965c7b80b8",
    "table2": "80ad05adb438",
    "table2-small": "53244685af37",
    "table3": "8b223920f8c4",
    "table3-small": "b2bd83e37ef9",
    "table4": "13bd2fc2f8d7",
    "table4-small": "23d0450e8d7d",
    "table5": "75a2d5cd67b5",
    "table5-small": "1cfe47891186",
    "table6": "35106cd709e8",
    "table6-small": "896540702d27",
    "table7": "51891128fab3",
    "table7-small": "26a844f8c593",
    "table8": "7803946198da",
    "table8-small": "b9bbcb0441bc",
}


def test_every_study_is_here():
    assert STUDIES.names() == sorted(FOLDERS)


@pytest.mark.parametrize("name", FOLDERS)
def test_the_folders_of_a_study_keep_their_names(name):
    names = sorted(run.config.run_name for run in STUDIES[name]().runs("runs"))
    assert hashlib.sha256("\n".join(names).encode()).hexdigest()[:12] == FOLDERS[name]
