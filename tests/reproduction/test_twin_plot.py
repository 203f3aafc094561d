"""The picture of sharing: what it marks, where it puts what is far below, and that it can be repeated."""

from __future__ import annotations

import itertools
from dataclasses import replace

from kfl.plots import save
from reproduction.twin_plot import SharingPanel, SharingPoint, plot_sharing

STEM = SharingPoint("shared-stem", "#c1272d", 11.6, None, 1.4, 0.9, 1.9, shares=True)
KFL = SharingPoint("kfl", "#0b3d91", 20.5, 4.1, 0.1, -0.4, 0.6, shares=False)
FAR = SharingPoint("fedtgp", "#148f77", 4.1, None, -19.4, -22.0, -17.0, shares=False)
PANEL = SharingPanel("CIFAR-10", "fixed-knowledge", [STEM, KFL, FAR])


def markers(axes, kind):
    return [line for line in axes.lines if line.get_marker() == kind]


def test_what_shares_is_filled_and_both_prices_of_class_means_are_drawn():
    axes = plot_sharing("t", [PANEL]).axes[0]
    faces = {line.get_color(): line.get_markerfacecolor() for line in markers(axes, "o")}
    assert faces == {STEM.colour: STEM.colour, KFL.colour: "white"}
    (held,) = markers(axes, "D")
    assert list(held.get_xdata()) == [4.1] and axes.get_xscale() == "log"
    assert axes.get_ylabel() == "points above fixed-knowledge"


def test_what_is_far_below_stands_at_the_edge_with_its_number():
    axes = plot_sharing("t", [PANEL]).axes[0]
    low, high = axes.get_ylim()
    assert -6 < low < -0.4 and 1.9 < high < 10
    (edge,) = markers(axes, "v")
    assert edge.get_color() == FAR.colour and list(edge.get_ydata()) == [low]
    assert {text.get_text() for text in axes.texts} == {"shared-stem", "kfl", "fedtgp −19"}
    near = plot_sharing("t", [replace(PANEL, points=[STEM, KFL])]).axes[0]
    assert not markers(near, "v")


def test_names_do_not_overlap():
    crowd = [replace(KFL, label=f"method {number}", gain=0.01 * number) for number in range(12)]
    axes = plot_sharing("t", [SharingPanel("t", "local", crowd)]).axes[0]
    heights = sorted(text.xyann[1] for text in axes.texts)
    assert min(after - before for before, after in itertools.pairwise(heights)) > 0.06


def test_the_same_answers_give_the_same_file(tmp_path):
    files = [save(plot_sharing("t", [PANEL, PANEL, PANEL]), tmp_path / f"{name}.svg") for name in "ab"]
    assert files[0].read_bytes() == files[1].read_bytes()
