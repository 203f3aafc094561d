"""Tables and pictures of made-up results."""

from dataclasses import replace
from pathlib import Path

from kfl.plots import style_of
from reproduction.figures import FIGURES
from reproduction.pictures import draw, picture
from reproduction.results import Store
from reproduction.setting import FULL, run_key
from reproduction.tables import figure_table

ROUNDS = list(range(5, 201, 5))


def spending() -> Store:
    """Runs of the energy view: whole models cost a thousand times the bits, and end with half the energy."""
    store = Store()  # nothing is written
    for place, line in enumerate(FIGURES["energy"]().lines(FULL)):
        bits = {"local": 0.0, "fedavg": 1e6, "fedrep": 1e6, "apfl": 1e6}.get(line.style, 1e3)
        joules = 0.5 if bits > 1e3 else 1.0
        for seed in FULL.seeds:
            accuracy = [0.5 + 0.01 * place + 0.001 * seed + 0.001 * t for t in ROUNDS]
            curve = {
                "rounds": ROUNDS,
                "accuracy": accuracy,
                "joules": [joules * t for t in ROUNDS],
                "seconds": [2.0 * t for t in ROUNDS],
                "bits": [bits * t for t in ROUNDS],
            }
            name = run_key(line.key, seed, FULL)
            store.rows[name] = {
                "run": name,
                "digest": "",
                "accuracy": accuracy[-1],
                "rounds": 200,
                "budget_j": 250.0,
                "energy_j": 200 * joules,
                "upload_energy_j": 50 * joules,
                "time_s": 400.0,
                "bits_up": 200 * bits,
                "devices_per_round": 10.0,
                "devices": 100,
                "devices_never_chosen": seed,
                "devices_over_budget": 0,
                "largest_use_of_budget": 0.99,
                "curve": curve,
            }
    return store


def test_the_energy_view_has_accuracy_over_joules_seconds_and_bits() -> None:
    figure = FIGURES["energy"]()
    assert [panel.across for panel in figure.panels] == ["joules", "seconds", "bits"] * 8
    assert figure.columns == 3


def test_a_table_tells_of_runs_once_however_many_panels_show_them() -> None:
    table = figure_table(FIGURES["energy"](), spending(), FULL)
    assert table.count("### ") == 8 and table.count("| KFL |") == 8
    assert table.count("| 25.0 % |") == 48
    assert table.count("| 0 to 4 | 0 | 99.00 % |") == 48, "never chosen, over budget, worst device"
    assert "| 80.00 ± 0.00 % |" in table and "| 40.00 ± 0.00 % |" in table, "of the budget, in both cells"


def test_a_run_of_one_point_is_a_dot() -> None:
    store = spending()
    for name, row in store.rows.items():
        if " kfl " in name:  # all of its energy in the first rounds
            row["curve"]["joules"] = [1.0] * len(ROUNDS)
    marks = {
        line.get_marker(): len(line.get_xdata()) for line in picture(FIGURES["energy"](), store, FULL).axes[0].lines
    }
    assert marks["o"] == 1 and marks[""] == len(ROUNDS)


def lines_in(panel: int) -> dict[str, list[tuple[float, float]]]:
    """The lines of one panel by their color: the first and the last point of each."""
    axes = picture(FIGURES["energy"](), spending(), FULL).axes[panel]
    found: dict[str, list[tuple[float, float]]] = {}
    for line in axes.lines:
        x, y = line.get_xdata(), line.get_ydata()
        found.setdefault(line.get_color(), []).extend([(float(x[0]), float(y[0])), (float(x[-1]), float(y[-1]))])
    return found


def test_what_spent_nothing_is_a_level_across_the_panel() -> None:
    bits = lines_in(2)
    (left, low), (right, high) = bits[style_of("local").color]
    assert (left, right) == (1e3 * 5, 1e6 * 200), "from the first upload of the thriftiest to the last of the others"
    assert low == high


def test_a_line_ends_where_its_runs_end_on_average_and_is_led_to_its_name() -> None:
    joules = lines_in(0)
    start, end, lead, edge = joules[style_of("fedavg").color]
    assert end[0] == 100.0 and lead[0] == 100.0 and edge[0] == 200.0
    assert start[1] < end[1] and end[1] == lead[1] == edge[1]
    assert abs(end[1] - 100 * (0.5 + 0.01 * 2 + 0.001 * 2 + 0.2)) < 1e-9, "the mean over seeds at the end"
    assert len(joules[style_of("kfl").color]) == 2, "what goes on to the edge needs no lead"


def test_the_same_results_give_the_same_files(tmp_path: Path) -> None:
    whole = FIGURES["energy"]()
    figure = replace(whole, panels=whole.panels[:3])
    files = draw(figure, spending(), FULL, tmp_path)
    assert [path.suffix for path in files] == [".png", ".svg", ".pdf"]
    (tmp_path / "again").mkdir()
    again = draw(figure, spending(), FULL, tmp_path / "again")
    assert all(one.read_bytes() == other.read_bytes() for one, other in zip(files, again, strict=True))


def learning(gap: float) -> Store:
    """Runs of Figure 2a: each line that much above the one before it at the end, with five seeds."""
    store = Store()
    for place, line in enumerate(FIGURES["fig2a"]().lines(FULL)):
        for seed in FULL.seeds:
            accuracy = [0.5 + 0.002 * t - gap * (place + 0.1 * seed) for t in ROUNDS]
            curve = {"rounds": ROUNDS, "accuracy": accuracy, **dict.fromkeys(("joules", "seconds", "bits"), ROUNDS)}
            name = run_key(line.key, seed, FULL)
            store.rows[name] = {"run": name, "accuracy": accuracy[-1], "devices_per_round": 10.0, "curve": curve}
    return store


def test_panels_of_a_row_have_one_range_and_the_figure_names_its_seeds_and_bands() -> None:
    drawing = picture(FIGURES["fig2a"](), learning(0.02), FULL)
    panels = drawing.axes
    assert len(panels) == 4
    for left, right in zip(panels[::2], panels[1::2], strict=True):
        assert left.get_ylim() == right.get_ylim()
    assert drawing.get_supxlabel() == "Lines: means over seeds 0 to 4; bands: ± one standard deviation over them."


def test_where_curves_coincide_their_differences_are_drawn_paired_by_seed() -> None:
    panels = picture(FIGURES["fig2a"](), learning(0.001), FULL).axes
    assert len(panels) == 8 and panels[2].get_title("left") == "the same, minus KFL"
    names = [text.get_text() for text in panels[2].texts]
    assert "local-only \N{MINUS SIGN}0.10" in names
    line = next(line for line in panels[2].lines if line.get_color() == style_of("local").color)
    assert abs(line.get_ydata()[-1] + 0.1) < 1e-9
    low, high = panels[2].get_ylim()
    assert low == -high and high < 5, "the range shows the small differences"
