import assert from "node:assert/strict";
import { execFileSync, spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { closeSync, openSync } from "node:fs";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, it } from "node:test";
import { setImmediate } from "node:timers/promises";
import { eventually } from "@coppice/core/testing";
import { ProcessDescriptors } from "../built/agent-binary.js";
import { openDescriptors } from "../testing/open-descriptors.js";
import { type Handover, SharedInput } from "./handover.js";

const own = ProcessDescriptors.open(process.pid);
own?.close();
const skip = own === undefined && "descriptors are handed over on Linux alone";

/** What a replaced agent does with its end of a pipe, which is descriptor 3. */
const CLEAR = 'use Fcntl; open(my $end, "+<&=3") or die; fcntl($end, F_SETFL, O_RDWR) or die';
/** Offers a socket, whose number it prints, and takes nothing from the other one. */
const OFFER = `
  use Fcntl; use Socket;
  socketpair(my $own, my $other, AF_UNIX, SOCK_STREAM, 0) or die;
  if ($ARGV[0] eq "full") {
    fcntl($other, F_SETFL, O_RDWR | O_NONBLOCK) or die;
    while (syswrite($other, "x" x 65536)) {}
    fcntl($other, F_SETFL, O_RDWR) or die;
  }
  $| = 1; print fileno($other), "\n";
  sleep 60;`;

describe("a replaced agent", { skip, timeout: 20_000 }, () => {
  it("that makes its end of a pipe blocking does not block the server", async () => {
    const directory = await mkdtemp(join(tmpdir(), "coppice-test-"));
    const path = join(directory, "pipe");
    execFileSync("mkfifo", [path]);
    // Reads nothing.
    const agents = openSync(path, "r+");
    const descriptors = ProcessDescriptors.open(process.pid);
    try {
      const handover = { take: async () => descriptors?.take(agents) } as Handover;
      const input = await SharedInput.open(handover);
      assert.ok(input);
      const { status } = spawnSync("perl", ["-e", CLEAR], { stdio: ["ignore", "ignore", "inherit", agents] });
      assert.equal(status, 0);
      await isLeftUnread(input);
    } finally {
      descriptors?.close();
      closeSync(agents);
      await rm(directory, { recursive: true });
    }
  });

  it("that offers a file or a directory of its own gets nothing written there, and loses no descriptor", async (t) => {
    const directory = await mkdtemp(join(tmpdir(), "coppice-test-"));
    t.after(() => rm(directory, { recursive: true }));
    const path = join(directory, "file");
    await writeFile(path, "unchanged");
    const descriptors = ProcessDescriptors.open(process.pid);
    t.after(() => descriptors?.close());
    for (const [offered, flags] of [
      [path, "r+"],
      [path, "r"],
      [directory, "r"],
      ["/dev/null", "r+"],
    ] as const) {
      const agents = openSync(offered, flags);
      const before = openDescriptors(process.pid);
      const handover = { take: async () => descriptors?.take(agents) } as Handover;
      const input = await SharedInput.open(handover);
      input?.destroy();
      assert.equal(input, undefined, offered);
      await eventually("the descriptors are closed", () => openDescriptors(process.pid) === before);
      closeSync(agents);
    }
    assert.equal(await readFile(path, "utf8"), "unchanged");
  });

  for (const [what, isTaken] of [
    ["empty", true],
    ["full", false],
  ] as const)
    it(`that offers a blocking socket, which is ${what}, does not block the server`, async () => {
      const agent = spawn("perl", ["-e", OFFER, what], { stdio: ["ignore", "pipe", "inherit"] });
      const ended = once(agent, "exit");
      const descriptors = ProcessDescriptors.open(agent.pid ?? 0);
      try {
        const [line] = (await once(agent.stdout, "data")) as [Buffer];
        const before = openDescriptors(process.pid);
        const handover = { take: async () => descriptors?.take(Number(line)) } as Handover;
        const input = await SharedInput.open(handover);
        assert.equal(input !== undefined, isTaken);
        if (input !== undefined) await isLeftUnread(input);
        await eventually("the descriptors are closed", () => openDescriptors(process.pid) === before);
      } finally {
        descriptors?.close();
        agent.kill("SIGKILL");
        await ended;
      }
    });
});

/** Nobody reads what is written to it, which the server can give up. */
async function isLeftUnread(input: SharedInput): Promise<void> {
  const writing = input.write(Buffer.alloc(2 ** 22));
  await setImmediate();
  input.destroy();
  await assert.rejects(writing);
}
