"""YAML files that people write."""

import pytest

from bitcycle.train.yamlfile import MOST_BYTES, read_yaml


def read(folder, content):
    path = folder / "file.yaml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_yaml(path, purpose="tests")


def test_plain_data_aliases_and_merged_keys_are_read(tmp_path):
    text = "a: [1, 2.5, x, null, true]\nb: &b {lr: 1, steps: 2}\nc: {<<: *b, lr: 3}"
    assert read(tmp_path, text) == {
        "a": [1, 2.5, "x", None, True],
        "b": {"lr": 1, "steps": 2},
        "c": {"lr": 3, "steps": 2},
    }
    assert read(tmp_path, "") is None


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("a: [1", "expected ',' or ']'"),
        ("[" * 1_000, "nested too deeply"),
        ("a: 2026-13-45", "month must be in 1..12"),
        ("a: !!bool maybe", "maybe"),
        ("a: !!timestamp never", "groupdict"),
        ("a: !!python/name:os.system", "could not determine a constructor"),
        ("a: 1\n---\na: 2", "expected a single document"),
        (b"\xff\xfe\x00", "is not a text file"),
        ("x" * (MOST_BYTES + 1), "at most 1,048,576"),
    ],
)
def test_anything_else_is_one_line_that_names_the_file(tmp_path, content, reason):
    with pytest.raises(ValueError, match="file") as caught:
        read(tmp_path, content)
    message = str(caught.value)
    assert reason in message
    assert "\n" not in message
    assert message.startswith(str(tmp_path / "file.yaml"))
