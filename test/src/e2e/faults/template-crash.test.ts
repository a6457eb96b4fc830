import assert from "node:assert/strict";
import { mkdir, readdir } from "node:fs/promises";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { after, before, describe, it } from "node:test";
import { Backends } from "@coppice/core/backend";
import {
  eventually,
  smallRoot,
  type TestServer,
  WITHOUT_SMALL_ROOT,
  writeImageLayout,
} from "@coppice/core/testing";
import { API_KEY } from "../../harness/server/api-key.js";
import { exchange } from "../../harness/clients/exchange.js";
import { startCoppice } from "../../harness/server/coppice-command.js";
import { type ImageHub, openImageHub } from "../../harness/server/image-hub.js";
import { missingForNamespaces } from "../../harness/server/on-each-backend.js";
import { type Installation, makeInstallation, ServerProcess } from "../../harness/server/server-process.js";
import { startFullServer } from "../../harness/server/start-full-server.js";

interface Requested {
  readonly templateID: string;
  readonly buildID: string;
}

interface Status {
  readonly status: string;
  readonly reason?: { readonly message: string };
  readonly logEntries: readonly unknown[];
}

const RESTARTED = "The server restarted during this build; build again";
const STEPS = ["echo one > one", "mkdir made && echo two > made/two", "seq 20000 > many", "rm one"];
/** Lines in the log of a build after which a server is killed: it goes on meanwhile, so these are all moments of it. */
const LINES = [1, 3, 5, 7, 9];

