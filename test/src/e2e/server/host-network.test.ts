import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after, before, describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { startCoppice } from "../../harness/server/coppice-command.js";
import { IdentityProvider } from "../../harness/server/identity-provider.js";
import { makeInstallation, ServerProcess } from "../../harness/server/server-process.js";

const PROXY = fileURLToPath(new URL("../../../../scripts/ci/tls-opening-proxy.mjs", import.meta.url));

describe(
  "a server behind a proxy that opens TLS",
  { skip: existsSync("/usr/bin/openssl") ? false : "openssl is missing", timeout: 120_000 },
  () => {
    let provider: IdentityProvider;
    let folder: string;
    let environment: Record<string, string>;
    let stopProxy: () => Promise<void>;

    before(async () => {
      provider = await IdentityProvider.open();
      folder = await mkdtemp(join(tmpdir(), "coppice-proxy-"));
      const { jwksUrl } = provider.settings;
      const proxy = spawn(process.execPath, [PROXY, folder, "127.0.0.1", "0", jwksUrl], {
        stdio: ["pipe", "pipe", "inherit"],
      });
      const ended = once(proxy, "exit");
      stopProxy = async () => {
        proxy.stdin.end();
        await ended;
      };
      const [port] = (await once(createInterface({ input: proxy.stdout }), "line")) as [string];
      environment = {
        HTTPS_PROXY: `http://ada:secret@127.0.0.1:${port}`,
        NO_PROXY: "other.example",
        SSL_CERT_FILE: join(folder, "ca.crt"),
        NODE_EXTRA_CA_CERTS: "",
      };
    });
    after(async () => {
      await stopProxy();
      await provider[Symbol.asyncDispose]();
      await rm(folder, { recursive: true });
    });

    const install = (outgoing: object) =>
      makeInstallation({
        // No name server knows the host: only the proxy leads there.
        config: { outgoing },
        plugins: () => ({
          access: { jwt: { ...provider.settings, jwksUrl: "https://id.example.invalid/keys" } },
        }),
      });

    /** Status of a request with a token of the identity provider. */
    async function statusWith(outgoing: object): Promise<number> {
      const installation = await install(outgoing);
      try {
        await using server = await ServerProcess.start(installation.configFile, environment);
        const headers = { authorization: `Bearer ${provider.token()}` };
        const answer = await fetch(`${server.urls["api"]}/sandboxes`, { headers });
        await answer.body?.cancel();
        return answer.status;
      } finally {
        await installation.remove();
      }
    }

    it("fetches what it needs by the proxy, and trusts its authority, unless the settings say otherwise", async () => {
      assert.equal(await statusWith({}), 200);
      const { fetches } = provider;
      assert.ok(fetches > 0);
      assert.notEqual(await statusWith({ authorities: "node" }), 200);
      assert.notEqual(await statusWith({ proxy: "none" }), 200);
      assert.equal(provider.fetches, fetches);
    });

    it("says by doctor whom it trusts and which proxy it uses, without the account", async () => {
      const installation = await install({});
      try {
        const { stdout } = await startCoppice(["doctor", installation.configFile], environment).end;
        const text = stdout.toString();
        assert.match(
          text,
          new RegExp(`^ok    authorities: this host's own .*'Coppice test proxy' of ${folder}/ca.crt`, "m"),
        );
        assert.match(text, /^ok    proxies: http:\/\/127\.0\.0\.1:\d+ for HTTPS, not for other\.example$/m);
        assert.doesNotMatch(text, /secret/);
      } finally {
        await installation.remove();
      }
    });
  },
);
