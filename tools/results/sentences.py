"""The one sentence of a study's page, and those of the first page: what a person would say.

A difference that n and the interval do not carry is within noise. What does not stay when corrected
for the number of comparisons is said to be.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from decimal import ROUND_CEILING, Decimal
from statistics import fmean

from bitcycle.analysis.numbers import (
    DECIMALS,
    POINTS,
    UNITS,
    decimals_for,
    fixed,
    interval_text,
)
from bitcycle.analysis.statistics import MIN_SEEDS, Difference, holm
from bitcycle.study.headline import headline
from bitcycle.study.summary import GroupSummary, cost_correlation, summarize
from tools.results.comparison import (
    BETTER,
    DIVERGED,
    NOISE,
    UNKNOWN,
    WORSE,
    CyclicComparison,
    compare_all,
)
from tools.results.page import sentence
from tools.results.study_data import StudyData

# Studies that vary more than the bits: what their methods have in common, and what is varied.
QUESTIONS = {
    "quantizers": ("CPT", "with {} quantizers"),
    "fig6": ("CPT", "with {} ranges of bits"),
    "table1": ("fewer bits in the first half", "at {} pairs of bits and learning rate"),
    "table8": ("cycled error bits", "with {} ranges of bits"),
    "critical-periods": ("a period of fewer bits", "in {} cases"),
}
SCHEDULES = ("", "with {} schedules")  # of the other studies
MOST_WORDS = 55  # of a sentence; the cost is said if there is room
Found = Sequence[CyclicComparison]


def study_sentence(study: StudyData, found: Found | None = None) -> str:
    """All comparisons of a study: what is within noise, and the differences of the others.

    found: what `compare_all` gives, if it is there already.
    """
    if study.result.study.kind == "suite":
        return suite_sentence(summarize(study.result)) or sentence(headline(study.result))
    found = compare_all(study) if found is None else found
    if not found:
        return sentence(headline(study.result))
    if are_lengths(found):
        return length_sentence(found)
    method, cases = QUESTIONS.get(study.name.removesuffix("-small"), SCHEDULES)
    networks: dict[tuple[str, str], list[CyclicComparison]] = {}
    for each in found:
        networks.setdefault(place(each.group)[:2], []).append(each)
    verdicts = [Counter(each.verdict for each in own) for own in networks.values()]
    is_one = bool(method) or len(verdicts) != 2 or verdicts[0] == verdicts[1]
    parts = [found] if is_one else list(networks.values())
    said = [_said(parts, method, cases, with_steps=steps) for steps in (True, False)]
    lost, short = _not_staying(found), _not_staying(found, is_short=True)
    cost = cost_span([each.cost for each in found])
    candidates = [said[0] + lost, said[0] + short, said[1] + short]
    if cost and not lost and all(each.verdict != DIVERGED for each in found):
        candidates.insert(0, f"{said[0]} and used {cost} bit operations")
    fitting = (text for text in candidates if len(text.split()) <= MOST_WORDS)
    return sentence(next(fitting, candidates[-1]).rstrip(","))


def _said(parts: Sequence[Found], method: str, cases: str, *, with_steps: bool) -> str:
    """A clause about all comparisons, or one per network if there are two that differ."""
    first, *others = parts
    said = [_clause(first, method, cases, with_steps=with_steps)]
    for found in others:
        is_known = (_base(found), seeds_text(found)) == (_base(first), seeds_text(first))
        text = _clause(found, method, cases, with_steps=with_steps, is_known=is_known)
        said.append(text.removeprefix(f"on {place(first[0].group)[1]} "))
    return ", while ".join(said)


# -- one clause ---------------------------------------------------------------------------------


def _clause(
    found: Found, method: str, cases: str, *, with_steps: bool, is_known: bool = False
) -> str:
    """Subject, what is within noise, what is worse, what is better, what cannot be told.

    is_known: an earlier clause has said the baseline and n.
    """
    rests = {(each.cyclic.label, place(each.group)[2]) for each in found}
    cases = cases if len(rests) == len(found) else "in {} comparisons"
    groups = {v: [e for e in found if e.verdict == v] for v in (NOISE, WORSE, BETTER)}
    labels = list(dict.fromkeys(_labels(each)[0] for each in found))
    is_alike = len({each.verdict for each in found}) == 1
    if len(labels) == 1 or (len(labels) == 2 == len(found) and is_alike):
        method = " or ".join(labels)
        cases = "" if len(labels) == len(found) else cases
    if len(found) == 1 and found[0].verdict in (UNKNOWN, DIVERGED):
        return f"{_subject(found, '', with_steps=with_steps)} {_single(found[0])}"
    said, n = [], seeds_text(found)
    if noise := groups[NOISE]:
        told = [*([] if is_known else [n]), *([within(noise)] if is_alike else [])]
        base = "" if is_known else f" of {_base(found)}"
        is_one = len(noise) == 1 < len(found)
        where = _case(noise[0], found) if is_one else _count(noise, found, cases)
        said.append(f"ended within noise{base}{where}" + (f" ({', '.join(told)})" if told else ""))
    for verdict in (WORSE, BETTER):
        if own := groups[verdict]:
            is_later = bool(said) or is_known
            numbers = interval(own) if is_later else f"{n}, {interval(own)}"
            compared = "" if is_later else f" compared to {_base(found)}"
            is_rest = noise and len(own) + len(noise) == len(found) and len(own) > 1
            where = f" {cases.split()[0]} the other {len(own)}" if is_rest else ""
            if not is_rest:
                where = _case(own[0], found) if len(own) == 1 else _count(own, found, cases)
            said.append(f"{change(own, is_first=len(said) < 2)}{where}{compared} ({numbers})")
    rest = Counter(each.verdict for each in found)
    said += [f"ended {UNKNOWN} in {rest[UNKNOWN]}"] * bool(rest[UNKNOWN])
    said += [f"{DIVERGED} in {rest[DIVERGED]}"] * bool(rest[DIVERGED])
    return f"{_subject(found, method, with_steps=with_steps)} {listed(said)}"


def _subject(found: Found, method: str, *, with_steps: bool) -> str:
    places = [place(each.group) for each in found]
    networks, data = (list(dict.fromkeys(own[i] for own in places)) for i in (0, 1))
    what = f"{listed([a(name) for name in networks])}{_trained(found) if with_steps else ''}"
    subject = f" {what}" if len(data) == 1 else ", networks"
    return f"on {listed(data)}{subject}" + (f" with {method}" if method else "")


def _single(each: CyclicComparison) -> str:
    """A comparison without an interval: its values over the common seeds."""
    own, base = _labels(each)
    seeds = each.cyclic.result.values.keys() & each.static.result.values.keys()
    sides = {own: each.cyclic, base: each.static}
    means = {k: fmean(row.result.values[s] for s in seeds) for k, row in sides.items()}
    if each.verdict == DIVERGED:
        return f"{DIVERGED} with {' and '.join(k for k in means if not math.isfinite(means[k]))}"
    unit = UNITS.get(each.group.metric, "")
    own_value, base_value = (f"{fixed(mean, DECIMALS)}{unit}" for mean in means.values())
    n = "one seed" if len(seeds) == 1 else f"{len(seeds)} seeds without spread"
    return (
        f"ended at {each.group.metric} {own_value} with {own} and {base_value} with {base}, "
        f"which {n} cannot tell from noise,"
    )


def _count(part: Found, found: Found, cases: str) -> str:
    if not cases:
        return ""
    if len(part) < len(found):
        return " " + cases.format(f"{len(part)} of {len(found)}")
    return " " + cases.format("both" if len(found) == 2 else f"each of {len(found)}")


def _labels(each: CyclicComparison) -> tuple[str, str]:
    """Both labels with their additions in brackets, without an addition that both share."""
    (own, _, mark), (base, _, other) = (
        row.label.partition(", ") for row in (each.cyclic, each.static)
    )
    if mark == other:
        return own, base
    return f"{own} ({mark})" if mark else own, f"{base} ({other})" if other else base


def _base(found: Found) -> str:
    """What the methods are compared with; the baseline of a deficit by its bits."""
    if any(each.cyclic.method.at is not None for each in found):
        bits = {str(each.static.method.config.precision.forward) for each in found}
        return f"{' or '.join(sorted(bits))} bits throughout"
    labels = {_labels(each)[1] for each in found}
    return labels.pop() if len(labels) == 1 else "static bits"


def _case(each: CyclicComparison, among: Found) -> str:
    """What tells a comparison from the others of its study."""
    network, data, rest = place(each.group)
    if each.cyclic.method.at is not None:  # a deficit: of a length, or from a step on
        return f" with {each.cyclic.label} ({rest}) for {a(network)} on {data}"
    places = [place(other.group) for other in among]
    parts = [
        f" with {_labels(each)[0]}" if len({_labels(other)[0] for other in among}) > 1 else "",
        f" at {rest}" if len({own[2] for own in places}) > 1 else "",
        f" for {a(network)} on {data}" if len({own[:2] for own in places}) > 1 else "",
    ]
    return "".join(parts)


def change(own: Found, *, is_first: bool = True) -> str:
    """Differences beyond noise in one direction: lost 2.2 to 4.8 points of accuracy."""
    metrics, gained = {each.group.metric for each in own}, own[0].verdict == BETTER
    if len(metrics) > 1:
        return f"ended {own[0].verdict}"
    metric = metrics.pop()
    size = span(sorted((abs(each.difference.mean), _size(each)) for each in own))
    if metric in POINTS:
        of = f" of {metric}" if is_first else ""
        return f"{'gained' if gained else 'lost'} {size}{POINTS[metric]}{of}"
    return f"ended with {a(metric)} {size} {'higher' if own[0].difference.mean > 0 else 'lower'}"


def _size(each: CyclicComparison) -> str:
    low, high = _ends(each)
    return fixed(abs(each.difference.mean), decimals_for((high - low) / 2))


def interval(own: Found) -> str:
    """The interval of the size of a difference beyond noise, or what all of them span."""
    ends = sorted(sorted(map(abs, _ends(each))) for each in own)
    if len(ends) == 1:
        return f"95 % interval {interval_text(*ends[0])}"
    low, high = min(ends), max(ends, key=lambda pair: pair[1])
    first, last = interval_text(*low).split()[0], interval_text(*high).split()[-1]
    return f"95 % intervals between {first} and {last}"


def within(found: Found) -> str:
    """What the intervals do not leave: 95 % intervals within ±0.37 points."""
    units = {POINTS.get(each.group.metric, f" in {each.group.metric}") for each in found}
    number = bound(found) if len(units) == 1 else ""
    plural = "s" * (len(found) > 1)
    return f"95 % interval{plural} within ±{number}{units.pop()}" if number else "95 % intervals"


def bound(found: Found) -> str:
    """The largest difference that any interval leaves, rounded up."""
    most, half = max((max(-low, high), (high - low) / 2) for low, high in map(_ends, found))
    step = Decimal(1).scaleb(-decimals_for(half))
    up = Decimal(repr(most)).quantize(step, rounding=ROUND_CEILING)
    return f"{up:.{max(decimals_for(half), 0)}f}"


def _ends(each: CyclicComparison) -> tuple[float, float]:
    low, high = each.difference.low, each.difference.high
    assert low is not None
    assert high is not None
    return low, high


# -- what stays when corrected ------------------------------------------------------------------


def staying(found: Found) -> Counter[str]:
    """How many better and worse ones stay when corrected for all of these comparisons (Holm)."""
    tested = [(each.verdict, p) for each in found if (p := each.difference.p) is not None]
    kept = holm([p for _, p in tested])
    return Counter(v for (v, _), stays in zip(tested, kept, strict=True) if stays)


def _beyond(found: Found) -> int:
    return sum(each.verdict in (BETTER, WORSE) for each in found)


def _not_staying(found: Found, *, is_short: bool = False) -> str:
    beyond, gone = _beyond(found), _beyond(found) - staying(found).total()
    if len(found) < 2 or not gone:
        return ""
    who = {1: "which is"}.get(beyond, "both" if beyond == 2 else "all")
    who = who if gone == beyond else f"{gone} of which {'is' if gone == 1 else 'are'}"
    number = "" if is_short else f" for {len(found)} comparisons"
    return f", {who} within noise when corrected{number}"


def note(found: Found) -> str:
    """Below the table: what the intervals within noise exclude, and what stays when corrected."""
    noise = [each for each in found if each.verdict == NOISE]
    beyond, said = _beyond(found), []
    metrics = {each.group.metric for each in noise}
    if beyond and len(metrics) == 1:
        metric = metrics.pop()
        unit = POINTS.get(metric, f" in {metric}")
        said.append(
            f" The intervals within noise exclude differences of more than {bound(noise)}{unit}."
        )
    if beyond and len(found) > 1:
        kept = staying(found).total()
        what = f"{kept or 'none'} of the {beyond} differences beyond noise stay{'s' * (kept < 2)}"
        if beyond == 1:
            what = f"the difference beyond noise {'stays' if kept else 'does not stay'}"
        said.append(f" Corrected for {len(found)} comparisons (Holm), {what}.")
    return "".join(said)


# -- suites -------------------------------------------------------------------------------------


def suite_sentence(groups: Sequence[GroupSummary]) -> str:
    """The rank correlation of cost and quality for every network."""
    said, open_ones, counts = [], [], set()
    for group in groups:
        found = cost_correlation(group)
        if found.rho is None or found.low is None or found.high is None:
            continue
        network, data, _ = place(group)
        rho, low, high = (fixed(number, 2) for number in (found.rho, found.low, found.high))
        said.append(f"{rho} for {a(network)} on {data} (95 % interval {low} to {high})")
        open_ones.append(found.low <= 0 <= found.high)
        counts.add(found.n)
    if not said:
        return ""
    number = f"{counts.pop()} schedules" if len(counts) == 1 else "the schedules"
    verdict = f"which is {'within' if any(open_ones) else 'beyond'} noise"
    if any(open_ones) and len(said) > 1:
        few = "both" if len(said) == 2 else f"each of {len(said)}"
        verdict += f" for {few if all(open_ones) else f'{sum(open_ones)} of {len(said)}'}"
    if missing := len(groups) - len(said):
        verdict += f", and not known for {missing} more"
    return (
        f"Over {number} the rank correlation of training cost and quality is {listed(said)}, "
        f"{verdict}."
    )


# -- the first page -----------------------------------------------------------------------------


def are_lengths(found: Found) -> bool:
    """Whether the study has groups of several lengths, such as "ResNet-8, CIFAR-10, 500 steps"."""
    cases = {place(each.group)[2] for each in found}
    return len(cases) > 1 and all(case.endswith(" steps") for case in cases)


def length_sentence(found: Found) -> str:
    """The longest runs with enough seeds: every method that costs less than static bits.

    Methods without an interval are left out if there are others. Shorter runs are told only if they
    diverged. Differences are corrected for the number of methods (Holm).
    """
    finite = [each for each in found if each.verdict != DIVERGED]
    network, data, _ = place(found[0].group)
    if not finite:
        return sentence(f"on {data} {a(network)} diverged in {_diverged(found)}")
    longest = max(finite, key=lambda each: (each.difference.n >= MIN_SEEDS, num_steps(each)))
    network, data, _ = place(longest.group)
    methods = _methods_of(longest, found)
    cheaper = [each for each in methods if each.cost is not None and each.cost < 1]
    shown = [each for each in cheaper if each.verdict not in (UNKNOWN, DIVERGED)] or [longest]
    stays = holm([1.0 if each.difference.p is None else each.difference.p for each in shown])
    names = _without_shared_mark([_labels(each)[0] for each in shown])
    unit = POINTS.get(longest.group.metric, f" in {longest.group.metric}")
    said = [
        side_text(
            each.difference,
            unit,
            "" if number else f" {each.static.label}",
            is_first=number == 0,
            stays=is_kept,
        )
        + f" with {name}"
        for number, (each, name, is_kept) in enumerate(zip(shown, names, stays, strict=True))
    ]
    alike = [each for each in (*found, *methods) if place(each.group)[:2] == (network, data)]
    end = f"; runs of {gone} diverged" if (gone := _diverged(alike)) else ""
    texts = [
        f"After {num_steps(longest):,} steps on {data} {a(network)} ended {listed(said[:n])}{end}."
        for n in range(len(said), 0, -1)
    ]
    return next((text for text in texts if len(text.split()) <= MOST_WORDS), texts[-1])


def _diverged(found: Found) -> str:
    """The methods with a value that is not finite: 240 steps with c and 500 steps with c."""
    names = {
        f"{num_steps(each):,} steps with {label}": None
        for each in found
        for row, label in zip((each.cyclic, each.static), _labels(each), strict=True)
        if not all(map(math.isfinite, row.result.values.values()))
    }
    return listed(list(names))


def _methods_of(longest: CyclicComparison, found: Found) -> list[CyclicComparison]:
    """The methods of a group that are compared with its static bits: cyclic, then static ones."""
    group, base = longest.group, longest.static.label
    cyclic = [e for e in found if e.group.group == group.group and e.static.label == base]
    static = [
        replace(longest, cyclic=row, difference=row.difference, cost=row.relative_cost)
        for row in group.compared
        if row.difference is not None and not row.is_scheduled and base == group.baseline
    ]
    return cyclic + static


def _without_shared_mark(labels: Sequence[str]) -> list[str]:
    """Labels without the addition in brackets that all marked ones share.

    >>> _without_shared_mark(["CPT 3-8/8 (N = 32)", "CPT 4-8/8 (N = 32)", "static 6/6"])
    ['CPT 3-8/8', 'CPT 4-8/8', 'static 6/6']
    >>> _without_shared_mark(["CPT 3-8/8 (N = 8)", "CPT 3-8/8 (N = 32)"])
    ['CPT 3-8/8 (N = 8)', 'CPT 3-8/8 (N = 32)']
    """
    names = [label.partition(" (")[0] for label in labels]
    marks = {label.partition(" (")[2] for label in labels} - {""}
    return names if len(marks) < 2 and len(set(names)) == len(labels) else list(labels)


def side_text(
    difference: Difference,
    unit: str,
    what: str = "",
    *,
    is_first: bool = False,
    stays: bool = True,
) -> str:
    """The size of a difference and its side: `0.40 points below what (0.20 to 0.60, n = 5)`.

    is_first: the first of a sentence names its interval. stays: when corrected.
    """
    low, high, n = difference.low, difference.high, f"n = {difference.n}"
    side = "below" if difference.mean < 0 else "above"
    decimals, numbers = DECIMALS, f"{n}, no interval"
    if low is not None and high is not None:
        decimals = decimals_for((high - low) / 2)
        ends = interval_text(-high, -low) if side == "below" else interval_text(low, high)
        numbers = f"{'95 % interval ' if is_first else ''}{ends}, {n}"
        if not difference.is_beyond_noise:
            numbers += f", {NOISE}"
        elif not stays:
            numbers += f", {NOISE} when corrected"
    size = fixed(abs(difference.mean), decimals)
    if not float(size):
        side = "from" if what else "away"
    return f"{size}{unit} {side}{what} ({numbers})"


def _bits(each: CyclicComparison) -> str:
    return each.cyclic.label.partition(", ")[0]


def num_steps(each: CyclicComparison) -> int:
    """The length of the runs."""
    return each.cyclic.method.config.steps or 0


def bit_operations_sentence(found: Found) -> str:
    """What every range of bits, and static bits below the baseline's, save of its BitOPs."""
    costs: dict[str, list[float | None]] = {}
    for each in found:
        costs.setdefault(_bits(each), []).append(each.cost)
    for group in {each.group.group: each.group for each in found}.values():
        for row in group.done:
            if not row.is_scheduled and row.relative_cost is not None and row.relative_cost < 1:
                costs.setdefault(row.label, []).append(row.relative_cost)
    saved = [(label, text) for label, own in costs.items() if (text := cost_span(own))]
    if not saved:
        return ""
    (first, text), *others = saved
    said = [f"{first} uses {text} than {_base(found)}", *(f"{own} {text}" for own, text in others)]
    return f"{listed(said)}: a count, not a time."


