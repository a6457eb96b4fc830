// A figure comes with the chart that it shows, as data to draw anew.
import { Sandbox } from "@e2b/code-interpreter";

const CODE = `
import matplotlib.pyplot as plt
plt.bar(["tea", "coffee"], [30, 42], label="cups")
plt.title("Sold")
plt.xlabel("what")
plt.ylabel("how many")
plt.show()`;

const sandbox = await Sandbox.create();
try {
  const [{ chart }] = (await sandbox.runCode(CODE)).results;
  console.log(`${chart.type} chart "${chart.title}", ${chart.x_label} by ${chart.y_label}`);
  for (const { label, group, value } of chart.elements) console.log(`${group} of ${label}: ${value}`);
} finally {
  await sandbox.kill();
}
