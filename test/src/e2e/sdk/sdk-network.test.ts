import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { after, before, describe, it } from "node:test";
import { ALL_TRAFFIC, Sandbox, SandboxError, type SandboxNetworkUpdate, SandboxNotFoundError } from "e2b";
import { eventually, type TestServer } from "@coppice/core/testing";
import {
  type FreebsdHost,
  openFreebsdHost,
  reasonWithoutFreebsdHost,
} from "../../harness/freebsd/freebsd-host.js";
import { missingForNamespaces } from "../../harness/server/on-each-backend.js";
import { pointSdkAt } from "../../harness/server/point-sdk-at.js";
import { makeInstallation, namespacePlugins, ServerProcess } from "../../harness/server/server-process.js";
import { type BackendName, startFullServer } from "../../harness/server/start-full-server.js";

// From the range for documentation, where nothing answers: a refusal comes from the rule.
const [ONE, OTHER] = ["203.0.113.251", "203.0.113.252"] as const;

// A range that a concurrent run of this test does not use.
const egressRange = `10.${150 + (process.pid % 100)}.0.0/16`;

function missingForEgress(): string | false {
  const missing = ["ip", "nft"].find(
    (name) => !existsSync(`/usr/sbin/${name}`) && !existsSync(`/sbin/${name}`),
  );
  return missing === undefined ? missingForNamespaces() : `it needs ${missing}`;
}

async function refuses(sandbox: Sandbox, address: string): Promise<boolean> {
  const { stdout } = await sandbox.commands.run(`timeout 1 bash -c '</dev/tcp/${address}/80' 2>&1 || true`);
  return stdout.includes("Connection refused");
}

/** A backend whose sandboxes have a network, with the stand-in for the internet. */
interface OpenScene {
  readonly backend: BackendName;
  readonly settings: Readonly<Record<string, unknown>>;
  readonly host?: FreebsdHost;
  readonly close: () => Promise<void>;
}

interface Scene {
  readonly name: string;
  readonly skip: string | false;
  readonly open: () => Promise<OpenScene>;
}

async function openJails(): Promise<OpenScene> {
  const host = await openFreebsdHost({ isConnected: true });
  const close = async () => host[Symbol.asyncDispose]();
  return { backend: "jail-freebsd", settings: host.configuration, host, close };
}

const withoutFreebsd = reasonWithoutFreebsdHost() ?? false;
const NAMESPACES: Scene = {
  name: "linux-namespaces",
  skip: missingForEgress(),
  open: async () => ({
    backend: "linux-namespaces",
    settings: { egress: "nat", egressRange },
    close: async () => undefined,
  }),
};
const JAILS: Scene = { name: "jail-freebsd", skip: withoutFreebsd, open: openJails };

function describeRules({ name, skip, open }: Scene): void {
  describe(`network rules through the e2b SDK, on ${name}`, { skip, timeout: 240_000 }, () => {
    let scene: OpenScene;
    let server: TestServer;

    before(async () => {
      scene = await open();
      const { backend, settings } = scene;
      server = await startFullServer({ ...scene, settings: { [backend]: settings } });
      pointSdkAt(server.url);
    });
    after(async () => {
      await server.stop();
      await scene.close();
    });

    it("hold from the start, are told, and are replaced as a whole", async () => {
      const sandbox = await Sandbox.create({
        network: { allowOut: [ONE], denyOut: ({ allTraffic }) => [allTraffic] },
      });
      const told = async () => {
        const { allowInternetAccess, network } = await sandbox.getInfo();
        return { allowInternetAccess, allowOut: network?.allowOut, denyOut: network?.denyOut };
      };
      assert.deepEqual(await told(), { allowInternetAccess: true, allowOut: [ONE], denyOut: [ALL_TRAFFIC] });
      assert.deepEqual([await refuses(sandbox, ONE), await refuses(sandbox, OTHER)], [false, true]);
      await sandbox.updateNetwork({ denyOut: [ONE] });
      assert.deepEqual(await told(), { allowInternetAccess: true, allowOut: [], denyOut: [ONE] });
      assert.deepEqual([await refuses(sandbox, ONE), await refuses(sandbox, OTHER)], [true, false]);
      await Sandbox.updateNetwork(sandbox.sandboxId, { allowInternetAccess: false, allowOut: [OTHER] });
      assert.deepEqual([await refuses(sandbox, ONE), await refuses(sandbox, OTHER)], [true, false]);
      await sandbox.updateNetwork({});
      assert.deepEqual(await told(), { allowInternetAccess: true, allowOut: undefined, denyOut: undefined });
      assert.deepEqual([await refuses(sandbox, ONE), await refuses(sandbox, OTHER)], [false, false]);
      await sandbox.kill();
      await assert.rejects(sandbox.updateNetwork({}), SandboxNotFoundError);
    });

    it("that the server cannot keep are refused, at creation and later, and change nothing", async () => {
      const sandbox = await Sandbox.create({ network: { denyOut: [ONE] } });
      const wrong: readonly [SandboxNetworkUpdate, RegExp][] = [
        [{ allowOut: ["example.com"] }, /400: .*'example.com' needs/],
        [{ denyOut: ["example.com"] }, /400: .*no IP address/],
        [{ egressProxy: { address: "proxy.example.com:1080" } }, /400: .*egressProxy/],
        [{ rules: { "a.example": [{ transform: { headers: { A: "b" } } }] } }, /400: .*rules/],
      ];
      for (const [network, message] of wrong) {
        const refused = (error: unknown): boolean =>
          error instanceof SandboxError && message.test(error.message);
        await assert.rejects(Sandbox.create({ network }), refused);
        await assert.rejects(sandbox.updateNetwork(network), refused);
      }
      await assert.rejects(Sandbox.create({ network: { httpsPorts: [3000] } }), /400: .*httpsPorts/);
      assert.deepEqual((await sandbox.getInfo()).network?.denyOut, [ONE]);
      assert.deepEqual([await refuses(sandbox, ONE), await refuses(sandbox, OTHER)], [true, false]);
      await sandbox.kill();
      assert.deepEqual(await Sandbox.list().nextItems(), []);
    });
  });
}

