import assert from "node:assert/strict";
import { it } from "node:test";
import { newId } from "@coppice/core";
import { BuildHost, WITHOUT_BUILDS } from "../testing/build-host.js";
import { installPrograms } from "./base-programs.js";

const MISSING = "sudo, curl, git, jq, ca-certificates";
/** In place of apk, whose packages are elsewhere: it makes their programs. */
const APK = `#!/bin/sh
echo "apk $*"
for each; do
  case $each in
  -* | add) ;;
  jq) echo "no such package" >&2; exit 3 ;;
  ca-certificates) mkdir -p /etc/ssl/certs; echo > /etc/ssl/certs/ca-certificates.crt ;;
  *) cp /bin/true "/bin/$each" ;;
  esac
done
`;

it(
  "programs that an image lacks are installed by its package manager, or there is a warning",
  { skip: WITHOUT_BUILDS, timeout: 120_000 },
  async () => {
    await using host = await BuildHost.open();
    const { signal } = new AbortController();
    const install = async (apk: string, hasInternet: boolean, timeoutMs = 60_000) => {
      const reference = await host.addImage(newId("image"), [{ name: "bin/apk", body: apk, mode: 0o755 }]);
      const base = { kind: "image", reference, credentials: undefined } as const;
      await host.build({ base });
      const image = host.layers.findLast(({ context }) => context.user === "root")?.image ?? "";
      const sandbox = await host.backend.provision(
        {
          id: newId("sandbox"),
          template: "t",
          image: { id: image, user: "root" },
          limits: {},
          allowInternetAccess: false,
        },
        signal,
      );
      const lines: string[] = [];
      const print = (level: string, line: string): void => void lines.push(`${level}: ${line}`);
      const hasBash = await installPrograms(sandbox, {
        signal,
        print,
        hasInternet,
        proxies: {},
        timeoutMs,
      });
      await sandbox.destroy();
      assert.ok(hasBash);
      return lines;
    };
    assert.deepEqual(await install(APK.replace(/.*jq.*\n/, ""), true), [
      `info: Installing ${MISSING} with apk`,
      `debug: [stdout]: apk add --no-cache ${MISSING.replaceAll(",", "")}`,
    ]);
    assert.deepEqual(await install(APK, true), [
      `info: Installing ${MISSING} with apk`,
      `debug: [stdout]: apk add --no-cache ${MISSING.replaceAll(",", "")}`,
      "debug: [stderr]: no such package",
      "warn: Not installed: jq, ca-certificates: apk: exit status 3: no such package",
    ]);
    assert.deepEqual(await install("#!/bin/sh\nsleep 60\n", true, 500), [
      `info: Installing ${MISSING} with apk`,
      `warn: Not installed: ${MISSING}: apk took too long`,
    ]);
    assert.deepEqual(await install(APK, false), [
      `warn: This image has no ${MISSING}, and nothing can be installed without an internet connection`,
    ]);
  },
);
