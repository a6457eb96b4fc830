import assert from "node:assert/strict";
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { eventually, WITHOUT_SMALL_ROOT } from "@coppice/core/testing";
import { exchange } from "../../harness/clients/exchange.js";
import { reasonWithoutIsolation } from "../../harness/host/isolated.js";
import { API_KEY } from "../../harness/server/api-key.js";
import { type ImageHub, openImageHub } from "../../harness/server/image-hub.js";
import { missingForNamespaces } from "../../harness/server/on-each-backend.js";
import { type Installation, makeInstallation, ServerProcess } from "../../harness/server/server-process.js";

const DISK = "240m";
/** Three of them are more than the disk has. */
const LARGE = "head -c 100000000 /dev/zero";

describe(
  "a disk that gets full",
  { skip: missingForNamespaces() || reasonWithoutIsolation() || WITHOUT_SMALL_ROOT, timeout: 180_000 },
  () => {
    let installation: Installation;
    let hub: ImageHub;
    let server: ServerProcess;

    before(async () => {
      hub = await openImageHub(["library/small:latest"]);
      let disk = "";
      installation = await makeInstallation({
        config: { sandboxes: { defaultBackend: "linux-namespaces" } },
        plugins(directory) {
          disk = join(directory, "data");
          return {
            "jupyter": undefined,
            "local-process": undefined,
            "linux-namespaces": { directory: join(disk, "namespaces") },
            "templates": { registries: hub.registries },
          };
        },
      });
      await mkdir(disk);
      // In mounts of its own: gone with the server.
      const mount = `mount -t tmpfs -o size=${DISK} tmpfs "$0" && exec "$@"`;
      server = await ServerProcess.start(installation.configFile, {}, [
        "unshare",
        "--mount",
        "sh",
        "-c",
        mount,
        disk,
      ]);
    });

    after(async () => {
      await server[Symbol.asyncDispose]();
      await hub[Symbol.asyncDispose]();
      await installation.remove();
    });

    const ask = (method: string, path: string, body?: object, headers = {}) =>
      exchange(server.url, {
        method,
        path,
        headers: { "x-api-key": API_KEY, "content-type": "application/json", ...headers },
        ...(body && { body: JSON.stringify(body) }),
      });

    async function build(name: string, lines: readonly string[]) {
      const { templateID, buildID } = (await ask("POST", "/v3/templates", { name })).json() as {
        readonly templateID: string;
        readonly buildID: string;
      };
      const steps = lines.map((line) => ({ type: "RUN", args: [line] }));
      await ask("POST", `/v2/templates/${templateID}/builds/${buildID}`, { fromImage: "small", steps });
      return eventually("the end of a build", async () => {
        const answer = await ask("GET", `/templates/${templateID}/builds/${buildID}/status`);
        const { status, reason } = answer.json() as {
          readonly status: string;
          readonly reason?: { readonly message: string; readonly step: string };
        };
        return ["ready", "error"].includes(status) && { status, step: reason?.step };
      });
    }

    it("in the middle of a build fails that step alone, and the next build is whole", async () => {
      const lines = ["a", "b", "c"].map((name) => `${LARGE} > ${name}`);
      assert.deepEqual(await build("large", lines), { status: "error", step: "3" });
      assert.deepEqual(await build("small", ["echo 1 > one"]), { status: "ready", step: undefined });
      assert.equal((await ask("POST", "/v2/sandboxes", { templateID: "small" })).status, 201);
    });

    it("by a sandbox's files refuses what has to be stored, and is free again when that sandbox is ended", async () => {
      const create = () => ask("POST", "/v2/sandboxes", { templateID: "base" });
      const made = (await create()).json() as {
        readonly sandboxID: string;
        readonly envdAccessToken: string;
      };
      const { sandboxID, envdAccessToken } = made;
      const inside = { "e2b-sandbox-id": sandboxID, "e2b-sandbox-port": "49983" };
      const token = { ...inside, "x-access-token": envdAccessToken };
      const fill = { cmd: "cat /dev/zero > /fill", user: "root" };
      assert.match((await ask("POST", "/commands", fill, token)).text, /No space left/);
      assert.equal((await create()).status, 503);
      assert.equal((await ask("POST", "/v3/templates", { name: "other" })).status, 503);
      assert.match((await ask("POST", "/commands", { cmd: "echo served" }, token)).text, /served/);
      assert.equal((await ask("DELETE", `/sandboxes/${sandboxID}`)).status, 204);
      await eventually("room again", async () => (await create()).status === 201);
      assert.equal((await ask("GET", `/sandboxes/${sandboxID}`)).status, 404);
    });
  },
);