function describeCrash({ name, skip, open }: Scene): void {
  describe(`network rules of a server that is killed, on ${name}`, { skip, timeout: 240_000 }, () => {
    it("are in force while no server runs, and are the sandbox's with the next one", async () => {
      const { backend, settings, close } = await open();
      const installation = await makeInstallation({
        config: { sandboxes: { defaultBackend: backend } },
        plugins: (directory) => {
          const { "linux-namespaces": own, ...others } = namespacePlugins(directory);
          const base = backend === "linux-namespaces" ? (own as object) : {};
          return {
            ...others,
            [backend]: { ...base, ...settings },
          };
        },
      });
      try {
        await using first = await ServerProcess.start(installation.configFile);
        pointSdkAt(first.url);
        const sandbox = await Sandbox.create({ network: { denyOut: [OTHER] } });
        await sandbox.updateNetwork({ denyOut: [ONE] });
        // Prints for each attempt whether the rule refuses it.
        const attempts = `while :; do timeout 1 bash -c '</dev/tcp/${ONE}/80' 2>&1 | grep -o refused || echo open; sleep 0.01; done`;
        await sandbox.files.write("attempts", "");
        await sandbox.commands.run(`(${attempts}) >> attempts`, { background: true });
        await eventually("a first attempt", async () => (await sandbox.files.read("attempts")) !== "");
        first.signal("SIGKILL");
        await first.ended;

        await using second = await ServerProcess.start(installation.configFile);
        pointSdkAt(second.url);
        const again = await Sandbox.connect(sandbox.sandboxId);
        const before = (await again.files.read("attempts")).length;
        await eventually(
          "further attempts",
          async () => (await again.files.read("attempts")).length > before,
        );
        assert.doesNotMatch(await again.files.read("attempts"), /open/);
        assert.deepEqual((await again.getInfo()).network?.denyOut, [ONE]);
        assert.deepEqual([await refuses(again, ONE), await refuses(again, OTHER)], [true, false]);
        await again.updateNetwork({ denyOut: [OTHER] });
        assert.deepEqual([await refuses(again, ONE), await refuses(again, OTHER)], [false, true]);
        await again.kill();
      } finally {
        await installation.remove();
        await close();
      }
    });
  });
}

for (const scene of [NAMESPACES, JAILS]) describeRules(scene);
// Recovery does not depend on the kind of network of the jails: one kind is enough.
for (const scene of [NAMESPACES, JAILS]) describeCrash(scene);

describe("network rules on a backend that cannot keep them", { timeout: 240_000 }, () => {
  it("are refused, and leave no sandbox", async () => {
    await using server = await startFullServer({ backend: "local-process" });
    pointSdkAt(server.url);
    const refused = /400: .*backend 'local-process' cannot restrict what its sandboxes reach/;
    await assert.rejects(Sandbox.create({ network: { denyOut: [ONE] } }), refused);
    assert.deepEqual(await Sandbox.list().nextItems(), []);
    const sandbox = await Sandbox.create();
    await assert.rejects(sandbox.updateNetwork({ denyOut: [ONE] }), refused);
    await sandbox.kill();
  });
});
