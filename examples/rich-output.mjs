// A DataFrame arrives as text, HTML and data, a plot as a PNG.
import { Sandbox } from "@e2b/code-interpreter";

const TABLE = `
import pandas as pd
pd.DataFrame({"city": ["Brno", "Porto"], "sunny days": [167, 229]})`;

const PLOT = `
import matplotlib.pyplot as plt
plt.plot([1, 4, 9, 16])
plt.show()`;

const sandbox = await Sandbox.create();
try {
  const [table] = (await sandbox.runCode(TABLE)).results;
  console.log(table.text);
  console.log("HTML: ", table.html.includes("<table"));
  console.log("data: ", JSON.stringify(table.data));

  const [plot] = (await sandbox.runCode(PLOT)).results;
  const png = Buffer.from(plot.png, "base64");
  console.log("plot: ", png.subarray(1, 4).toString(), png.subarray(0, 8).toString("hex"));
} finally {
  await sandbox.kill();
}
