import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { exchange } from "../../harness/clients/exchange.js";
import { startCoppice } from "../../harness/server/coppice-command.js";
import {
  COPPICE,
  type Installation,
  makeInstallation,
  ServerProcess,
} from "../../harness/server/server-process.js";

/** What `coppice` prints and how it ends. */
function coppice(...args: readonly string[]) {
  return new Promise<{ readonly code: number; readonly stdout: string; readonly stderr: string }>(
    (resolve) => {
      const child = execFile(process.execPath, [COPPICE, ...args], (_error, stdout, stderr) =>
        resolve({ code: child.exitCode ?? -1, stdout, stderr }),
      );
    },
  );
}

describe("coppice keys and coppice audit", () => {
  let installation: Installation;
  let server: ServerProcess;
  let config: string;

  before(async () => {
    installation = await makeInstallation();
    config = installation.configFile;
    server = await ServerProcess.start(config);
  });

  after(async () => {
    await server.stop();
    await installation.remove();
  });

  const statusWith = async (key: string): Promise<number> =>
    (await exchange(server.url, { path: "/sandboxes", headers: { "x-api-key": key } })).status;

  it("end quietly when their reader has gone, as every verb does", async () => {
    assert.equal((await coppice("keys", "create", config, "--name", "read")).code, 0);
    for (const args of [["--help"], ["plugins", config], ["keys", "list", config]]) {
      const { child, end } = startCoppice(args);
      child.stdout?.destroy();
      const { code, stderr } = await end;
      assert.deepEqual({ code, stderr }, { code: 141, stderr: "" }, args.join(" "));
    }
  });

  it("make, list and revoke keys of a running server, which heeds them at once", async () => {
    const made = await coppice(
      "keys",
      "create",
      config,
      "--tenant",
      "acme",
      "--name",
      "ci",
      "--expires",
      "30d",
    );
    assert.equal(made.code, 0, made.stderr);
    const key = made.stdout.trim();
    assert.match(key, /^e2b_[0-9a-f]{40}$/);
    assert.equal(await statusWith(key), 200);
    const listed = await coppice("keys", "list", config, "--json");
    assert.ok(!listed.stdout.includes(key));
    const [row] = JSON.parse(listed.stdout) as Record<string, string>[];
    assert.deepEqual([row?.["tenant"], row?.["name"], row?.["scopes"]], ["acme", "ci", "exec"]);
    assert.equal(row?.["state"], "in use");
    assert.equal((await coppice("keys", "revoke", config, row?.["id"] ?? "")).code, 0);
    assert.equal(await statusWith(key), 401);
    assert.match((await coppice("keys", "list", config)).stdout, /\trevoked\t/);
    const again = await coppice("keys", "revoke", config, row?.["id"] ?? "");
    assert.deepEqual([again.code, again.stdout], [1, ""]);
    assert.match(again.stderr, /no key 'k[0-9a-f]+' is in use/);
    const audit = await coppice("audit", "list", config, "--limit", "1");
    const entry = JSON.parse(audit.stdout) as Record<string, unknown>;
    assert.deepEqual([entry["path"], entry["status"], entry["tenantID"]], ["/sandboxes", 401, null]);
  });

  it("tell their options, as all verbs do, and those of a configuration's plugins", async () => {
    const told: readonly (readonly [RegExp, ...args: readonly string[]])[] = [
      [/^Usage: coppice \[options\][^]*\n {2}start <config.yaml> [^]*\n {2}ps \[options\] /, "--help"],
      [/\n {2}keys +verbs of the plugin access\n/, "--help", config],
      [
        /^Usage: coppice keys create <config.yaml> \[options\]\n[^]*--tenant <name> [^]*COPPICE_KEYS_CREATE_TENANT[^]*Example:\n/,
        "keys",
        "create",
        config,
        "--help",
      ],
      [/^Usage: coppice keys [^]*\n {2}create [^]*\n {2}list [^]*\n {2}revoke /, "keys", "--help", config],
      [/^Usage: coppice audit list /, "audit", "list", "--help", config],
      [/^Usage: coppice check \[options\] <config.yaml>\n/, "check", "--help"],
      [/^coppice \d+\.\d+\.\d+ \(a checkout\)\n$/, "--version"],
    ];
    for (const [pattern, ...args] of told) {
      const { code, stdout, stderr } = await coppice(...args);
      assert.deepEqual([code, stderr], [0, ""], args.join(" "));
      assert.match(stdout, pattern);
    }
  });

  it("leave to doctor to tell which templates the quotas refuse: those without a limit of their backend", async () => {
    const directory = join(installation.directory, "quotas");
    await mkdir(directory);
    const findings = async (backend: string): Promise<string> => {
      const file = join(directory, `${backend}.yaml`);
      await writeFile(
        file,
        `listeners: { api: { port: 0 } }
dataDir: ${directory}
sandboxes: { templates: { base: {} } }
plugins:
  ${backend}: { directory: ${join(directory, backend)} }
  sandbox-api: {}
  access: { quotas: { everybody: { memoryMiB: 1024 } } }
`,
      );
      const { code, stdout } = await coppice("doctor", file);
      if (backend === "local-process") assert.equal(code, 1, stdout);
      return stdout;
    };
    const refused =
      /^FAIL {2}quotas: quotas of memoryMiB refuse template 'base': set sandboxes\.templates\.base\.limits\.memoryMiB$/m;
    assert.match(await findings("local-process"), refused);
    assert.doesNotMatch(await findings("linux-namespaces"), refused);
  });

  it("conform runs the cases that it is asked for, with the limits that it is told", async () => {
    const only = ["--only", "files: a missing path", "--limits", ""];
    const { code, stdout, stderr } = await coppice("conform", "local-process", ...only);
    assert.equal(code, 0, stdout + stderr);
    assert.match(
      stdout,
      /^ok {6}local-process files: a missing path[^\n]*\n1 passed, 0 failed, 0 skipped\n$/,
    );
    const asJson = await coppice("conform", "local-process", ...only, "--json");
    assert.equal(asJson.code, 0, asJson.stderr);
    const { backend, group, outcome, durationMs } = JSON.parse(asJson.stdout) as Record<string, unknown>;
    assert.deepEqual([backend, group, outcome], ["local-process", "files", "passed"]);
    assert.equal(typeof durationMs, "number");
  });

  it("conform lists its cases with their needs, and runs none", async () => {
    const { code, stdout, stderr } = await coppice("conform", "--list");
    assert.equal(code, 0, stderr);
    assert.match(stdout, /^files: a missing path[^\n]*$/m);
    assert.match(stdout, /^facets: a paused sandbox stands still[^\n]* \(needs pausing\)$/m);
    const asJson = await coppice(
      "conform",
      "--list",
      "--json",
      "--only",
      "isolation: a sandbox has no more processes",
    );
    const [only, ...others] = asJson.stdout.trimEnd().split("\n");
    const { group, needs } = JSON.parse(only ?? "") as Record<string, unknown>;
    assert.deepEqual([group, others], ["isolation", []]);
    assert.ok(Array.isArray(needs) && needs.includes("isolation"), asJson.stdout);
  });

  it("say what is wrong with what they are asked", async () => {
    const wrong: readonly (readonly [code: number, told: RegExp, ...args: readonly string[]])[] = [
      [64, /unknown command 'mint'/, "keys", "mint", config],
      [64, /--scopes is a list of read, exec, admin/, "keys", "create", config, "--scopes", "all"],
      [64, /--tenant is letters/, "keys", "create", config, "--tenant", "a b"],
      [64, /--expires is a length of time/, "keys", "create", config, "--expires", "soon"],
      [64, /unknown option '--nome'\n\(Did you mean --name\?\)/, "keys", "create", config, "--nome", "x"],
      [64, /missing required argument 'id'/, "keys", "revoke", config],
      [64, /--limit is a number/, "audit", "list", config, "--limit", "many"],
      [64, /unknown command 'locks'/, "locks", "create", config],
      [64, /unknown option '--loud'/, "check", config, "--loud"],
      [64, /missing required argument 'config.yaml'/, "doctor"],
      [64, /too many arguments/, "start", config, config],
      [64, /missing required argument 'module'/, "conform"],
      [
        64,
        /no case has 'fiels' in its group and name: --list/,
        "conform",
        "local-process",
        "--only",
        "fiels",
      ],
      [64, /a limit is [^\n]*, not 'space'\n/, "conform", "local-process", "--limits", "space"],
      [64, /^Usage: coppice tls/, "tls"],
      [64, /missing required argument 'domain or address'/, "tls", "init"],
      [64, /unknown command 'keys'[^]*coppice keys <action> <config.yaml>/, "keys"],
      [64, /unknown command 'chekc'\n\(Did you mean check\?\)/, "chekc", config],
      [64, /unknown command 'key'\n\(Did you mean keys\?\)/, "key", "create", config],
      [64, /unknown command 'ceate'\n\(Did you mean create\?\)/, "keys", "ceate", config],
    ];
    for (const [code, told, ...args] of wrong) {
      const ended = await coppice(...args);
      assert.equal(ended.code, code, `${args.join(" ")}: ${ended.stderr}`);
      assert.match(ended.stderr, told);
    }
  });
});
