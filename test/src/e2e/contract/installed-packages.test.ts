import assert from "node:assert/strict";
import { it } from "node:test";
import { Sandbox } from "@e2b/code-interpreter";
import { missingForNamespaces } from "../../harness/server/on-each-backend.js";
import { pointSdkAt } from "../../harness/server/point-sdk-at.js";
import { startFullServer } from "../../harness/server/start-full-server.js";

const WHEEL = "/tmp/small_thing-1.0-py3-none-any.whl";
const MAKE_WHEEL = `
import zipfile
about = "small_thing-1.0.dist-info"
with zipfile.ZipFile("${WHEEL}", "w") as wheel:
    wheel.writestr("small_thing.py", "answer = 42\\n")
    wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\\nName: small-thing\\nVersion: 1.0\\n")
    wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
    wheel.writestr(f"{about}/RECORD", f"small_thing.py,,\\n{about}/METADATA,,\\n{about}/WHEEL,,\\n{about}/RECORD,,\\n")
try:
    import small_thing
except ImportError as error:
    print(error)
`;
it(
  "%pip install in code-interpreter-v1, and the next cell imports the package",
  { skip: missingForNamespaces(), timeout: 120_000 },
  async () => {
    await using server = await startFullServer({ backend: "linux-namespaces" });
    pointSdkAt(server.url);
    const sandbox = await Sandbox.create();
    const run = async (code: string): Promise<string> => {
      const { error, text, logs } = await sandbox.runCode(code);
      assert.equal(error, undefined, error?.traceback);
      return text ?? logs.stdout.join("");
    };
    assert.equal(await run(MAKE_WHEEL), "No module named 'small_thing'\n");
    assert.match(await run(`%pip install --no-index ${WHEEL}`), /Successfully installed small-thing-1.0/);
    assert.equal(await run("import small_thing\nsmall_thing.answer"), "42");
    // A process that starts later has it too.
    assert.equal((await sandbox.commands.run("python3 -c 'import small_thing'")).exitCode, 0);
    await sandbox.kill();
  },
);