describe(
  "kill -9 during builds and removals of templates",
  {
    skip: missingForNamespaces() || WITHOUT_SMALL_ROOT,
    timeout: 300_000,
  },
  () => {
    let installation: Installation;
    let hub: ImageHub;
    let server: ServerProcess | undefined;
    let kept: Requested;

    before(async () => {
      hub = await openImageHub(["library/small:latest"]);
      installation = await makeInstallation({
        config: { sandboxes: { defaultBackend: "linux-namespaces" } },
        plugins: (directory) => ({
          "jupyter": undefined,
          "local-process": undefined,
          "linux-namespaces": { directory: join(directory, "namespaces") },
          "templates": settings(),
        }),
      });
      await mkdir(join(installation.directory, "tmp"));
      const first = await start();
      kept = await request(first, "kept");
      await begin(first, kept, ["echo stays > stays"]);
      await eventually("a template", async () => (await statusOf(first.url, kept)).status === "ready");
      await kill(first);
    });

    after(async () => {
      server?.signal("SIGKILL");
      await server?.ended;
      await hub[Symbol.asyncDispose]();
      await installation.remove();
    });

    const settings = () => ({
      registries: hub.registries,
    });
    const start = async (): Promise<ServerProcess> =>
      (server = await ServerProcess.start(installation.configFile, {
        TMPDIR: join(installation.directory, "tmp"),
      }));
    const kill = async (killed: ServerProcess): Promise<void> => {
      killed.signal("SIGKILL");
      await killed.ended;
    };
    const ask = (url: string, method: string, path: string, body?: unknown) =>
      exchange(url, {
        method,
        path,
        headers: { "x-api-key": API_KEY },
        ...(body !== undefined && { body: JSON.stringify(body) }),
      });
    const request = async ({ url }: ServerProcess, name: string): Promise<Requested> =>
      (await ask(url, "POST", "/v3/templates", { name })).json() as Requested;
    const begin = async (
      { url }: ServerProcess,
      { templateID, buildID }: Requested,
      lines: readonly string[],
    ) => {
      const steps = lines.map((line) => ({ type: "RUN", args: [line] }));
      const started = await ask(url, "POST", `/v2/templates/${templateID}/builds/${buildID}`, {
        fromImage: "small",
        steps,
      });
      assert.equal(started.status, 202, started.text);
    };
    const statusOf = async (url: string, { templateID, buildID }: Requested): Promise<Status> =>
      (await ask(url, "GET", `/templates/${templateID}/builds/${buildID}/status`)).json() as Status;

    /** Images that a build or a cached step has, by the store itself. */
    function needed(): readonly string[] {
      const path = join(installation.directory, "data/templates/templates.sqlite");
      const database = new DatabaseSync(path, { readOnly: true });
      try {
        const found = database.prepare(
          "SELECT image FROM layer UNION SELECT image FROM build WHERE image IS NOT NULL",
        );
        return found
          .all()
          .map(({ image }) => String(image))
          .toSorted();
      } finally {
        database.close();
      }
    }

    /** Starts a server on what a killed one left, and checks it. */
    async function check(look: (url: string) => Promise<void>): Promise<void> {
      const found = await startCoppice(["template", "fsck", installation.configFile]).end;
      assert.equal(found.code, 0, `${found.stdout.toString()}${found.stderr}`);
      assert.match(found.stdout.toString(), /^0 lost, \d+ not needed, 0 unknown$/m);
      const left: TestServer = await startFullServer({
        backend: "linux-namespaces",
        server: { dataDir: join(installation.directory, "data") },
        settings: {
          "linux-namespaces": { directory: join(installation.directory, "namespaces") },
          "templates": settings(),
        },
      });
      try {
        const { images } = left.resolve(Backends).get("linux-namespaces");
        const listed = async () => [...((await images?.list()) ?? [])].toSorted();
        await eventually("only needed images", async () => (await listed()).join() === needed().join());
        assert.ok(needed().length > 0);
        assert.deepEqual(await readdir(join(installation.directory, "data/templates/pulls")), []);
        await look(left.url);
        const { record, runtime } = await left.sandboxes.create({
          template: "kept",
          timeoutMs: 60_000,
          secure: false,
        });
        assert.equal((await runtime.files.stat("/home/user/stays")).sizeBytes, 6);
        await left.sandboxes.kill(record.id);
      } finally {
        await left.stop();
      }
    }

    it("a build that waits is still waiting", async () => {
      const first = await start();
      const waiting = await request(first, "waits");
      await kill(first);
      await check(async (url) => assert.equal((await statusOf(url, waiting)).status, "waiting"));
    });

    it("a build is whole or has failed, and the next one goes on from its steps, wherever it was killed", async () => {
      for (const lines of LINES) {
        const first = await start();
        const requested = await request(first, "crashed");
        // The steps of each round are new: nothing is cached.
        await begin(
          first,
          requested,
          STEPS.map((step) => `${step} # ${lines}`),
        );
        await eventually(`${lines} lines`, async () => {
          const { status, logEntries } = await statusOf(first.url, requested);
          return logEntries.length >= lines || status !== "building";
        });
        await kill(first);
        await check(async (url) => {
          const { status, reason } = await statusOf(url, requested);
          assert.ok(status === "ready" || reason?.message === RESTARTED, `${status}: ${reason?.message}`);
        });
      }
      const last = await start();
      const again = await request(last, "crashed");
      await begin(last, again, STEPS);
      await eventually("a template", async () => (await statusOf(last.url, again)).status === "ready");
      await kill(last);
    });

    it("a pull that is killed leaves nothing, and the next one is complete", async () => {
      for (let round = 0; round < 2; round += 1) {
        const first = await start();
        const image = `other${round}`;
        const layout = join(installation.directory, image);
        await writeImageLayout(layout, { layers: [smallRoot(), [{ name: "root/round", body: image }]] });
        hub.registry.add(`library/${image}:latest`, layout);
        const before = hub.registry.requests.length;
        const requested = await request(first, "pulled");
        const { templateID, buildID } = requested;
        await ask(first.url, "POST", `/v2/templates/${templateID}/builds/${buildID}`, {
          fromImage: image,
          force: true,
        });
        await eventually("a pull", async () => hub.registry.requests.length > before + round);
        await kill(first);
        await check(async (url) => {
          const { status, reason } = await statusOf(url, requested);
          assert.ok(status === "ready" || reason?.message === RESTARTED, `${status}: ${reason?.message}`);
        });
      }
    });

    it("a removal is done or not begun, and the next start completes it", async () => {
      for (let round = 0; round < 6; round += 2) {
        const first = await start();
        const requested = await request(first, `doomed${round}`);
        await begin(first, requested, [`echo ${round} > doomed`]);
        await eventually("a template", async () => (await statusOf(first.url, requested)).status === "ready");
        const answered = ask(first.url, "DELETE", `/templates/${requested.templateID}`).then(
          ({ status }) => status,
          () => undefined,
        );
        await new Promise((resolve) => setTimeout(resolve, round));
        await kill(first);
        const status = await answered;
        await check(async (url) => {
          const left = await ask(url, "GET", `/templates/${requested.templateID}`);
          assert.ok(
            left.status === 404 || (left.status === 200 && status !== 204),
            `${left.status} after ${status}`,
          );
        });
      }
    });
  },
);
