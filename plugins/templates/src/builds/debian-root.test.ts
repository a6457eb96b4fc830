import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { after, before, describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { BuildHost, WITHOUT_BUILDS } from "../testing/build-host.js";

const SUITE = /^VERSION_CODENAME=(.+)$/m.exec(readFileSync("/etc/os-release", "utf8"))?.[1] ?? "";
const isDebian = existsSync("/etc/debian_version") && existsSync("/usr/bin/mmdebstrap");
const WITHOUT_DEBIAN = WITHOUT_BUILDS || (isDebian ? false : "it needs Debian with mmdebstrap");
const SOURCES = fileURLToPath(new URL("../../../../scripts/toolchain/debian-sources.sh", import.meta.url));

describe("a root of Debian packages", { skip: WITHOUT_DEBIAN, timeout: 600_000, concurrency: 1 }, () => {
  let host: BuildHost;
  before(async () => {
    const sources = execFileSync("sh", [SOURCES], { encoding: "utf8" }).trim().split("\n");
    host = await BuildHost.open({ debian: { sources } });
  });
  after(() => host[Symbol.asyncDispose]());

  it("has its packages, is built once, and takes steps", async () => {
    const base = { kind: "debian", suite: SUITE, packages: ["jq", "sudo"] } as const;
    const { result, lines } = await host.build({ base, steps: [["RUN", "sudo -n jq -n 1+1"]] });
    assert.ok(lines.includes(`[base] FROM DEBIAN ${SUITE} with 2 packages`), lines.join("\n"));
    assert.ok(lines.includes("[builder 1/1] [stdout]: 2"), lines.join("\n"));
    const contents = host.contents.get(result.image) ?? [];
    assert.deepEqual(
      contents.filter((line) => /^deb (jq|sudo) /.test(line)).map((line) => line.split(" ")[1]),
      ["jq", "sudo"],
    );
    assert.match(await host.run(result, "cat /etc/debian_version; id -un user"), /^\d.*\nuser\n$/);
    const again = await host.build({ base });
    assert.ok(
      again.lines.includes(`CACHED [base] FROM DEBIAN ${SUITE} with 2 packages`),
      again.lines.join("\n"),
    );
    assert.deepEqual(await host.leftovers(), []);
  });

  it("fails for a package that is not there, and leaves nothing", async () => {
    const base = { kind: "debian", suite: SUITE, packages: ["no-such-package"] } as const;
    await assert.rejects(host.build({ base }), /^BuildFailure: mmdebstrap failed: E: .*no-such-package/);
    assert.deepEqual(await host.leftovers(), []);
  });

  it("that is given up is ended with all that mmdebstrap has started", async () => {
    const base = { kind: "debian", suite: SUITE, packages: ["less"] } as const;
    const giving = new AbortController();
    const onLine = (line: string): void => {
      if (line === "Installing the packages") setTimeout(() => giving.abort(new Error("given up")), 2000);
    };
    await assert.rejects(host.build({ base, signal: giving.signal, onLine }), /^Error: given up$/);
    assert.deepEqual(await host.leftovers(), []);
    const running = execFileSync("ps", ["-eo", "args"], { encoding: "utf8" }).split("\n");
    assert.deepEqual(
      running.filter((line) => line.includes("mmdebstrap") && line.includes(host.directory)),
      [],
    );
  });
});
