"""Pictures of curves: that everything drawn is where its value belongs."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

import darner
from darner.train import TrainHistory, ValidationMetrics
from darner.train.history import centred_mean
from darner.viz import curves
from darner.viz.curves import Curve, curves_svg
from tests.train.examples import listed, trainer

SVG = "{http://www.w3.org/2000/svg}"


def parts(text, tag):
    return list(ElementTree.fromstring(text).iter(SVG + tag))


def points(line):
    return [tuple(map(float, pair.split(","))) for pair in line.get("points").split()]


def test_points_lie_where_the_axes_say():
    text = curves_svg([Curve("a", [0, 10], [0.0, 1.0])], x_label="step", y_label="loss")
    (line,) = parts(text, "polyline")
    (x0, y0), (x1, y1) = points(line)
    assert (x0, x1) == (curves.LEFT, 720 - curves.RIGHT)
    assert y1 < y0  # more is higher
    labels = {(node.get("class"), node.text): node for node in parts(text, "text")}
    # The value 1.0 is at the height of its label.
    assert abs(float(labels["y", "1"].get("y")) - 4 - y1) < 0.2
    assert abs(float(labels["x", "10"].get("x")) - x1) < 0.2
    assert {(None, "step"), (None, "loss"), (None, "a")} <= set(labels)


def test_everything_drawn_is_inside_the_picture():
    rng = np.random.default_rng(0)
    history = TrainHistory()
    history.losses.extend((3 * np.exp(-np.arange(5000) / 500) + rng.normal(1, 0.1, 5000)).tolist())
    history.validations = [ValidationMetrics(s, 0, {"loss": 1.0}) for s in (1000, 5000)]
    for log in (False, True):
        text = history.to_svg(log_x=log, log_y=log)
        for line in parts(text, "polyline"):
            if line.get("stroke-opacity") != "0.25":
                places = np.array(points(line))
                assert places.min() >= 0
                assert places[:, 0].max() <= 720
                assert places[:, 1].max() <= 400
            assert len(points(line)) <= 2 * curves.POINTS + 2
        assert len(parts(text, "circle")) == 2
        texts = [node for node in parts(text, "text") if node.get("class") == "x"]
        assert 3 <= len(texts) <= 10
        at = [float(node.get("x")) for node in texts]
        assert min(np.diff(at)) > 30  # no two labels on top of each other


def test_a_thin_line_keeps_its_highest_and_lowest_points():
    y = np.zeros(100_000)
    y[54_321] = 5.0
    y[12_345] = -3.0
    (line,) = parts(curves_svg([Curve("a", np.arange(100_000), y)]), "polyline")
    found = [place[1] for place in points(line)]
    assert len(found) < 2100
    assert (np.array(found) < 60).sum() == 1
    assert (np.array(found) > 330).sum() == 1


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [
        (1, 4, [1, 1.5, 2, 2.5, 3, 3.5, 4]),
        (0.0, 0.05, [0.0, 0.01, 0.02, 0.03, 0.04, 0.05]),
        (-3, 3, [-3, -2, -1, 0, 1, 2, 3]),
        (3, 95_000, [20_000, 40_000, 60_000, 80_000]),
    ],
)
def test_ticks_are_round_numbers(low, high, wanted):
    assert curves.ticks(low, high) == pytest.approx(wanted)


def test_steps_have_no_halves():
    text = curves_svg([Curve("a", [1, 2, 3, 4], [1.0, 2.0, 1.0, 2.0])])
    assert [n.text for n in parts(text, "text") if n.get("class") == "x"] == ["1", "2", "3", "4"]


def test_values_that_cannot_be_drawn_are_left_out():
    text = curves_svg([Curve("a <b>", [0, 1, 2, 3], [1.0, np.nan, 2.0, np.inf])], log_x=True)
    (line,) = parts(text, "polyline")
    assert len(points(line)) == 1
    assert len(parts(text, "circle")) == 1  # a line of one point is not seen
    with pytest.raises(darner.ArgumentError, match="nothing to draw"):
        curves_svg([Curve("a", [1.0], [np.nan])])
    with pytest.raises(darner.ArgumentError, match="2 places but 1 values"):
        curves_svg([Curve("a", [1.0, 2.0], [1.0])])


def test_a_flat_line_is_drawn():
    (line,) = parts(curves_svg([Curve("a", [1, 2], [0.0, 0.0])]), "polyline")
    assert points(line)[0][1] == pytest.approx((curves.TOP + 400 - curves.BOTTOM) / 2, abs=1)


def test_colours_are_readable_on_white_and_on_black():
    def luminance(colour):
        rgb = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb]
        return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))

    for colour in (*curves.COLOURS, curves.INK):
        light = luminance(colour)
        assert 1.05 / (light + 0.05) > 3.0
        assert (light + 0.05) / 0.05 > 3.0


def test_training_leaves_a_picture_in_its_folder(tmp_path):
    with trainer(checkpoint=tmp_path, steps=5, validation=listed(1)) as made:
        history = made.train()
    text = (tmp_path / "curve.svg").read_text()
    assert text == history.to_svg()
    assert re.search(r">validation</text>", text)
    history.plot(tmp_path / "log.svg", log_x=True)
    assert (tmp_path / "log.svg").read_text() != text


def test_smoothing_neither_lags_nor_bends_straight_lines():
    line = np.arange(50.0)
    found = centred_mean(line, 5)
    np.testing.assert_allclose(found[:45], line[:45], atol=1e-9)
    noisy = np.random.default_rng(0).normal(size=2000)
    assert centred_mean(noisy, 50).std() < 0.2
    assert centred_mean(np.array([]), 3).size == 0