def seeds_text(found: Found) -> str:
    """The range of n."""
    return f"n = {span(sorted((each.difference.n, str(each.difference.n)) for each in found))}"


def cost_span(costs: Sequence[float | None]) -> str:
    """Bit operations next to the static run's; empty if one is not known.

    >>> cost_span([0.634]), cost_span([0.6, 0.634]), cost_span([1.1, 1.5]), cost_span([1.001])
    ('37 % fewer', '37 % to 40 % fewer', '10 % to 50 % more', '0 % fewer')
    >>> cost_span([0.91, 1.0, 1.5]), cost_span([0.5, None])
    ('between 9 % fewer and 50 % more', '')
    """
    known = sorted(round(100 * (1 - cost)) for cost in costs if cost is not None)
    if not known or len(known) < len(costs):
        return ""
    least, most = known[0], known[-1]
    if least == most == 0:
        return "0 % fewer"
    if least < 0 < most:
        return f"between {most} % fewer and {-least} % more"
    sizes = sorted((abs(each), f"{abs(each)} %") for each in known)
    return f"{span(sizes)} {'fewer' if most > 0 else 'more'}"


# -- words --------------------------------------------------------------------------------------


def span(ends: Iterable[tuple[float, str]]) -> str:
    """The first and the last of sorted numbers as text: 5, or 5 to 20."""
    texts = [text for _, text in ends]
    return " to ".join(dict.fromkeys((texts[0], texts[-1])))


