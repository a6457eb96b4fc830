"""Formats of results that E2B's clients get in addition to IPython's own.

- `application/json`: lists and dictionaries;
- `e2b/data`: a pandas DataFrame as its columns;
- `e2b/chart`: a matplotlib Figure as a chart;
- a PIL image is shown by `show()`, which has no viewer here, and by `save(path)` too.

These libraries are not imported before user code does so.
"""

import datetime
import importlib.util
import json
import math
import os
import sys

from IPython.core.formatters import BaseFormatter
from IPython.display import display
from traitlets import ObjectName, Unicode


def add_formatters(shell, most_cells):
    """Adds these formats to a shell. `most_cells`: limit of a DataFrame's cells or a chart's points."""
    formatters = shell.display_formatter.formatters
    formatters["application/json"].for_type(list, _json_result)
    formatters["application/json"].for_type(dict, _json_result)

    data = DataFormatter(parent=shell.display_formatter)
    # pandas 3 says that its class lives in `pandas`.
    for module in ("pandas.core.frame", "pandas"):
        data.for_type_by_name(module, "DataFrame", lambda frame: _columns(frame, most_cells))
    formatters["e2b/data"] = data

    formatters["e2b/chart"] = ChartFormatter(most_cells, parent=shell.display_formatter)

    sys.meta_path.insert(0, AfterImport("PIL.Image", _show_images))


class DataFormatter(BaseFormatter):
    format_type = Unicode("e2b/data")
    print_method = ObjectName("_repr_e2b_data_")
    _return_type = dict


class ChartFormatter(BaseFormatter):
    format_type = Unicode("e2b/chart")
    print_method = ObjectName("_repr_e2b_chart_")
    _return_type = dict

    def __init__(self, most_points, **settings):
        super().__init__(**settings)
        self._most_points = most_points

    def __call__(self, value):
        # Not by registration: matplotlib's inline backend removes the formatters of its figures.
        module = sys.modules.get("matplotlib.figure")
        if module is not None and isinstance(value, module.Figure):
            return _chart(value, self._most_points)
        return super().__call__(value)


class AfterImport:
    """Calls a function with a module once user code has imported it."""

    def __init__(self, name, function):
        self._name = name
        self._function = function

    def find_spec(self, name, path=None, target=None):
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_call(module):
            execute(module)
            self._function(module)

        spec.loader.exec_module = execute_and_call
        return spec


def _note(text):
    print(f"[{text}]", file=sys.stderr)


# --- JSON ---


def json_value(value, depth=0):
    """The JSON form of a value of Python, numpy or pandas. Raises TypeError where it has none."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if depth > 100:
        raise TypeError("nested too deeply")
    if isinstance(value, dict):
        return {_json_key(key): json_value(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(item, depth + 1) for item in value]
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        # pandas has a missing timestamp, which prints as NaT.
        text = value.isoformat()
        return None if text == "NaT" else text
    # numpy scalars and arrays, without importing numpy.
    if type(value).__module__.partition(".")[0] == "numpy" and hasattr(value, "tolist"):
        plain = value.tolist()
        # Values without a plain form return themselves.
        if not isinstance(plain, type(value)):
            return json_value(plain, depth + 1)
    raise TypeError(f"no JSON for {type(value).__name__}")


def _json_key(key):
    if isinstance(key, str):
        return key
    if key is None or isinstance(key, (bool, int, float)):
        return json.dumps(key)
    if isinstance(key, (datetime.datetime, datetime.date)):
        return key.isoformat()
    if type(key).__module__ == "numpy" and hasattr(key, "item"):
        return _json_key(key.item())
    raise TypeError(f"no JSON key for {type(key).__name__}")


def _json_result(value):
    try:
        return json_value(value), {"expanded": True}
    except (TypeError, ValueError, RecursionError):
        return None


# --- DataFrames ---


def _columns(frame, most_cells):
    rows, width = frame.shape
    if width > most_cells:
        _note(f"data left out: {width} columns are more than {most_cells} cells")
        return None
    kept = rows if rows * width <= most_cells else most_cells // width
    if kept < rows:
        _note(f"data truncated: the first {kept} of {rows} rows are in it")
        frame = frame.iloc[:kept]
    columns = {}
    # By position: two columns may have the same name.
    for index, label in enumerate(frame.columns):
        name = unique = str(label)
        repetition = 0
        while unique in columns:
            repetition += 1
            unique = f"{name}.{repetition}"
        columns[unique] = _cells(frame.iloc[:, index])
    return columns


def _cells(column):
    kind = getattr(column.dtype, "kind", "O")
    values = column.tolist()
    if kind in "iub" and type(column.dtype).__module__.startswith("numpy"):
        return values
    return [_cell(value) for value in values]


def _cell(value):
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    try:
        return json_value(value)
    except (TypeError, ValueError, RecursionError):
        return str(value)


# --- figures ---


def _chart(figure, most_points):
    import coppice_charts

    try:
        return coppice_charts.chart_of(figure, most_points)
    except coppice_charts.TooLarge as error:
        _note(f"chart left out: {error}")
    except Exception:
        # An unusual figure may have no chart; its picture is shown all the same.
        return None


# --- images ---


def _show_images(module):
    image = module.Image
    save = image.save

    def save_and_show(self, fp, format=None, **parameters):
        result = save(self, fp, format, **parameters)
        # matplotlib saves its pictures this way, and shows its figures itself.
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if isinstance(fp, (str, os.PathLike)) and caller.partition(".")[0] != "matplotlib":
            display(self)
        return result

    def show(self, title=None):
        display(self)

    save_and_show.__doc__, show.__doc__ = save.__doc__, image.show.__doc__
    image.save, image.show = save_and_show, show
