"""The page of saved memory."""

from bitcycle.report.evidence.memory import gather_memory, is_memory, render_memory
from tests.report.evidence.made import memory_file


def test_ratios_stand_in_the_table_and_what_saves_nothing_is_said():
    page = render_memory("memory", gather_memory([memory_file()]))
    text = page.files["memory.md"]
    assert "| resnet20 | int8 | 1.0 | 0.2 | 0.250 | 0.251 | 0.126 |" in text
    assert "Not less than float32: resnet20 by simulate." in page.sentence
    assert "n = 1, no spread" in text
    assert "python benchmarks/saved\\_memory.py" not in text  # a command is not escaped
    assert is_memory(memory_file())
