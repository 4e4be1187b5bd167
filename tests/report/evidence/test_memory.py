"""The page of saved memory."""

from bitcycle.report.evidence.memory import gather_memory, is_memory, render_memory
from tests.report.evidence.made import MACHINE_LINE, memory_file, without_made


def test_ratios_stand_in_the_table_and_what_saves_nothing_is_said():
    page = render_memory("memory", gather_memory([memory_file()]))
    text = page.files["memory.md"]
    assert "| resnet20 | int8 | 1.0 | 0.2 | 0.250 | 0.251 | 0.126 |" in text
    assert "Not less than float32: resnet20 by simulate." in page.sentence
    assert "n = 1, no spread" in text
    assert "python benchmarks/saved\\_memory.py" not in text  # a command is not escaped
    assert is_memory(memory_file())


def test_machine_wall_clock_and_command_are_told():
    text = render_memory("memory", gather_memory([memory_file()])).files["memory.md"]
    assert f"{MACHINE_LINE}.\n\nWall-clock: 1 min 15 s.\n" in text
    assert "\npython benchmarks/saved_memory.py --json memory.json\n" in text
    some = {**memory_file(), "only": ["resnet20"]}
    text = render_memory("memory", gather_memory([some])).files["memory.md"]
    assert "saved_memory.py --only resnet20 --json memory.json\n" in text


def test_an_older_file_has_its_versions():
    old = {**without_made(memory_file()), "torch": "2.13.0", "bitcycle": "0.1.0"}
    text = render_memory("memory", gather_memory([old])).files["memory.md"]
    assert "Machine: not recorded, torch 2.13.0, bitcycle 0.1.0.\n" in text
    assert "Wall-clock: not recorded.\n" in text
