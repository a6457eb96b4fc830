import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, it, type TestContext } from "node:test";
import { doctor } from "./doctor.js";

let directory: string;

before(async () => {
  directory = await mkdtemp(join(tmpdir(), "coppice-doctor-"));
});

after(async () => {
  await rm(directory, { recursive: true });
});

/** Writes a configuration with a backend of its own, and has it examined. */
async function run(context: TestContext, check: string): Promise<{ code: number; lines: string[] }> {
  const kit = JSON.stringify(new URL("../testing.js", import.meta.url).href);
  const plugin = `import { memoryBackend } from ${kit};
    export default memoryBackend({ name: "jails", onCheck() { ${check} } });`;
  // Of a name of its own: a module is loaded once.
  const module = `${randomUUID()}.mjs`;
  await writeFile(join(directory, module), plugin);
  const file = join(directory, "coppice.yaml");
  const listeners = "{ api: { host: 127.0.0.1, port: 0 } }";
  await writeFile(
    file,
    `listeners: ${listeners}\ndomain: sandboxes.example.com\ndataDir: ${join(directory, "data")}\nplugins: { ./${module}: {} }\n`,
  );
  return report(context, file);
}

async function report(context: TestContext, file: string): Promise<{ code: number; lines: string[] }> {
  let text = "";
  const write = context.mock.method(process.stdout, "write", (chunk: string) => {
    text += chunk;
    return true;
  });
  try {
    return { code: await doctor(file), lines: text.trimEnd().split("\n") };
  } finally {
    write.mock.restore();
  }
}

it("a configuration that can be served ends with exit code 0", async (context) => {
  const { code, lines } = await run(context, "");
  assert.equal(code, 0);
  assert.ok(lines.includes("ok    backend jails: this host can run it"), lines.join("\n"));
  assert.equal(lines.at(-1), "7 ok, 0 warn, 0 FAIL");
});

it("a host that cannot serve it gets the reason, and the exit code is 1", async (context) => {
  const { code, lines } = await run(context, 'throw new Error("there is no ZFS pool");');
  assert.equal(code, 1);
  assert.ok(lines.includes("FAIL  backend jails: there is no ZFS pool"), lines.join("\n"));
  assert.equal(lines.at(-1), "6 ok, 0 warn, 1 FAIL");
});

it("a configuration that cannot be read is a failure like any other", async (context) => {
  const { code, lines } = await report(context, join(directory, "missing.yaml"));
  assert.equal(code, 1);
  assert.match(
    lines[0] ?? "",
    /^FAIL {2}configuration: .*missing\.yaml: cannot read the configuration: ENOENT/,
  );
});
