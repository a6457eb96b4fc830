import assert from "node:assert/strict";
import { once } from "node:events";
import { mkdtemp, readdir, rm } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, it } from "node:test";
import { BootError } from "@coppice/core";
import { Backends } from "@coppice/core/backend";
import { memoryBackend, startTestServer } from "@coppice/core/testing";
import linuxNamespaces from "./index.js";
import { reasonToSkip } from "./testing/test-backend.js";
import { runScript } from "./testing/test-sandbox.js";

describe("a server with linux-namespaces", { skip: reasonToSkip() ?? false, concurrency: 1 }, () => {
  let directory: string;

  beforeEach(async () => {
    directory = await mkdtemp(join(tmpdir(), "coppice-plugin-"));
  });
  afterEach(async () => {
    await rm(directory, { recursive: true });
  });

  it("creates isolated sandboxes and leaves none when it stops", async () => {
    const server = await startTestServer({ plugins: [[linuxNamespaces, { directory }]] });
    const create = { template: "base", timeoutMs: undefined, secure: false };
    const { record, runtime } = await server.sandboxes.create(create);
    const { output } = await runScript(runtime, "hostname; id -un; pwd; ls -A ~");
    assert.equal(output, `${record.id}\nuser\n/home/user\n`);
    await server.stop();
    assert.deepEqual(await readdir(join(directory, "sandboxes")), []);
  });

  it("reports in /readyz how each limit is enforced", async () => {
    await using server = await startTestServer({ plugins: [[linuxNamespaces, { directory }]] });
    const answer = await fetch(`${server.urls["ops"]}/readyz`);
    const { ready, details } = (await answer.json()) as {
      readonly ready: boolean;
      readonly details: Readonly<Record<string, Readonly<Record<string, string>>>>;
    };
    assert.equal(ready, true);
    const limits = details["linux-namespaces"] ?? {};
    const names = ["cpuCount", "diskMiB", "egress", "memoryMiB", "openFiles", "pausing", "processes"];
    assert.deepEqual(Object.keys(limits).toSorted(), names);
    assert.equal(limits["openFiles"], "a resource limit of each process");
  });

  it("refuses an unknown template, and one whose Python is missing", async () => {
    const settings = { directory, python: "/no/such/python" };
    await using server = await startTestServer({ plugins: [[linuxNamespaces, settings]] });
    const create = { template: "code-interpreter-v1", timeoutMs: undefined, secure: false };
    const refused = {
      code: "failed_precondition",
      message: /^template 'code-interpreter-v1' cannot be made: [^/]*$/,
    };
    await assert.rejects(server.sandboxes.create(create), refused);
    assert.deepEqual(await readdir(join(directory, "sandboxes")), []);
  });

  it("refuses to start with unknown templates, or with one whose directory is missing", async () => {
    const missing = join(directory, "missing");
    const start = (settings: object, sandboxes: object) =>
      startTestServer({ plugins: [[linuxNamespaces, { directory, ...settings }]], server: { sandboxes } });
    await assert.rejects(
      start({}, { templates: { web: {} } }),
      /sandboxes\.templates\.web: backend 'linux-namespaces' has no such template; it has base, code-interpreter-v1/,
    );
    await assert.rejects(
      start({ templates: { web: { kind: "directory", path: missing } } }, { templates: { web: {} } }),
      new RegExp(`template 'web': ${missing} is no root file system: ENOENT`),
    );
  });

  it("refuses name servers that its sandboxes could not reach", () => {
    const problemOf = (settings: object): string | undefined =>
      linuxNamespaces.config.safeParse(settings).error?.issues.at(0)?.message;
    const nameservers = ["1.1.1.1", "10.0.0.53"];
    assert.match(
      problemOf({ egress: "nat", nameservers }) ?? "",
      /10\.0\.0\.53 is in a range of egressBlocked/,
    );
    assert.equal(problemOf({ egress: "nat", nameservers, egressBlocked: ["192.168.0.0/16"] }), undefined);
    assert.equal(problemOf({ nameservers }), undefined);
  });

  it("gives sandboxes a network where the host can with egress: auto, and else none", async () => {
    const egressRange = "10.243.0.0/16";
    // Each takes away what egress needs: the range from root, the program from others.
    await using claim = createServer().listen(`\0coppice-egress-${egressRange}`);
    await once(claim, "listening");
    const settings = { directory, egressRange, egressProgram: "/no/such/pasta" };
    const start = (egress: string) =>
      startTestServer({ plugins: [[linuxNamespaces, { ...settings, egress }]] });
    await assert.rejects(start("nat"), /egressRange 10\.243\.0\.0\/16 is used|\/no\/such\/pasta/);
    await using server = await start("auto");
    assert.equal(server.resolve(Backends).get("linux-namespaces").offline, true);
    const answer = await fetch(`${server.urls["ops"]}/readyz`);
    assert.match(await answer.text(), /"egress":"none"/);
  });

  it("stops a server whose directory is in use, instead of using the next backend, without isolation", async () => {
    await using server = await startTestServer({ plugins: [[linuxNamespaces, { directory }]] });
    const plugins = [
      [linuxNamespaces, { directory }] as const,
      [memoryBackend({ name: "open" }), {}] as const,
    ];
    const sandboxes = { defaultBackend: ["linux-namespaces", "open"] };
    await assert.rejects(startTestServer({ plugins, server: { sandboxes } }), (error) => {
      assert.ok(error instanceof BootError, String(error));
      assert.match(error.message, /another server/);
      return true;
    });
    assert.ok(server.urls["api"]);
  });

  it("reports all problems of its host and settings at once", async () => {
    const agent = process.env["COPPICE_AGENT"];
    process.env["COPPICE_AGENT"] = "none";
    try {
      const settings = { directory: join(directory, "with space") };
      await assert.rejects(startTestServer({ plugins: [[linuxNamespaces, settings]] }), (error) => {
        assert.ok(error instanceof BootError, String(error));
        assert.match(error.message, /the agent has not been built.*must not contain spaces/s);
        return true;
      });
    } finally {
      if (agent === undefined) delete process.env["COPPICE_AGENT"];
      else process.env["COPPICE_AGENT"] = agent;
    }
  });
});
