/** A figure that some code shows, and what the SDKs tell about it. */
export interface ChartCase {
  readonly name: string;
  /** Python; `plt` and `np` are imported before it, and the figure is shown after it. */
  readonly code: string;
  /** Class that Python's SDK makes of it. */
  readonly made: string;
  /** Fields with their values: a nested object names some fields, an array all elements. */
  readonly chart: Readonly<Record<string, unknown>>;
}

const WITHOUT_LABELS = { x_label: null, y_label: null, x_unit: null, y_unit: null };
const LINEAR = { x_scale: "linear", y_scale: "linear" };

/** The kinds of figures that E2B's own tests have, with the options that models use. */
export const CHART_CASES: readonly ChartCase[] = [
  {
    name: "lines over dates, with labels and units",
    code: `
import datetime, matplotlib.dates as mdates
days = [datetime.date(2026, 3, 1) + datetime.timedelta(days=n) for n in range(4)]
plt.figure(figsize=(8, 5))
plt.plot(days, [0.0, 0.5, 1.0, 0.5], label='up')
plt.plot(days, [1.0, 0.5, 0.0, 0.5], label='down')
plt.xticks(days); plt.gca().xaxis.set_major_formatter(mdates.DateFormatter('%d.%m.'))
plt.xlabel('Day (d)'); plt.ylabel('Level [m]'); plt.title('Tides'); plt.legend(); plt.grid(True)`,
    made: "LineChart",
    chart: {
      type: "line",
      title: "Tides",
      x_label: "Day (d)",
      y_label: "Level [m]",
      x_unit: "d",
      y_unit: "m",
      x_scale: "datetime",
      y_scale: "linear",
      x_ticks: [1, 2, 3, 4].map((day) => `2026-03-0${day}T00:00:00+00:00`),
      x_tick_labels: ["01.03.", "02.03.", "03.03.", "04.03."],
      elements: [
        { label: "up", points: [0, 0.5, 1, 0.5].map((y, at) => [`2026-03-0${at + 1}`, y]) },
        { label: "down", points: [1, 0.5, 0, 0.5].map((y, at) => [`2026-03-0${at + 1}`, y]) },
      ],
    },
  },
  {
    name: "a line over times of numpy and one of pandas",
    code: `
import pandas as pd
plt.plot(np.array(['2026-03-01T10:00', '2026-03-01T11:00'], dtype='datetime64[m]'), [1, 2])
plt.plot(pd.to_datetime(['2026-03-01T10:00', '2026-03-01T11:00']), [3, 4])`,
    made: "LineChart",
    chart: {
      type: "line",
      title: null,
      x_scale: "datetime",
      elements: [
        {
          label: "Line 0",
          points: [
            ["2026-03-01T10:00:00", 1],
            ["2026-03-01T11:00:00", 2],
          ],
        },
        {
          label: "Line 1",
          points: [
            ["2026-03-01T10:00:00", 3],
            ["2026-03-01T11:00:00", 4],
          ],
        },
      ],
    },
  },
  {
    name: "a line over numbers, with ticks and names of them",
    code: "plt.plot([1, 2, 4], [10, 20, 40], 'o--'); plt.xticks([1, 2, 4], ['one', 'two', 'four']); plt.yticks([10, 40])",
    made: "LineChart",
    chart: {
      ...WITHOUT_LABELS,
      ...LINEAR,
      type: "line",
      title: null,
      x_ticks: [1, 2, 4],
      x_tick_labels: ["one", "two", "four"],
      y_ticks: [10, 40],
      y_tick_labels: ["10", "40"],
      elements: [
        {
          label: "Line 0",
          points: [
            [1, 10],
            [2, 20],
            [4, 40],
          ],
        },
      ],
    },
  },
  {
    name: "a line whose y has names",
    code: "plt.plot([1, 2, 3], ['low', 'high', 'low'])",
    made: "LineChart",
    chart: {
      type: "line",
      x_scale: "linear",
      y_scale: "categorical",
      y_tick_labels: ["low", "high"],
      elements: [
        {
          label: "Line 0",
          points: [
            [1, "low"],
            [2, "high"],
            [3, "low"],
          ],
        },
      ],
    },
  },
  {
    name: "a logarithmic scale, its label with the unit that E2B reads, and one without",
    code: `
x = np.linspace(1, 3, 3)
plt.plot(x, 10.0 ** x, label='10^x'); plt.yscale('log'); plt.yticks([10, 100, 1000])
plt.xlabel('f(x)'); plt.ylabel('Height (log scale)'); plt.legend()`,
    made: "LineChart",
    chart: {
      type: "line",
      x_label: "f(x)",
      x_unit: null,
      y_unit: "log scale",
      x_scale: "linear",
      y_scale: "log",
      y_ticks: [10, 100, 1000],
      elements: [
        {
          label: "10^x",
          points: [
            [1, 10],
            [2, 100],
            [3, 1000],
          ],
        },
      ],
    },
  },
  {
    name: "two groups of scattered points",
    code: `
plt.scatter([1.5, 2.5], [3.5, 4.5], c='blue', label='first'); plt.scatter(np.array([5]), np.array([6]))
plt.xlabel('A'); plt.ylabel('B'); plt.axvline(2)`,
    made: "ScatterChart",
    chart: {
      ...LINEAR,
      type: "scatter",
      title: null,
      x_label: "A",
      y_label: "B",
      elements: [
        {
          label: "first",
          points: [
            [1.5, 3.5],
            [2.5, 4.5],
          ],
        },
        { label: "Group 1", points: [[5, 6]] },
      ],
    },
  },
  {
    name: "bars with names",
    code: "plt.bar(['A', 'B', 'C'], [100, 250.5, 0], color='teal'); plt.xlabel('Who'); plt.ylabel('Sales (EUR)'); plt.title('Year'); plt.tight_layout()",
    made: "BarChart",
    chart: {
      type: "bar",
      title: "Year",
      x_label: "Who",
      y_label: "Sales (EUR)",
      x_unit: null,
      y_unit: "EUR",
      elements: [
        { label: "A", group: "Group 0", value: 100 },
        { label: "B", group: "Group 0", value: 250.5 },
        { label: "C", group: "Group 0", value: 0 },
      ],
    },
  },
  {
    name: "bars of equal heights, in groups of the legend",
    code: `
x = np.arange(2)
plt.bar(x - 0.2, [5, 5], 0.4, label='men'); plt.bar(x + 0.2, [6, 6], 0.4, label='women')
plt.xticks(x, ['North', 'South']); plt.legend()`,
    made: "BarChart",
    chart: {
      type: "bar",
      elements: [
        { label: "North", group: "men", value: 5 },
        { label: "South", group: "men", value: 5 },
        { label: "North", group: "women", value: 6 },
        { label: "South", group: "women", value: 6 },
      ],
    },
  },
  {
    name: "lying bars, whose axes are told as those of standing ones",
    code: "plt.barh(['A', 'B'], [1, 2]); plt.xlabel('Sales [pc]'); plt.ylabel('Who')",
    made: "BarChart",
    chart: {
      type: "bar",
      x_label: "Who",
      y_label: "Sales [pc]",
      y_unit: "pc",
      elements: [
        { label: "A", group: "Group 0", value: 1 },
        { label: "B", group: "Group 0", value: 2 },
      ],
    },
  },
  {
    name: "a pie",
    code: `
figure, axes = plt.subplots(figsize=(6, 6)); plt.xlabel('x')
axes.pie([75, 25], labels=['Yes', 'No, in blue'], autopct='%1.1f%%', startangle=90, explode=[0.1, 0])
axes.axis('equal'); plt.title('Early?')`,
    made: "PieChart",
    chart: {
      type: "pie",
      title: "Early?",
      elements: [
        { label: "Yes", angle: 270, radius: 1 },
        { label: "No, in blue", angle: 90, radius: 1 },
      ],
    },
  },
  {
    name: "boxes with whiskers and outliers",
    code: `
import matplotlib
scores = {'I': [2, 4, 6, 8, 10], 'II': [1, 10, 11, 12, 13, 14]}
figure, axes = plt.subplots()
axes.boxplot(scores.values(), labels=scores.keys(), patch_artist=True)
axes.set_title('Scores'); axes.set_xlabel('Class'); axes.set_ylabel('Score (points)'); axes.legend(); plt.tight_layout()`,
    made: "BoxAndWhiskerChart",
    chart: {
      type: "box_and_whisker",
      title: "Scores",
      x_label: "Class",
      y_label: "Score (points)",
      x_unit: null,
      y_unit: "points",
      elements: [
        { label: "I", min: 2, first_quartile: 4, median: 6, third_quartile: 8, max: 10, outliers: [] },
        {
          label: "II",
          min: 10,
          first_quartile: 10.25,
          median: 11.5,
          third_quartile: 12.75,
          max: 14,
          outliers: [1],
        },
      ],
    },
  },
  {
    name: "several charts of one figure",
    code: `
figure, axes = plt.subplots(2, 2); figure.suptitle('Four')
axes[0][0].plot([1, 2], [3, 4], 'r'); axes[0][0].set_title('Line'); axes[0][0].grid(True)
axes[0][1].scatter([1], [2], label='dots'); axes[0][1].set_xlabel('X'); axes[0][1].grid(True)
axes[1][0].bar(['a'], [1]); axes[1][1].pie([1, 1], labels=['l', 'r'])`,
    made: "SuperChart",
    chart: {
      type: "superchart",
      title: "Four",
      elements: [
        {
          type: "line",
          title: "Line",
          x_label: null,
          elements: [
            {
              points: [
                [1, 3],
                [2, 4],
              ],
            },
          ],
        },
        { type: "scatter", title: null, x_label: "X", elements: [{ label: "dots", points: [[1, 2]] }] },
        { type: "bar", elements: [{ label: "a", group: "Group 0", value: 1 }] },
        {
          type: "pie",
          elements: [
            { label: "l", angle: 180 },
            { label: "r", angle: 180 },
          ],
        },
      ],
    },
  },
  {
    name: "two axes above each other",
    code: "left = plt.gca(); left.plot([1, 2], [3, 4]); right = left.twinx(); right.bar([1, 2], [5, 6]); right.set_ylabel('R (%)')",
    made: "SuperChart",
    chart: {
      type: "superchart",
      title: null,
      elements: [{ type: "line" }, { type: "bar", y_unit: "%", elements: [{ value: 5 }, { value: 6 }] }],
    },
  },
  {
    name: "what is no chart of these kinds",
    code: `
axes = plt.gca(); axes.add_artist(plt.Circle((0, 0), 1, fill=False)); axes.add_artist(plt.Circle((0, 0), 2))
axes.grid(True); plt.title('Circles')`,
    made: "Chart",
    chart: { type: "unknown", title: "Circles", elements: [] },
  },
];

/** A whole cell. */
export function cellOf({ code }: ChartCase): string {
  return `import matplotlib.pyplot as plt\nimport numpy as np\n${code}\nplt.show()`;
}

/** The part of a chart that a case speaks about; elements of arrays are all there. */
export function partOf(actual: unknown, expected: unknown): unknown {
  if (Array.isArray(expected) && Array.isArray(actual))
    return actual.map((each, at) => partOf(each, expected[at]));
  if (typeof expected !== "object" || expected === null || typeof actual !== "object" || actual === null)
    return actual;
  return Object.fromEntries(
    Object.entries(expected).map(([name, value]) => [name, partOf(Reflect.get(actual, name), value)]),
  );
}
