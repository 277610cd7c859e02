"""The data file of the paper's figures against the paper's own source, and against itself."""

import re
from pathlib import Path

import pytest
import yaml

from rebapl.learners import METHODS, published
from rebapl.reproduce.paper import paper, printed, quote
from rebapl.sampling import preset
from rebapl.settings import leaves

TABULAR = re.compile(r"\\begin\{tabular\}(.*?)\\end\{tabular\}", re.S)


@pytest.fixture(scope="module")
def tex(shared: Path) -> str:
    return (shared / "paper" / "rebapl.tex").read_text(encoding="utf-8")


def numbers_of(tex: str, label: str) -> list[float]:
    """Every number with a decimal point in the tabular of a label's table, in the order of the source."""
    around = [m for m in re.finditer(r"\\begin\{(table\*?|wraptable)\}.*?\\end\{\1\}", tex, re.S) if label in m.group()]
    (body,) = TABULAR.findall(around[0].group())
    body = re.sub(r"\\cite\{[^}]*\}", "", body)
    return [float(number) for number in re.findall(r"(?<![\d.])[+-]?\d+\.\d+", body)]


def in_rows(section: dict, order: list[str], blocks: list[list[str]]) -> list[float]:
    """The stored figures in the order in which the source prints them, Δ rows included."""
    found: list[float] = []
    for block in blocks:
        for name in order:
            rows = section["deltas"] if name.startswith("Δ") else section["rows"]
            row = rows[name.removeprefix("Δ")]
            for data in block:
                found += row[data] if isinstance(row[data], list) else [row[data]]
    return found


REBAPL = ["maple", "maple + rebapl", "Δmaple + rebapl", "mmrl", "mmrl + rebapl", "Δmmrl + rebapl"]


@pytest.mark.shared
def test_the_first_table_is_the_paper_s(tex: str) -> None:
    names = [name for name in paper()["data"] if not re.match("imagenet.", name)]
    blocks = [names[:4], names[4:8], names[8:]]
    order = ["zero-shot", "coop", "cocoop", "app", "promptsrc", *REBAPL]
    assert numbers_of(tex, "tab:main_results") == in_rows(paper()["tables"]["table1"], order, blocks)


@pytest.mark.shared
@pytest.mark.parametrize("name", ["table2", "table3"])
def test_the_transfer_tables_are_the_paper_s(tex: str, name: str) -> None:
    section = paper()["tables"][name]
    assert numbers_of(tex, section["label"]) == in_rows(
        section, ["promptsrc", *REBAPL], [list(section["rows"]["maple"])]
    )


@pytest.mark.shared
@pytest.mark.parametrize("name", ["table4", "samples", "overhead", "latency"])
def test_the_small_tables_are_the_paper_s(tex: str, name: str) -> None:
    section = paper()["tables"][name]
    stored = [value for row in section["rows"].values() for value in row if value is not None]
    assert numbers_of(tex, section["label"]) == stored


@pytest.mark.shared
def test_what_the_text_says(tex: str) -> None:
    tables = paper()["tables"]
    five, fifteen, rebapl = tables["overfitting"]["rows"].values()
    assert "/".join(f"{value:.2f}" for value in fifteen) + " vs. " + "/".join(f"{value:.2f}" for value in five) in tex
    assert rebapl == tables["table1"]["rows"]["maple + rebapl"]["oxford_flowers"]
    times = [f"{seconds // 60}m{seconds % 60}s" for (seconds,) in tables["efficiency"]["rows"].values()]
    assert f"({times[0]} vs. {times[1]})" in tex
    for (value,) in tables["cycles"]["rows"].values():
        assert re.search(rf"\\approx {value:g}", tex)


def test_every_slip_marks_a_figure_that_is_there() -> None:
    for name, section in paper()["tables"].items():
        for slip in section["slips"]:
            for column in slip.get("columns", section["columns"]):
                assert slip["note"] in quote(name, slip["row"], column, slip["data"]).notes
    assert quote("table1", "promptsrc", "base", "sun397").value == quote("table1", "promptsrc", "base", "eurosat").value


def test_every_figure_that_does_not_add_up_is_marked() -> None:
    """HMs of base and novel, and averages of the rows, to what rounding allows (APP is printed to one decimal)."""
    rows = paper()["tables"]["table1"]["rows"]
    for method, per_data in rows.items():
        allowed = 0.1 if method == "app" else 0.03
        for data, (base, novel, hm) in per_data.items():
            if abs(2 * base * novel / (base + novel) - hm) > allowed:
                assert quote("table1", method, "hm", data).notes, (method, data)
        for index, part in enumerate(("base", "novel")):
            own = [figures[index] for data, figures in per_data.items() if data != "average"]
            if abs(sum(own) / len(own) - per_data["average"][index]) > allowed:
                assert quote("table1", method, part, "average").notes, (method, part)
    for name in ("table4", "samples"):
        for row, (base, novel, hm) in paper()["tables"][name]["rows"].items():
            if abs(2 * base * novel / (base + novel) - hm) > 0.03:
                assert quote(name, row, "hm").notes, (name, row)
    assert not any("repeats" in note for note in quote("table1", "promptsrc", "hm", "sun397").notes)


def test_figures_that_the_paper_does_not_have_are_dashes() -> None:
    assert str(quote("table1", "maple", "hm", "digits")) == "–"
    assert str(quote("overhead", "mmd 64", "alone")) == "–"
    assert str(quote("latency", "8", "spread")) == "–"


def test_names_are_those_of_the_package() -> None:
    assert {name.removesuffix(" + rebapl") for name in paper()["names"]} <= METHODS.keys()
    assert printed("oxford_flowers") == "Flowers102"


@pytest.mark.parametrize("method", ["maple", "mmrl"])
def test_the_preset_has_the_paper_s_settings(method: str) -> None:
    rows, column = paper()["tables"]["settings"]["rows"], paper()["tables"]["settings"]["columns"].index(method)
    theirs = {name: row[column] for name, row in rows.items()}
    ours = preset("rebapl-paper", published(method, "base-to-novel", "dtd")[1], method)
    resolved = dict(leaves(ours.plain()))
    assert {name: resolved[name] for name in theirs} == theirs
    assert len(theirs) == 9
    assert resolved["repulsion.force.kind"] == "printed"


@pytest.mark.shared
def test_authors_and_title_are_the_paper_s_in_readme_and_citation(tex: str) -> None:
    root = Path(__file__).parents[2]
    title = re.search(r"\\title\{(.*?)\}", tex)
    author = re.search(r"\\author\{\n(.*?)\n\$\^\{1\}\$ Sigma", tex, re.S)
    assert title is not None
    assert author is not None
    names = [
        name.strip() for name in re.split(r",(?![^{]*\})|\\\\", re.sub(r"\$.*?\$", "", author.group(1))) if name.strip()
    ]
    assert len(names) == 6
    readme = (root / "README.md").read_text(encoding="utf-8")
    assert title.group(1) in readme
    assert ", ".join(names) in readme
    assert " and ".join(names) in readme, "in the BibTeX"
    for url in re.findall(r"https://\S*[\w/]", readme):
        assert url in tex, "no address that the paper does not have"
    cited = yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf-8"))["preferred-citation"]
    assert cited["title"] == title.group(1)
    assert [f"{each['given-names']} {each['family-names']}" for each in cited["authors"]] == names
