import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { type Result, Sandbox } from "@e2b/code-interpreter";
import type { TestServer } from "@coppice/core/testing";
import { pointSdkAt } from "../../harness/server/point-sdk-at.js";
import { startFullServer } from "../../harness/server/start-full-server.js";

const MAGIC = {
  png: Buffer.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a]),
  jpeg: Buffer.from([0xff, 0xd8, 0xff]),
};

describe("results through the code interpreter SDK", { timeout: 240_000 }, () => {
  let server: TestServer;
  let sandbox: Sandbox;

  before(async () => {
    server = await startFullServer({ settings: { jupyter: { maxDataCells: 10_000 } } });
    pointSdkAt(server.url);
    sandbox = await Sandbox.create();
  });
  after(() => server.stop());

  /** The only result of some code. */
  async function resultOf(code: string): Promise<Result> {
    const { results, error } = await sandbox.runCode(code);
    assert.equal(error, undefined, error?.traceback);
    assert.equal(results.length, 1, JSON.stringify(results));
    return results[0] as Result;
  }

  /** The chart of the only figure that some code shows. */
  async function chartOf(code: string): Promise<Record<string, unknown>> {
    const result = await resultOf(`import matplotlib.pyplot as plt\n${code}\nplt.show()`);
    assert.ok(isPicture(result.png, "png"));
    assert.ok(result.chart, "there is a chart");
    return { ...result.chart };
  }

  function isPicture(base64: string | undefined, kind: keyof typeof MAGIC): boolean {
    return Buffer.from(base64 ?? "", "base64")
      .subarray(0, MAGIC[kind].length)
      .equals(MAGIC[kind]);
  }

  describe("fields", () => {
    it("every MIME type of the contract has its field, any other is extra", async () => {
      const types = {
        "text/plain": "t",
        "text/html": "<i>",
        "text/markdown": "*m*",
        "image/svg+xml": "<svg/>",
        "image/png": "cG5n",
        "image/jpeg": "anBn",
        "application/pdf": "cGRm",
        "text/latex": "$x$",
        "application/javascript": "f()",
        "application/json": { a: [1] },
        "e2b/data": { c: [1] },
        "application/x-own": { b: 2 },
      };
      const result = await resultOf(
        `import json\nfrom IPython.display import display\n` +
          `display(json.loads(${JSON.stringify(JSON.stringify(types))}), raw=True)`,
      );
      const { text, html, markdown, svg, png, jpeg, pdf, latex, javascript, json, data, raw } = result;
      assert.deepEqual([text, html, markdown, svg], ["t", "<i>", "*m*", "<svg/>"]);
      assert.deepEqual([png, jpeg, pdf, latex, javascript], ["cG5n", "anBn", "cGRm", "$x$", "f()"]);
      assert.deepEqual([json, data], [{ a: [1] }, { c: [1] }]);
      assert.deepEqual(raw["extra"], { "application/x-own": { b: 2 } });
      assert.equal(result.isMainResult, false);
    });

    it("text loses the one pair of quotes that Python put around it", async () => {
      for (const [code, text] of [
        ["'hello'", "hello"],
        ['"it\'s"', "it's"],
        ["''", ""],
        ["'\"quoted\"'", '"quoted"'],
        ["'a' 'b'", "ab"],
        ["'é😀'", "é😀"],
        ["b'x'", "b'x'"],
        ["['a']", "['a']"],
      ] as const) {
        assert.equal((await sandbox.runCode(code)).text, text, code);
      }
    });

    it("lists and dictionaries are JSON too, what has no JSON is not", async () => {
      const code = "[1, 2.0, None, True, float('nan'), {'a': (1, 'b'), 2: []}]";
      assert.deepEqual((await resultOf(code)).json, [1, 2, null, true, null, { "a": [1, "b"], "2": [] }]);
      assert.deepEqual(
        (await resultOf("import numpy as np\n{'n': np.int64(3), 'l': [np.array([1.5])]}")).json,
        {
          n: 3,
          l: [[1.5]],
        },
      );
      for (const without of ["[object()]", "(1, 2)", "42", "[np.complex128(1)]", "a = []; a.append(a); a"]) {
        assert.equal((await resultOf(without)).json, undefined, without);
      }
    });

    it("a semicolon or an assignment gives no result", async () => {
      for (const code of ["1;", "x = 1", "None", "", "# nothing"]) {
        assert.deepEqual((await sandbox.runCode(code)).results, [], code);
      }
    });

    it("displayed values come in order, the last expression is the main one", async () => {
      const seen: (string | undefined)[] = [];
      const { results, text } = await sandbox.runCode(
        "from IPython.display import display, HTML, Markdown, Latex, SVG, Javascript\n" +
          "display(HTML('<b>h</b>'), Markdown('# m'))\ndisplay(Latex('$y$'))\n" +
          "display(SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"/>'), Javascript('1'))\n'main'",
        { onResult: ({ text: own }) => void seen.push(own) },
      );
      assert.deepEqual(
        results.map((result) => result.formats().join()),
        ["html", "markdown", "latex", "svg", "javascript", ""],
      );
      assert.deepEqual(
        results.map(({ isMainResult }) => isMainResult),
        [false, false, false, false, false, true],
      );
      assert.equal(text, "main");
      assert.equal(seen.length, 6);
    });

    it("updates of a display and clear_output are no results, and end nothing", async () => {
      const { results, error, logs } = await sandbox.runCode(
        "from IPython.display import display, clear_output, update_display\n" +
          "handle = display('first', display_id=True)\nhandle.update('second')\n" +
          "update_display('third', display_id=handle.display_id)\nclear_output(wait=True)\nprint('after')",
      );
      assert.equal(error, undefined);
      assert.deepEqual(
        results.map(({ text }) => text),
        ["first"],
      );
      assert.equal(logs.stdout.join(""), "after\n");
    });

    it("an error has all three of its fields, one per execution", async () => {
      const errors: string[] = [];
      const { error } = await sandbox.runCode("def f():\n    raise ValueError('é\\n\"q\"')\nf()", {
        onError: ({ name }) => void errors.push(name),
      });
      assert.deepEqual([error?.name, error?.value], ["ValueError", 'é\n"q"']);
      assert.match(error?.traceback ?? "", /line 2, in f\(\)|----> 2 +raise ValueError|in f\(\)/);
      assert.deepEqual(errors, ["ValueError"]);
    });
  });

  describe("DataFrames", () => {
    it("are their columns, missing values null, times ISO 8601", async () => {
      const result = await resultOf(
        "import pandas as pd\npd.DataFrame({'n': [1, 2], 'f': [1.5, float('nan')], 's': ['a', None], 'b': [True, False],\n" +
          "  't': pd.to_datetime(['2024-01-02 03:04:05', None]), 'd': pd.to_timedelta([1, 2], 'D'),\n" +
          "  'c': pd.Categorical(['x', 'y']), 'i': pd.array([1, None], dtype='Int64'), 'o': [[1], {'k': 2}]})",
      );
      const { d: durations, ...columns } = result.data as Record<string, unknown[]>;
      assert.deepEqual(columns, {
        n: [1, 2],
        f: [1.5, null],
        s: ["a", null],
        b: [true, false],
        t: ["2024-01-02T03:04:05", null],
        c: ["x", "y"],
        i: [1, null],
        o: [[1], { k: 2 }],
      });
      assert.equal(durations?.length, 2);
      assert.match(result.html ?? "", /<table/);
      assert.equal(result.isMainResult, true);
    });

    it("whatever their index and column names are", async () => {
      const frames = [
        ["pd.DataFrame({('a', 'x'): [1], ('a', 'y'): [2]})", { "('a', 'x')": [1], "('a', 'y')": [2] }],
        ["pd.DataFrame({'v': [1, 2]}, index=pd.MultiIndex.from_tuples([('a', 1), ('b', 2)]))", { v: [1, 2] }],
        ["pd.DataFrame([[1, 2]], columns=['a', 'a'])", { "a": [1], "a.1": [2] }],
        ["pd.DataFrame([[1, 2]])", { "0": [1], "1": [2] }],
        ["pd.DataFrame()", {}],
        ["pd.DataFrame({'p': pd.period_range('2024-01', periods=1, freq='M')})", { p: ["2024-01"] }],
      ] as const;
      for (const [code, data] of frames) {
        const ran = await sandbox.runCode(`import pandas as pd\n${code}`);
        assert.deepEqual(ran.results[0]?.data, data, code);
        assert.equal(ran.logs.stderr.join(""), "", code);
      }
    });

    it("too large ones keep their first rows and say so", async () => {
      const { results, logs } = await sandbox.runCode(
        "import numpy as np, pandas as pd\npd.DataFrame(np.zeros((20_000, 2)))",
      );
      assert.equal((results[0]?.data?.["1"] as unknown[] | undefined)?.length, 5_000);
      assert.match(logs.stderr.join(""), /^\[data truncated: the first 5000 of 20000 rows/);
    });
  });

  describe("charts", () => {
    it("lines over dates", async () => {
      const chart = await chartOf(
        "import datetime, math\ndays = [datetime.date(2024, 5, 1) + datetime.timedelta(days=n) for n in range(100)]\n" +
          "plt.plot(days, [math.sin(n / 9) for n in range(100)], label='sine')\nplt.plot(days, [1.0] * 99 + [math.nan])\n" +
          "plt.xlabel('Day (d)'); plt.ylabel('Height [m]'); plt.title('Waves')",
      );
      assert.equal(chart["type"], "line");
      assert.equal(chart["title"], "Waves");
      assert.deepEqual(
        ["x_label", "y_label", "x_unit", "y_unit", "x_scale", "y_scale"].map((name) => chart[name]),
        ["Day (d)", "Height [m]", "d", "m", "datetime", "linear"],
      );
      const ticks = chart["x_ticks"] as string[];
      assert.ok(ticks.length > 1 && ticks.every((tick) => !Number.isNaN(Date.parse(tick))));
      assert.equal((chart["x_tick_labels"] as unknown[]).length, ticks.length);
      const [sine, flat] = chart["elements"] as { label: string; points: [string, number | null][] }[];
      assert.deepEqual([sine?.label, flat?.label], ["sine", "Line 1"]);
      assert.deepEqual(sine?.points[0], ["2024-05-01", 0]);
      assert.deepEqual(flat?.points.at(-1)?.[1], null);
    });

    it("lines on other scales: names, logarithms", async () => {
      const named = await chartOf("plt.plot(['a', 'b'], [1, 2])");
      assert.deepEqual([named["x_scale"], named["x_tick_labels"]], ["categorical", ["a", "b"]]);
      assert.deepEqual(named["elements"], [
        {
          label: "Line 0",
          points: [
            ["a", 1],
            ["b", 2],
          ],
        },
      ]);
      const logarithmic = await chartOf("plt.plot([1, 10, 100], [1, 2, 3]); plt.xscale('log')");
      assert.deepEqual([logarithmic["x_scale"], logarithmic["y_scale"]], ["log", "linear"]);
    });

    it("numbers of a chart stay floats on the wire", async () => {
      const response = await fetch(`${server.url}/execute`, {
        method: "POST",
        headers: {
          "content-type": "application/json",
          "e2b-sandbox-id": sandbox.sandboxId,
          "e2b-sandbox-port": "49999",
          "x-access-token": (sandbox as unknown as { envdAccessToken: string }).envdAccessToken,
        },
        body: JSON.stringify({
          code: "import matplotlib.pyplot as plt\nplt.plot([1, 2], [3, 4])\nplt.show()",
        }),
      });
      assert.match(await response.text(), /"points": \[\[1\.0, 3\.0\], \[2\.0, 4\.0\]\]/);
    });

    it("scattered points, a colour bar beside them or not", async () => {
      const chart = await chartOf(
        "plt.scatter([1, 2], [3, 4], c=[1, 2], label='one'); plt.scatter([5], [6]); plt.axhline(4); plt.colorbar()",
      );
      assert.equal(chart["type"], "scatter");
      assert.deepEqual(chart["elements"], [
        {
          label: "one",
          points: [
            [1, 3],
            [2, 4],
          ],
        },
        { label: "Group 1", points: [[5, 6]] },
      ]);
    });

    it("bars, upright, lying, in groups", async () => {
      const bars = await chartOf("plt.bar(['A', 'B'], [100, 200.5], label='Sold'); plt.xlabel('Who')");
      assert.equal(bars["type"], "bar");
      assert.equal(bars["x_label"], "Who");
      const values = [
        { label: "A", group: "Sold", value: 100 },
        { label: "B", group: "Sold", value: 200.5 },
      ];
      assert.deepEqual(bars["elements"], values);
      const lying = await chartOf("plt.barh(['A', 'B'], [100, 200.5], label='Sold'); plt.ylabel('Who')");
      assert.deepEqual([lying["elements"], lying["x_label"]], [values, "Who"]);
      const groups = await chartOf(
        "plt.bar([-0.2, 0.8], [1, 2], 0.4, label='m'); plt.bar([0.2, 1.2], [3, 4], 0.4, label='w')\n" +
          "plt.xticks([0, 1], ['G', 'H'])",
      );
      assert.deepEqual(
        (groups["elements"] as { label: string; group: string; value: number }[]).map(
          ({ label, group, value }) => `${group} ${label} ${value}`,
        ),
        ["m G 1", "m H 2", "w G 3", "w H 4"],
      );
    });

    it("slices of a pie", async () => {
      const chart = await chartOf(
        "plt.pie([8, 7], labels=['No', 'No, in blue'], autopct='%1.1f%%')\nplt.title('Up?')",
      );
      assert.deepEqual(chart, {
        type: "pie",
        title: "Up?",
        elements: [
          { label: "No", angle: 192, radius: 1 },
          { label: "No, in blue", angle: 168, radius: 1 },
        ],
      });
    });

    it("boxes, however they are drawn", async () => {
      const boxes = [
        { label: "A", min: 78, first_quartile: 85, median: 88, third_quartile: 90, max: 92, outliers: [] },
        {
          label: "B",
          min: 84,
          first_quartile: 84.75,
          median: 88,
          third_quartile: 90.5,
          max: 95,
          outliers: [76],
        },
      ];
      for (const [options, isLying] of [
        ["", false],
        ["patch_artist=True", false],
        ["vert=False", true],
        ["notch=True, patch_artist=True, showmeans=True", false],
      ] as const) {
        const chart = await chartOf(
          `plt.boxplot([[85, 90, 78, 92, 88], [95, 89, 76, 91, 84, 87]], ${options})\n` +
            `plt.${isLying ? "y" : "x"}ticks([1, 2], ['A', 'B'])`,
        );
        assert.equal(chart["type"], "box_and_whisker", options);
        assert.deepEqual(chart["elements"], boxes, options);
      }
      const named = await chartOf(
        "import matplotlib\nname = 'tick_labels' if matplotlib.__version_info__ >= (3, 9) else 'labels'\n" +
          "plt.boxplot([[85, 90, 78, 92, 88], [95, 89, 76, 91, 84, 87]], **{name: ['A', 'B']})",
      );
      assert.deepEqual([named["type"], named["title"], named["elements"]], ["box_and_whisker", null, boxes]);
    });

    it("several axes are one superchart of their charts", async () => {
      const chart = await chartOf(
        "figure, (left, right) = plt.subplots(1, 2)\nleft.bar(['a'], [1]); right.plot([1, 2])\n" +
          "left.set_title('Left'); figure.suptitle('Both')",
      );
      assert.deepEqual([chart["type"], chart["title"]], ["superchart", "Both"]);
      assert.deepEqual(
        (chart["elements"] as { type: string; title: string }[]).map(({ type, title }) => [type, title]),
        [
          ["bar", "Left"],
          ["line", null],
        ],
      );
    });

    it("what has no name is unknown, and its picture is there", async () => {
      for (const code of [
        "plt.imshow([[1, 2]])",
        "plt.fill_between([1, 2], [1, 2])",
        "plt.contour([[1, 2], [3, 4]])",
      ]) {
        assert.deepEqual(
          await chartOf(`${code}; plt.title('What')`),
          { type: "unknown", title: "What", elements: [] },
          code,
        );
      }
    });

    it("a blank figure has none, one of words alone is unknown", async () => {
      for (const code of ["plt.figure()", "plt.subplots()", "plt.subplots(1, 2); plt.title('T')"]) {
        const { results, error } = await sandbox.runCode(
          `import matplotlib.pyplot as plt\n${code}\nplt.show()`,
        );
        assert.equal(error, undefined);
        for (const { chart } of results) assert.equal(chart, undefined, code);
      }
      assert.equal((await chartOf("plt.text(0.5, 0.5, 'words')"))["title"], null);
    });

    it("one with too many points has none, and says so", async () => {
      const { results, logs } = await sandbox.runCode(
        "import matplotlib.pyplot as plt\nplt.plot(range(20_000)); plt.show()",
      );
      assert.ok(isPicture(results[0]?.png, "png"));
      assert.equal(results[0]?.chart, undefined);
      assert.match(logs.stderr.join(""), /chart left out: more than 10000 points/);
    });

    it("every open figure is shown at the end of its cell, once", async () => {
      const { results } = await sandbox.runCode(
        "import matplotlib.pyplot as plt\nfor n in range(2):\n    plt.figure(); plt.plot([n])\nplt.savefig('figure.png')",
      );
      assert.deepEqual(
        results.map(({ png, chart }) => [isPicture(png, "png"), String(chart?.type)]),
        [
          [true, "line"],
          [true, "line"],
        ],
      );
    });
  });

  describe("images", () => {
    it("are shown by their value, by show() and by save()", async () => {
      for (const code of [
        "image",
        "image.show()",
        "image.save('i.jpg')",
        "image.save(__import__('pathlib').Path('i.png'))",
      ]) {
        const result = await resultOf(
          `from PIL import Image\nimage = Image.new('RGB', (3, 2), 'red')\n${code}`,
        );
        assert.ok(isPicture(result.png, "png"), code);
      }
      const { results } = await sandbox.runCode("import io\nimage.save(io.BytesIO(), 'PNG')");
      assert.deepEqual(results, []);
    });

    it("a JPEG stays one", async () => {
      const { jpeg } = await resultOf("from IPython.display import Image as Shown\nShown('i.jpg')");
      assert.ok(isPicture(jpeg, "jpeg"));
    });
  });

  it("plain cells import none of the libraries that results may come from", async () => {
    const fresh = await sandbox.createCodeContext();
    await sandbox.runCode("print([1, {'a': 2}])\n[1, {'a': 2}]", { context: fresh });
    const { text } = await sandbox.runCode(
      "import sys\n[name for name in ('matplotlib', 'pandas', 'numpy', 'PIL', 'coppice_charts') if name in sys.modules]",
      { context: fresh },
    );
    assert.equal(text, "[]");
  });
});
