"""Describes a matplotlib figure by plain values: the `e2b/chart` of a result.

Loaded when the first figure is shown, so matplotlib is there already. It works from matplotlib 3.6 on.
A figure with one pair of axes is a chart, one with several a superchart of them. What a pair of axes
shows is told by the artists on it; a mixture that has no name is `unknown`.
"""

import datetime
import math
import re

from matplotlib import category, dates
from matplotlib.collections import PathCollection
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.patches import PathPatch, Rectangle, Wedge

# The one scale of the contract that matplotlib does not name itself.
SCALES = ("linear", "log", "symlog", "logit", "function", "functionlog", "asinh")
# `Time (s)` has one, `f(x)` none.
UNIT = re.compile(r"\s\(([^()]*)\)|\[([^\[\]]*)\]")


class TooLarge(Exception):
    """The figure has more points than a chart may have."""


def chart_of(figure, most_points):
    """The chart of a figure; None for a blank one. Raises TooLarge."""
    if not any(axes.has_data() or axes.tables or axes.texts for axes in figure.axes):
        return None
    # A colour bar belongs to its neighbour and is no chart itself.
    charts = [_axes_chart(axes) for axes in figure.axes if axes.get_label() != "<colorbar>"]
    if sum(_points(chart) for chart in charts) > most_points:
        raise TooLarge(f"more than {most_points} points")
    heading = getattr(figure, "_suptitle", None)
    title = (heading and heading.get_text()) or None
    if not charts:
        return None
    if len(charts) == 1:
        return {**charts[0], "title": charts[0]["title"] or title}
    return {"type": "superchart", "title": title, "elements": charts}


def _points(chart):
    return sum(len(element.get("points", ())) or 1 for element in chart["elements"])


def _axes_chart(axes):
    title = next(filter(None, (axes.get_title(where) for where in ("center", "left", "right"))), None)
    kind, elements, swapped = _content(axes)
    chart = {"type": kind, "title": title}
    if kind in ("pie", "unknown"):
        return {**chart, "elements": elements}
    chart.update(_labels(axes, swapped))
    if kind in ("line", "scatter"):
        chart.update(_axis("x", axes.xaxis))
        chart.update(_axis("y", axes.yaxis))
    return {**chart, "elements": elements}


def _content(axes):
    """The kind of chart, its elements, and whether its x and y are swapped."""
    collections, lines = _without_error_bars(axes)
    patches = list(axes.patches)
    if axes.images or axes.tables or axes.name == "3d":
        return "unknown", [], False
    if not collections:
        boxes = _boxes(axes, lines, patches)
        if boxes is not None:
            return ("box_and_whisker", *boxes)
        if not patches:
            names = _error_bar_names(axes)
            return "line", [_line(axes, line, names) for line in lines], False
    # A full-width line, as of axhline, is only a reference.
    if (collections and patches) or not all(_is_reference(line) for line in lines):
        return "unknown", [], False
    if collections and all(_has_points(axes, each) for each in collections):
        return "scatter", [_scatter(axes, each) for each in collections], False
    if patches and all(isinstance(each, Wedge) for each in patches):
        return "pie", [_slice(each) for each in patches], False
    bars = _bars(axes) if patches and all(isinstance(each, Rectangle) for each in patches) else None
    return ("bar", *bars) if bars else ("unknown", [], False)


def _without_error_bars(axes):
    """Collections and lines, without those that only show error bars."""
    drawn = set()
    for container in axes.containers:
        if isinstance(container, ErrorbarContainer):
            _, caps, bars = container.lines
            drawn.update(map(id, (*caps, *bars)))
    collections = [each for each in axes.collections if id(each) not in drawn]
    return collections, [each for each in axes.lines if id(each) not in drawn]


def _error_bar_names(axes):
    """The label of a line with error bars is on the container, not on the line."""
    bars = [each for each in axes.containers if isinstance(each, ErrorbarContainer)]
    return {id(each.lines[0]): _label(each, "Line") for each in bars}


# --- axes ---


def _labels(axes, swapped):
    x, y = axes.get_xlabel(), axes.get_ylabel()
    if swapped:
        x, y = y, x
    return {"x_label": x or None, "y_label": y or None, "x_unit": _unit(x), "y_unit": _unit(y)}


def _unit(label):
    found = UNIT.search(label)
    return found and (found.group(1) or found.group(2) or None)


def _axis(name, axis):
    ticks = [float(tick) for tick in axis.get_ticklocs()]
    labels = [label.get_text() for label in axis.get_ticklabels()]
    scale = _scale(axis, ticks, labels)
    return {
        f"{name}_ticks": [_moment(tick) for tick in ticks] if scale == "datetime" else ticks,
        f"{name}_tick_labels": labels,
        f"{name}_scale": scale,
    }


