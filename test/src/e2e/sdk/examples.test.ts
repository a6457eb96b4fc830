import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdtemp, readFile, readdir, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import type { TestServer } from "@coppice/core/testing";
import { API_KEY } from "../../harness/server/api-key.js";
import { startFullServer } from "../../harness/server/start-full-server.js";

const run = promisify(execFile);
const ROOT = fileURLToPath(new URL("../../../../", import.meta.url));
const EXAMPLES = `${ROOT}examples/`;

/** Expected output of each example, the same in all languages. */
const PRINTED: Readonly<Record<string, string>> = {
  "hello": "hello, world\n\n",
  "persistent-state": "printed: 42\nresult:  12.566\n",
  "rich-output":
    "    city  sunny days\n0   Brno         167\n1  Porto         229\nHTML:  true\n" +
    'data:  {"city":["Brno","Porto"],"sunny days":[167,229]}\n' +
    "plot:  PNG 89504e470d0a1a0a\n",
  "errors": "KeyError: 'coffee'\nin the traceback: true\ntimed out\nafter both: 3\n",
  "contexts": "default own\nafter a restart: False\nbash: 123\nremoved: true\n",
  "streaming": "step 0\nstep 1\nstep 2\ncareful\nresult: half way\nerror:  ZeroDivisionError\n",
  "chart": 'bar chart "Sold", what by how many\ncups of tea: 30\ncups of coffee: 42\n',
};

const LANGUAGES = [
  { what: "in JavaScript", suffix: ".mjs", program: process.execPath },
  { what: "in Python", suffix: ".py", program: process.env["COPPICE_PYTHON_SDK_NEWEST"] },
];

describe("the examples with the official SDKs", { timeout: 240_000 }, () => {
  let server: TestServer;
  const environment = () => ({
    PATH: process.env["PATH"],
    E2B_API_URL: server.url,
    E2B_SANDBOX_URL: server.url,
    E2B_API_KEY: API_KEY,
  });

  before(async () => {
    server = await startFullServer();
  });
  after(() => server.stop());

  it("are all known here", async () => {
    // The demo runs two of the others, and `third-party/packages.test.ts` builds the plugins.
    const found = (await readdir(EXAMPLES)).filter(
      (name) => !/^(README\.md|quickstart\.mjs|templates\.mjs|plugins)$/.test(name),
    );
    const known = Object.keys(PRINTED).flatMap((name) => LANGUAGES.map(({ suffix }) => name + suffix));
    assert.deepEqual(found.toSorted(), [...known, "commands-v1.ts", "shell-sessions"].toSorted());
  });

  for (const { what, suffix, program } of LANGUAGES) {
    const skip = program === undefined ? "PyPI was not reachable when the tests were set up" : false;
    describe(what, { skip, concurrency: 2 }, () => {
      for (const [name, printed] of Object.entries(PRINTED)) {
        it(`${name}${suffix} prints what it promises and leaves nothing behind`, async () => {
          const { stdout, stderr } = await run(program ?? "", [EXAMPLES + name + suffix], {
            env: environment(),
            timeout: 200_000,
          });
          assert.equal(stdout, printed);
          assert.equal(stderr, "");
        });
      }

      it(`docs/first-sandbox.md draws its plot ${what}`, async (context) => {
        const page = await readFile(`${ROOT}docs/first-sandbox.md`, "utf8");
        const folder = await mkdtemp(join(tmpdir(), "coppice-first-"));
        context.after(() => rm(folder, { recursive: true, force: true }));
        const blocks = [...page.matchAll(/```(?:js|python)\n([^]*?)```/g)].map(([, code = ""]) => code);
        const code = blocks.find((each) => each.split("\n", 1)[0]?.endsWith(`plot${suffix}`)) ?? "";
        await symlink(`${ROOT}node_modules`, join(folder, "node_modules"));
        await writeFile(join(folder, `plot${suffix}`), code);
        await run(program ?? "", [`plot${suffix}`], { cwd: folder, env: environment(), timeout: 200_000 });
        const plot = await readFile(join(folder, "plot.png"));
        assert.equal(plot.subarray(0, 8).toString("hex"), "89504e470d0a1a0a");
      });
    });
  }

  it("commands-v1.ts follows a command, and finds its files after a stop", async () => {
    const { stdout, stderr } = await run(process.execPath, [`${EXAMPLES}commands-v1.ts`], {
      env: { PATH: process.env["PATH"], E2B_API_URL: server.url, E2B_API_KEY: API_KEY },
      timeout: 60_000,
    });
    assert.equal(stdout, "step 1\nstep 2\nstep 3\nexit code: 7\nstopped\nrunning\ndone\n");
    assert.equal(stderr, "");
  });

  it("shell-sessions/sandbox.mjs keeps the state of a shell, and survives its exit", async () => {
    // The client itself logs the exit on stderr.
    const { stdout } = await run(process.execPath, [`${EXAMPLES}shell-sessions/sandbox.mjs`], {
      env: environment(),
      timeout: 60_000,
    });
    assert.equal(
      stdout,
      "hello, world, from site\nstdout: step 1\nstdout: step 2\nstdout: step 3\nit's here\n" +
        "name in another session: none\nwaited for: tick 2\nexit code: 3\nSessionTerminatedError 42\ngoes on\n",
    );
  });

  const withoutCurl = existsSync("/usr/bin/curl") ? false : "it needs curl";
  it("the curl lines of docs/commands-v1.md follow a command to its end", { skip: withoutCurl }, async () => {
    const page = await readFile(`${ROOT}docs/commands-v1.md`, "utf8");
    const [, lines = ""] = /```sh\n([^]*?)```/.exec(page) ?? [];
    const script = lines.replace("http://127.0.0.1:3000", server.url);
    assert.notEqual(script, lines);
    const { stdout } = await run("sh", ["-euc", script], {
      env: { PATH: process.env["PATH"], TOKEN: API_KEY },
      timeout: 60_000,
    });
    const { bytes } = JSON.parse(/^event: log\n.*\ndata: (.*)$/m.exec(stdout)?.[1] ?? "{}") as {
      bytes?: string;
    };
    assert.equal(bytes, "1\n2\n3\n", stdout);
    assert.match(stdout, /^event: end\ndata: \{"phase":"exited","exit_code":7\}$/m);
  });

  it("leave no sandbox", () => assert.equal(server.sandboxes.list().length, 0));
});
