import assert from "node:assert/strict";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { Sandbox } from "e2b";
import { API_KEY } from "../../harness/server/api-key.js";
import { exchange } from "../../harness/clients/exchange.js";
import { pointSdkAt } from "../../harness/server/point-sdk-at.js";
import { makeInstallation, namespacePlugins, ServerProcess } from "../../harness/server/server-process.js";

const CORE = fileURLToPath(new URL("../../../../core/dist/index.js", import.meta.url));
const isPossible = process.platform === "linux" && process.getuid?.() === 0;

/** A plugin with a route for each kind of error outside of a request. */
const CARELESS = `
import { EventEmitter } from "node:events";
import { connect } from "node:net";
import { definePlugin } from ${JSON.stringify(CORE)};

const failures = {
  "timer": () => setTimeout(() => { throw new Error("careless timer"); }, 1),
  "event-handler": () => {
    const emitter = new EventEmitter();
    emitter.on("tick", () => { throw new Error("careless handler"); });
    setImmediate(() => emitter.emit("tick"));
  },
  "unheard-error-event": () => connect(1, "127.0.0.1"),
  "rejected-promise": () => { void Promise.reject(new Error("careless promise")); },
};

export default definePlugin({
  name: "careless",
  setup(plugin) {
    const router = plugin.http("api");
    router.post("/fail/:how", (context) => {
      failures[context.params.how]();
      context.status = 204;
    });
    router.post("/leave-a-timer", (context) => {
      setInterval(() => undefined, 10);
      context.status = 204;
    });
    router.post("/fail-twice-and-hang", (context) => {
      plugin.onStop(() => {
        setTimeout(() => { throw new Error("careless again"); }, 1);
        return new Promise(() => undefined);
      });
      failures.timer();
      context.status = 204;
    });
  },
});
`;

async function install(): Promise<Awaited<ReturnType<typeof makeInstallation>>> {
  const installation = await makeInstallation({
    config: {
      stopTimeout: "1s",
      sandboxes: { defaultBackend: isPossible ? "linux-namespaces" : "local-process", onShutdown: "keep" },
    },
    plugins: (directory) => ({
      ...(isPossible && namespacePlugins(directory)),
      "./careless.mjs": {},
    }),
  });
  await writeFile(join(installation.directory, "careless.mjs"), CARELESS);
  return installation;
}

const fail = (server: ServerProcess, path: string): Promise<unknown> =>
  exchange(server.url, { method: "POST", path, headers: { "x-api-key": API_KEY } });

/** The line in which a server reports an uncaught error. */
function fatalLines({
  printed,
}: ServerProcess): readonly { readonly plugin: string; readonly text: string }[] {
  return printed
    .filter((line) => line.includes("uncaught error: the server stops"))
    .map((text) => ({ text, plugin: (JSON.parse(text) as { readonly plugin: string }).plugin }));
}

describe("an error outside of any request", { timeout: 240_000 }, () => {
  const kinds = {
    "timer": /careless timer/,
    "event-handler": /careless handler/,
    "unheard-error-event": /ECONNREFUSED/,
    "rejected-promise": /careless promise/,
  } as const;
  for (const [kind, message] of Object.entries(kinds)) {
    it(`of the kind ${kind} is logged with its plugin; the server stops with 1 and the next one goes on`, async () => {
      const installation = await install();
      try {
        const first = await ServerProcess.start(installation.configFile);
        pointSdkAt(first.url);
        const sandbox = isPossible ? await Sandbox.create() : undefined;
        await fail(first, `/fail/${kind}`).catch(() => undefined);
        assert.deepEqual(await first.ended, { code: 1, signal: null }, first.printed.join("\n"));
        const [fatal, ...more] = fatalLines(first);
        assert.equal(fatal?.plugin, "careless", first.printed.join("\n"));
        assert.match(fatal?.text ?? "", message);
        assert.deepEqual(more, []);

        await using second = await ServerProcess.start(installation.configFile);
        pointSdkAt(second.url);
        if (sandbox === undefined) return;
        const again = await Sandbox.connect(sandbox.sandboxId);
        assert.equal((await again.commands.run("echo still here")).stdout, "still here\n");
        await again.kill();
      } finally {
        await installation.remove();
      }
    });
  }

  it("or a timer that a plugin leaves, does not keep the process of a stopped server alive", async () => {
    const installation = await install();
    try {
      const server = await ServerProcess.start(installation.configFile);
      await fail(server, "/leave-a-timer");
      assert.deepEqual(await server.stop(), { code: 0, signal: null }, server.printed.join("\n"));
      assert.match(server.printed.join("\n"), /"resources":\[[^\]]*"Timeout"/);
    } finally {
      await installation.remove();
    }
  });

  it("is followed by another while the server stops: that goes on, and ends at its deadline", async () => {
    const installation = await install();
    try {
      const server = await ServerProcess.start(installation.configFile);
      await fail(server, "/fail-twice-and-hang").catch(() => undefined);
      assert.deepEqual(await server.ended, { code: 1, signal: null }, server.printed.join("\n"));
      assert.deepEqual(
        fatalLines(server).map(({ plugin }) => plugin),
        ["careless", "careless"],
      );
    } finally {
      await installation.remove();
    }
  });
});