def _scale(axis, ticks, labels):
    if _has_dates(axis):
        return "datetime"
    scale = axis.get_scale()
    if scale != "linear":
        return scale if scale in SCALES else "linear"
    if isinstance(_converter(axis), category.StrCategoryConverter):
        return "categorical"
    # As set_xticks(range(n), labels=names) does.
    if ticks and ticks == list(range(len(ticks))) and len(labels) == len(ticks):
        if all(label and _number(label) is None for label in labels):
            return "categorical"
    return "linear"


def _converter(axis):
    # The attribute has been deprecated since 3.10, which introduced the method.
    return axis.get_converter() if hasattr(axis, "get_converter") else axis.converter


def _has_dates(axis):
    converter = type(_converter(axis))
    # matplotlib's own, and those that pandas registers: DatetimeConverter and PeriodConverter.
    return any(name in parent.__name__ for parent in converter.__mro__ for name in ("Date", "Period"))


def _number(text):
    try:
        return float(text.replace("\N{MINUS SIGN}", "-"))
    except ValueError:
        return None


# --- values ---


def _values(axis, values):
    is_date = _has_dates(axis)
    return [_value(value, is_date) for value in values]


def _value(value, is_date):
    """A coordinate as a float, or as text on a scale of names or dates."""
    if isinstance(value, str):
        return str(value)
    if hasattr(value, "isoformat"):
        text = value.isoformat()
        return None if text == "NaT" else text
    if hasattr(value, "to_timestamp"):
        return value.to_timestamp().isoformat()
    if type(value).__name__ == "datetime64":
        moment = value.astype("datetime64[us]").item()
        return None if moment is None else moment.isoformat()
    try:
        number = float(value)
    except (TypeError, ValueError):
        return str(value)
    if not math.isfinite(number):
        return None
    return _moment(number) if is_date else number


def _moment(number):
    try:
        return dates.num2date(number).isoformat()
    except (ValueError, OverflowError):
        return datetime.datetime.min.isoformat() if number < 0 else datetime.datetime.max.isoformat()


def _rounded(number):
    number = round(float(number), 10)
    return number if math.isfinite(number) else None


def _label(artist, word):
    """The user's label; matplotlib's own `_child3` becomes `Line 3`."""
    label = str(artist.get_label() or "")
    own = re.fullmatch(r"_(?:child|container)(\d+)", label)
    return f"{word} {own.group(1)}" if own else label


# --- lines and points ---


def _is_reference(line):
    xs, ys = list(line.get_xdata()), list(line.get_ydata())
    return len(xs) == 2 and (xs[0] == xs[1] or ys[0] == ys[1])


def _has_points(axes, collection):
    # Before 3.8 contours were such collections too, with their places in the paths.
    return isinstance(collection, PathCollection) and collection.get_offset_transform() == axes.transData


def _line(axes, line, names):
    xs = _values(axes.xaxis, line.get_xdata(orig=True))
    ys = _values(axes.yaxis, line.get_ydata(orig=True))
    label = names.get(id(line)) or _label(line, "Line")
    return {"label": label, "points": [list(point) for point in zip(xs, ys)]}


def _scatter(axes, collection):
    points = collection.get_offsets()
    xs = _values(axes.xaxis, points[:, 0])
    ys = _values(axes.yaxis, points[:, 1])
    xs, ys = _named(axes.xaxis, xs), _named(axes.yaxis, ys)
    return {"label": _label(collection, "Group"), "points": [list(point) for point in zip(xs, ys)]}


def _named(axis, values):
    """Names in place of the positions on a scale of names."""
    units = axis.units if isinstance(_converter(axis), category.StrCategoryConverter) else None
    mapping = getattr(units, "_mapping", None)
    if not mapping:
        return values
    names = {float(position): name for name, position in mapping.items()}
    return [names.get(value, value) for value in values]


# --- pies ---


def _slice(wedge):
    angle = round(float(wedge.theta2 - wedge.theta1), 2)
    return {"label": _label(wedge, "Slice"), "angle": angle, "radius": float(wedge.r)}


# --- bars ---


def _bars(axes):
    containers = [each for each in axes.containers if isinstance(each, BarContainer)]
    if sum(len(container) for container in containers) != len(axes.patches):
        return None
    lying = [container.orientation == "horizontal" for container in containers]
    if any(lying) and not all(lying):
        return None
    swapped = all(lying)
    names = _tick_names(axes.yaxis if swapped else axes.xaxis)
    elements = []
    for container in containers:
        group = _label(container, "Group")
        for bar in container:
            if swapped:
                middle, value = bar.get_y() + bar.get_height() / 2, bar.get_width()
            else:
                middle, value = bar.get_x() + bar.get_width() / 2, bar.get_height()
            label = _name_at(names, float(middle), abs(bar.get_height() if swapped else bar.get_width()) / 2)
            elements.append({"label": label, "group": group, "value": _plain(value)})
    return elements, swapped


