import assert from "node:assert/strict";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { it } from "node:test";
import { BuildHost, WITHOUT_BUILDS } from "../testing/build-host.js";

/** In place of that of ca-certificates. */
const UPDATE = `#!/bin/sh
mkdir -p /etc/ssl/certs
cat /usr/local/share/ca-certificates/*.crt > /etc/ssl/certs/ca-certificates.crt
`;

it(
  "templates trust the operator's authorities, and are built anew with other ones",
  { skip: WITHOUT_BUILDS, timeout: 120_000 },
  async (context) => {
    const directory = await mkdtemp(join(tmpdir(), "coppice-authorities-"));
    context.after(() => rm(directory, { recursive: true, force: true }));
    const certificates = join(directory, "authorities.pem");
    await writeFile(certificates, "first");
    await using host = await BuildHost.open({ builds: { certificates } });
    const reference = await host.addImage("trusting", [
      { name: "usr/sbin/update-ca-certificates", body: UPDATE, mode: 0o755 },
    ]);
    const base = { kind: "image", reference, credentials: undefined } as const;
    const trusted = async (): Promise<string> => {
      const { result } = await host.build({ base });
      return host.run(result, "cat /etc/ssl/certs/ca-certificates.crt");
    };
    assert.equal(await trusted(), "first");
    await writeFile(certificates, "second");
    assert.equal(await trusted(), "second");
    const { lines } = await host.build();
    assert.ok(
      lines.some((line) => /does not trust the operator's authorities: it has neither/.test(line)),
      lines.join("\n"),
    );
    await rm(certificates);
    await assert.rejects(host.build({ base }), /certificates of builds.certificates cannot be read/);
    assert.deepEqual(await host.leftovers(), []);
  },
);
