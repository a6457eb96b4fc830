import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { rm } from "node:fs/promises";
import { createServer, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Readable } from "node:stream";
import { pipeline } from "node:stream/promises";
import { after, before, describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { missingPrograms } from "../testing/missing-programs.js";
import { templatesConfig } from "../templates-config.js";
import { ARCHITECTURE, HostPrograms } from "../images/host-programs.js";
import { DebianImages } from "./debian-image.js";
import type { MadeImage } from "../images/made-image.js";

const SUITE = /^VERSION_CODENAME=(.+)$/m.exec(readFileSync("/etc/os-release", "utf8"))?.[1] ?? "";
const isDebian = existsSync("/etc/debian_version") && existsSync("/usr/bin/mmdebstrap");
const WITHOUT =
  process.getuid?.() !== 0
    ? "it needs root"
    : isDebian
      ? missingPrograms("gpg", "dpkg-deb")
      : "it needs Debian with mmdebstrap";
const SOURCES = fileURLToPath(new URL("../../../../scripts/toolchain/debian-sources.sh", import.meta.url));
const KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg";
const [OLD, NEW, MISSING] = ["20260101T000000Z", "20260201T000000Z", "20260301T000000Z"];
const VERSIONS: Readonly<Record<string, string>> = { [OLD]: "1.0", [NEW]: "2.0" };
const signal = new AbortController().signal;

/** The archives of two days: this host's, with updates of our own, whose one package has a version by day. */
class TwoDays implements AsyncDisposable {
  readonly keyring: string;
  /** Days that were asked for. */
  readonly days = new Set<string>();
  readonly #directory: string;
  readonly #files = new Map<string, Buffer>();
  readonly #mirrors: ReadonlyMap<string, string>;
  #server: Server | undefined;

  constructor(directory: string) {
    this.#directory = directory;
    const lines = execFileSync("sh", [SOURCES], { encoding: "utf8" }).trim().split("\n");
    const addressOf = (release: string): string =>
      lines
        .map((line) => line.split(" "))
        .find(([, , name]) => name === release)?.[1]
        ?.replace(/\/+$/, "") ?? "";
    this.#mirrors = new Map([
      ["debian", addressOf(SUITE)],
      ["debian-security", addressOf(`${SUITE}-security`)],
    ]);
    const home = join(directory, "gnupg");
    mkdirSync(home, { mode: 0o700 });
    this.#gpg("--quick-generate-key", "archive@example.com", "rsa2048", "sign");
    this.keyring = join(directory, "keyring.gpg");
    writeFileSync(this.keyring, Buffer.concat([readFileSync(KEYRING), this.#gpg("--export")]));
    for (const [day, version] of Object.entries(VERSIONS)) this.#add(day, version);
  }

  async listen(): Promise<string> {
    const server = createServer((request, response) => {
      this.#answer(request.url ?? "", response).catch(() => response.destroy());
    });
    this.#server = server;
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  }

  #gpg(...args: readonly string[]): Buffer {
    const home = join(this.#directory, "gnupg");
    return execFileSync("gpg", ["--homedir", home, "--batch", "--quiet", "--passphrase", "", ...args], {
      stdio: ["ignore", "pipe", "pipe"],
    });
  }

  #add(day: string, version: string): void {
    const root = join(this.#directory, `probe-${version}`);
    mkdirSync(join(root, "DEBIAN"), { recursive: true, mode: 0o755 });
    const control = `Package: coppice-probe\nVersion: ${version}\nArchitecture: all\nMaintainer: A <a@example.com>\nDescription: probe\n`;
    writeFileSync(join(root, "DEBIAN/control"), control);
    const deb = join(this.#directory, `probe_${version}.deb`);
    execFileSync("dpkg-deb", ["--root-owner-group", "--build", root, deb], { stdio: "ignore" });
    const content = readFileSync(deb);
    const pool = `pool/probe_${version}.deb`;
    const packages = `${control}Filename: ${pool}\nSize: ${content.length}\nSHA256: ${sha256(content)}\n\n`;
    const index = `main/binary-${ARCHITECTURE}/Packages`;
    // Over on the day of the build, as those of earlier days are.
    const release = `Origin: Test\nCodename: ${SUITE}-updates\nDate: Thu, 01 Jan 2026 00:00:00 UTC\nValid-Until: Fri, 02 Jan 2026 00:00:00 UTC\nArchitectures: ${ARCHITECTURE}\nComponents: main\nSHA256:\n ${sha256(packages)} ${packages.length} ${index}\n`;
    const file = join(this.#directory, `Release-${version}`);
    writeFileSync(file, release);
    const dist = `/debian/${day}/dists/${SUITE}-updates`;
    this.#files.set(`${dist}/InRelease`, this.#gpg("--clearsign", "--output", "-", file));
    this.#files.set(`${dist}/${index}`, Buffer.from(packages));
    this.#files.set(`/debian/${day}/${pool}`, content);
  }

  async #answer(url: string, response: ServerResponse): Promise<void> {
    const own = this.#files.get(url);
    const [, archive = "", day = "", path = ""] = /^\/([a-z-]+)\/([^/]+)\/(.+)$/.exec(url) ?? [];
    this.days.add(day);
    const isOwn = path.startsWith(`dists/${SUITE}-updates/`) || VERSIONS[day] === undefined;
    if (own !== undefined || isOwn) {
      response.writeHead(own === undefined ? 404 : 200).end(own);
      return;
    }
    const found = await fetch(`${this.#mirrors.get(archive)}/${path}`);
    const size = found.headers.get("content-length");
    response.writeHead(found.status, size === null ? {} : { "content-length": size });
    await pipeline(Readable.fromWeb((found.body ?? new Blob([]).stream()) as never), response);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server?.closeAllConnections();
    this.#server?.close();
    execFileSync("gpgconf", ["--homedir", join(this.#directory, "gnupg"), "--kill", "all"]);
  }
}

function sha256(content: string | Buffer): string {
  return createHash("sha256").update(content).digest("hex");
}

/** A file of an image, as text. */
function fileOf({ layout }: MadeImage, path: string): string {
  const blobs = join(layout, "blobs/sha256");
  const [largest = ""] = readdirSync(blobs).toSorted(
    (one, other) => statSync(join(blobs, other)).size - statSync(join(blobs, one)).size,
  );
  return execFileSync("tar", ["-xOf", join(blobs, largest), `./${path}`], {
    encoding: "utf8",
    maxBuffer: 2 ** 26,
  });
}

describe("packages of an earlier day", { skip: WITHOUT, timeout: 600_000, concurrency: 1 }, () => {
  const directory = mkdtempSync(join(tmpdir(), "coppice-pins-"));
  const programs = new HostPrograms();
  let archives: TwoDays;
  let address: string;

  before(async () => {
    archives = new TwoDays(directory);
    address = await archives.listen();
  });
  after(async () => {
    await archives[Symbol.asyncDispose]();
    await programs.close();
    await rm(directory, { recursive: true });
  });

  function images(pins: string): DebianImages {
    const debian = {
      snapshots: address,
      keyring: archives.keyring,
      sources: [`deb ${address}/debian/${NEW} ${SUITE}-updates main`],
    };
    const settings = templatesConfig.parse({ pins, debian });
    return new DebianImages({ programs, settings, directory: () => join(directory, "layouts") });
  }

  async function make(
    snapshot: string,
    pins: string,
    onUnpinned?: (reason: string) => void,
  ): Promise<MadeImage> {
    const wanted = { suite: SUITE, packages: ["coppice-probe"], snapshot };
    return images(pins).make(wanted, { signal, ...(onUnpinned && { onUnpinned }) });
  }

  it("are the same ones each time, where the newest are others", async () => {
    await using first = await make(OLD, "require");
    await using again = await make(OLD, "prefer");
    assert.equal(again.digest, first.digest);
    const status = fileOf(first, "var/lib/dpkg/status");
    assert.match(status, /^Package: coppice-probe\n(?:.+\n)*?Version: 1\.0$/m);
    assert.deepEqual(archives.days, new Set([OLD]));
    // What the build alone told dpkg(1) is not in the image.
    assert.throws(() => fileOf(first, "etc/dpkg/dpkg.cfg.d/99mmdebstrap"), /Not found in archive/);
    // Steps of recipes take packages of that day, and users of the template the newest ones.
    assert.match(
      fileOf(first, "etc/apt/build.list"),
      new RegExp(`^deb .*/debian/${OLD} ${SUITE} main$`, "m"),
    );
    assert.equal(
      fileOf(first, "etc/apt/sources.list"),
      `deb ${address}/debian/${NEW} ${SUITE}-updates main\n`,
    );
  });

  it("are required, or the newest ones are taken where the archive fails", async () => {
    await assert.rejects(make(MISSING, "require"), (error: Error) => {
      assert.match(
        error.message,
        new RegExp(`^the archive of ${MISSING} \\(${address}\\) cannot be used: it answers 404$`),
      );
      return true;
    });
    const reasons: string[] = [];
    // The newest ones of this archive are no whole system.
    await assert.rejects(
      make(MISSING, "prefer", (reason) => reasons.push(reason)),
      /^BuildFailure: mmdebstrap failed: E: /,
    );
    assert.ok(archives.days.has(NEW));
    assert.match(reasons.join(""), new RegExp(`^the archive of ${MISSING} `));
    const wanted = { suite: SUITE, packages: [], snapshot: OLD };
    assert.equal(images("ignore").pinOf(wanted), undefined);
    assert.deepEqual(images("prefer").pinOf(wanted), { snapshot: OLD, isRequired: false });
    assert.deepEqual(readdirSync(join(directory, "layouts")), []);
  });
});