def _plain(value):
    """A bar's value; whole numbers stay whole."""
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, (int, float)) else float(value)


def _tick_names(axis):
    ticks = [float(tick) for tick in axis.get_ticklocs()]
    is_date = _has_dates(axis)
    labels = [label.get_text() for label in axis.get_ticklabels()]
    return list(zip(ticks, labels)), is_date


def _name_at(names, middle, reach):
    """The text of the tick below a bar, or the place of a bar that has none."""
    ticks, is_date = names
    if is_date:
        return str(_value(middle, True))
    if ticks:
        tick, label = min(ticks, key=lambda each: abs(each[0] - middle))
        number = _number(label)
        # A label that only repeats its place is no name. Grouped bars stand beside the tick that names them.
        is_name = bool(label) and (number is None or not math.isclose(number, tick))
        if is_name and abs(tick - middle) <= max(reach, 0.5):
            return label
    return f"{middle:g}"


# --- boxes ---


def _boxes(axes, lines, patches):
    """The boxes of a box plot and whether they are horizontal; None for other plots.

    A box is a patch or a closed line; two whiskers, two caps, a median and a line of outliers follow in matplotlib's
    drawing order and are identified by their positions.
    """
    if patches and not all(isinstance(each, PathPatch) for each in patches):
        return None
    if patches:
        outlines = [patch.get_path().vertices for patch in patches]
        rest = lines
    else:
        outlines = [line.get_xydata() for line in lines if _is_outline(line)]
        rest = [line for line in lines if not _is_outline(line)]
    if not outlines:
        return None
    segments = [line for line in rest if line.get_linestyle() not in ("None", " ", "")]
    if any(len(line.get_xydata()) != 2 for line in segments) or len(segments) < 3 * len(outlines):
        return None
    markers = [line for line in rest if line not in segments]
    boxes = [_extent(outline) for outline in outlines]
    swapped = _lies(boxes, segments)
    names = _tick_names(axes.yaxis if swapped else axes.xaxis)
    elements = [_box(box, segments, markers, names, swapped) for box in boxes]
    return None if None in elements else (elements, swapped)


def _is_outline(line):
    points = line.get_xydata()
    # A box has five points, one with a notch eleven.
    return len(points) in (5, 11) and tuple(points[0]) == tuple(points[-1])


def _extent(vertices):
    # A closed patch ends in a point at the origin that is not drawn.
    points = [(float(x), float(y)) for x, y in vertices]
    points = points[:-1] if len(points) > 4 else points
    if len(points) in (10, 11):
        # A notch may extend beyond the box, which begins and ends at these two edges.
        points = [points[0], points[1], points[5], points[6]]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    return (min(xs), max(xs)), (min(ys), max(ys))


def _lies(boxes, segments):
    """True for horizontal whiskers: segments that start in the middle of a side."""
    for line in segments:
        (x1, y1), (x2, y2) = ((float(x), float(y)) for x, y in line.get_xydata())
        for (left, right), (bottom, top) in boxes:
            if y1 == y2 and x1 != x2 and math.isclose(y1, (bottom + top) / 2) and _on(x1, left, right):
                if not math.isclose(abs(x2 - x1), right - left):
                    return True
            if x1 == x2 and y1 != y2 and math.isclose(x1, (left + right) / 2) and _on(y1, bottom, top):
                return False
    return False


def _on(value, low, high):
    return math.isclose(value, low) or math.isclose(value, high)


def _box(box, segments, markers, names, swapped):
    (across_low, across_high), (low, high) = box[::-1] if swapped else box
    middle = (across_low + across_high) / 2
    ends, median = [low, high], None
    for line in segments:
        (a1, v1), (a2, v2) = (_turned(point, swapped) for point in line.get_xydata())
        if math.isclose(a1, middle) and math.isclose(a2, middle):
            ends.extend((v1, v2))
        elif math.isclose(v1, v2) and math.isclose((a1 + a2) / 2, middle) and low <= v1 <= high:
            # A whisker of length 0 has its cap on the edge of the box.
            if median is None or math.isclose(abs(a2 - a1), across_high - across_low):
                median = v1
    if median is None:
        return None
    outliers = []
    for line in markers:
        points = [_turned(point, swapped) for point in line.get_xydata()]
        if points and all(math.isclose(across, middle) for across, _ in points):
            # The mean, drawn as a marker, is inside.
            outliers.extend(value for _, value in points if value < min(ends) or value > max(ends))
    return {
        "label": _name_at(names, middle, (across_high - across_low) / 2),
        "min": _rounded(min(ends)),
        "first_quartile": _rounded(low),
        "median": _rounded(median),
        "third_quartile": _rounded(high),
        "max": _rounded(max(ends)),
        "outliers": [_rounded(value) for value in outliers],
    }


def _turned(point, swapped):
    x, y = float(point[0]), float(point[1])
    return (y, x) if swapped else (x, y)
