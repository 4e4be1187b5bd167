"""Recipes in groups, filtered by words: what `bitcycle ls recipes` prints."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bitcycle.recipes.base import COST_NOTE, FOLLOW_UP, RecipeInfo, base_of, list_recipes

SMALL = "small"
SMALL_WITH_FILES = "small, own data"
BASES = "full size, own data"
OTHERS = "others"
SUBJECTS = {
    SMALL: "seconds on two cores",
    SMALL_WITH_FILES: "seconds or minutes on two cores; set the folder with --data.root",
    BASES: "the base recipes of the tables below; set the folder with --data.root",
    "CPT Table 1": "precision and learning rate of the first half",
    "CPT Table 2": "CPT against static bits of three quantizers",
    "CPT Table 3": "CPT against static bits on ImageNet",
    "CPT Table 4": "CPT up to full precision",
    "CPT Table 5": "CPT against static bits for language models",
    "CPT Table 6": "shapes of the cycle",
    "CPT Table 7": "late starts",
    "CPT Table 8": "cycled gradients",
    "CPT Fig. 5": "costs of networks that no table has",
    FOLLOW_UP: "Better Schedules for Low Precision Training",
}


@dataclass(frozen=True)
class RecipeGroup:
    """The recipes of one table ("CPT Table 2"), base recipes first."""

    name: str
    recipes: tuple[RecipeInfo, ...]

    @property
    def subject(self) -> str:
        """What the table is about."""
        return SUBJECTS.get(self.name, "")

    @property
    def title(self) -> str:
        """The name, and what the table is about."""
        return f"{self.name}: {self.subject}" if self.subject else self.name

    @property
    def is_table(self) -> bool:
        """Whether a paper is the source: the overview shows such a group as one line."""
        return self.name not in (SMALL, SMALL_WITH_FILES, BASES, OTHERS)

    @property
    def words(self) -> str:
        """The words that list a table's group: "table 2"."""
        return self.name.removeprefix("CPT ").replace(".", "").lower()

    @property
    def notes(self) -> tuple[str, ...]:
        """What the recipes of a table say, each once; other recipes have a note in their row.

        A note about costs is left out where the table's accuracies are shown.
        """
        if not self.is_table:
            return ()
        notes = dict.fromkeys(note for info in self.recipes for note in info.notes)
        shows_costs = any("GBitOPs" in self.published(info) for info in self.recipes)
        return tuple(note for note in notes if shows_costs or not note.startswith(COST_NOTE))

    def note(self, info: RecipeInfo) -> str:
        """What the bits of a recipe do not say; empty in a table, whose notes follow it."""
        return "" if self.is_table or self.name == BASES else "; ".join(info.notes)

    def published(self, info: RecipeInfo) -> str:
        """What this table prints of a recipe: "72.35 %"; empty where it prints nothing.

        >>> [table2] = find_recipes(["table2", "cifar100-resnet74-cpt-3-8-8"])
        >>> table2.published(table2.recipes[0])
        '72.35 %'
        """
        numbers = [p for p in info.published if p.where == self.name]
        numbers = [p for p in numbers if p in info.results] or numbers
        return ", ".join(
            f"{p.value:.2f} %" if p.metric == "accuracy" else f"{p.value:g} {p.unit or 'ppl'}"
            for p in numbers
        )


def find_recipes(words: Iterable[str] = ()) -> list[RecipeGroup]:
    """The recipes that contain all words in their name, table, model or dataset.

    Small recipes come first, then every table in turn. A recipe that several tables contain is in
    the group of each. The word "cpt" is a method: it does not match the title "CPT Table 4".

    >>> [(group.name, len(group.recipes)) for group in find_recipes(["table", "4", "resnet18"])]
    [('CPT Table 4', 3)]
    """
    text = " ".join(words).lower()
    wanted = re.sub(r"\b(table|fig)(?:ure)?s?\.?(?: *(?=\d)|(?= |$))", r"\1", text).split()
    groups = _groups()
    found = []
    for group in groups:
        kept = [info for info in group.recipes
                if all(word in _searched(group, info) for word in wanted)]  # fmt: skip
        if kept:
            found.append(RecipeGroup(group.name, tuple(kept)))
    if not found:
        texts = [_searched(group, info) for group in groups for info in group.recipes]
        raise ValueError(f"no recipe contains {' and '.join(wanted)}; {_hint(wanted, texts)}")
    return found


def find_bases(groups: Iterable[RecipeGroup]) -> RecipeGroup:
    """The base recipes of all groups in one."""
    bases = {info for group in groups for info in group.recipes if info.cycles is not None}
    return RecipeGroup(BASES, tuple(sorted(bases, key=_order)))


def example(shown: Sequence[RecipeInfo]) -> str:
    """A command that trains the first base recipe of those shown, or the first recipe.

    >>> [table5] = find_recipes(["table5", "ptb"])
    >>> example(table5.recipes)
    'bitcycle train ptb-lstm --precision.forward CR:5-8:32 --precision.backward 8 --data.root DIR'
    """
    by_need = sorted(shown, key=lambda info: (info.cycles is None, info.needs_data is not None))
    first = by_need[0]
    command = f"bitcycle train {first.name}"
    if first.cycles is not None:
        runs = [info.bits for info in shown if base_of(info.name) == first.name]
        cycled = [bits for bits in runs if re.fullmatch(r"CR:[\d:-]+ / \w+", bits)]
        forward, backward = (cycled or [f"CR:3-8:{first.cycles} / 8"])[-1].split(" / ")
        command += f" --precision.forward {forward} --precision.backward {backward}"
    return command if first.needs_data is None else f"{command} --data.root DIR"


def _groups() -> list[RecipeGroup]:
    infos = sorted(list_recipes(), key=_order)
    small = [info for info in infos if info.scale == "small"]
    groups = {
        SMALL: [info for info in small if info.needs_data is None],
        SMALL_WITH_FILES: [info for info in small if info.needs_data is not None],
    }
    tables = {cell for info in infos for cell in info.cells}
    for table in sorted(tables, key=lambda table: ("Table" not in table, table)):
        cells = [info for info in infos if table in info.cells]
        bases = {base_of(info.name) for info in cells}
        groups[table] = [info for info in infos if info in cells or info.name in bases]
    shown = {info.name for members in groups.values() for info in members}
    groups[OTHERS] = [info for info in infos if info.name not in shown]
    return [RecipeGroup(name, tuple(members)) for name, members in groups.items()]


def _order(info: RecipeInfo) -> tuple[bool, bool, list[str]]:
    """Base recipes, then those that need no data; resnet8 before resnet20."""
    parts = re.split(r"(\d+(?:\.\d+)?)", info.name)
    aligned = [f"{float(part):09.3f}" if part[:1].isdigit() else part for part in parts]
    return info.cycles is None, info.needs_data is not None, aligned


def _searched(group: RecipeGroup, info: RecipeInfo) -> str:
    table = group.words.replace("table ", "table").replace("fig ", "fig")
    return f"{info.name} {table} {info.model} {info.dataset}".lower()


def _hint(wanted: Sequence[str], texts: Sequence[str]) -> str:
    unknown = [word for word in wanted if not any(word in text for text in texts)]
    if not unknown:
        return "each word occurs alone, so give fewer"
    known = {part for text in texts for part in re.split(r"[\s-]", text)}
    near = [match for word in unknown for match in difflib.get_close_matches(word, known, n=2)]
    if near:
        return f"did you mean {' or '.join(dict.fromkeys(near))}?"
    return "a word is part of a name, a table (table2), a model or a dataset: bitcycle ls recipes"
