"""bitcycle ls recipes, models, datasets."""

import json

from bitcycle.cli.main import main


def rows_of(kind, capsys):
    assert main(["ls", kind, "--json"]) == 0
    return {row["name"]: row for row in json.loads(capsys.readouterr().out)}


def test_recipes_are_listed_with_their_cells_and_published_results(capsys):
    row = rows_of("recipes", capsys)["cifar100-resnet74-static-6-6"]
    assert row["cell of"] == "Fig. 5, Table 2, Table 8"
    assert row["published"] == "70.31, 70.31"
    assert row["what"] == "resnet74 on cifar100, forward 6, backward 6, 64,000 steps"


def test_models_and_datasets_are_listed(capsys):
    assert "12 basic blocks" in rows_of("models", capsys)["resnet74"]["what"]
    assert "files: wiki." in rows_of("datasets", capsys)["wikitext-2"]["what"]