def place(group: GroupSummary) -> tuple[str, str, str]:
    """Network, data and the rest of a group's name."""
    network, data, rest = [*group.group.split(", ", 2), "", "", ""][:3]
    return network or "network", data or "these data", rest


def a(noun: str) -> str:
    """A noun with its article; capitals without a vowel are spelled, and decide by their sound.

    >>> [a(noun) for noun in ("ResNet-8", "LSTM", "GCN", "encoder", "SAGE")]
    ['a ResNet-8', 'an LSTM', 'a GCN', 'an encoder', 'a SAGE']
    >>> a("8-layer MLP"), a("one-layer MLP"), a("18-layer MLP")
    ('an 8-layer MLP', 'a one-layer MLP', 'an 18-layer MLP')
    """
    word = re.split("[- ]", noun)[0]
    is_spelled = word.isupper() and not re.search("[AEIOU]", word)
    has_vowel = word[0] in ("FHLMNRSX" if is_spelled else "AEIOaeio8") or word in ("11", "18")
    return f"an {noun}" if has_vowel and word.lower() != "one" else f"a {noun}"


def listed(parts: Sequence[str]) -> str:
    """Parts as a list in a sentence.

    >>> listed(["a"]), listed(["a", "b", "c"]), listed([])
    ('a', 'a, b and c', '')
    """
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))


def _trained(found: Found) -> str:
    steps = {each.cyclic.method.config.steps for each in found}
    length = steps.pop() if len(steps) == 1 else None
    return "" if length is None else f" trained for {length:,} steps"
