import assert from "node:assert/strict";
import { once } from "node:events";
import { join } from "node:path";
import type { Duplex } from "node:stream";
import { describe, it } from "node:test";
import type { Sandbox } from "@coppice/core/backend";
import { readInit, sandboxPaths } from "../launcher/sandbox-record.js";
import { openTestBackend, reasonToSkip } from "../testing/test-backend.js";
import { makeSandbox } from "../testing/test-sandbox.js";

/** Says its port, and then echoes one connection after the other, or takes none. */
const PROGRAM = `
  use IO::Socket::INET;
  $| = 1;
  my $server = IO::Socket::INET->new(Listen => 1, LocalAddr => "127.0.0.1") or die;
  print $server->sockport, "\\n";
  sleep if $ARGV[0] eq "busy";
  while (my $one = $server->accept) { while (sysread $one, my $bytes, 65536) { syswrite $one, $bytes } }`;

async function listenIn(sandbox: Sandbox, how: "echo" | "busy"): Promise<number> {
  const { output } = await sandbox.spawn({ path: "/usr/bin/perl", args: ["-e", PROGRAM, how], env: {} });
  for await (const { data } of output) return Number(Buffer.from(data).toString());
  throw new Error("the program ended");
}

function dial(sandbox: Sandbox, port: number): Promise<Duplex> {
  return sandbox.dial(port, AbortSignal.timeout(20_000));
}

describe("connections into a sandbox", { skip: reasonToSkip() ?? false, concurrency: 1 }, () => {
  it("do not pass through its agent, and end with it", async () => {
    await using opened = await openTestBackend();
    const sandbox = await makeSandbox(opened.backend);
    const port = await listenIn(sandbox, "echo");
    const init = await readInit(sandboxPaths(join(opened.directory, "sandboxes", sandbox.id)));
    assert.ok(init);
    process.kill(init.pid, "SIGSTOP");
    const stream = await dial(sandbox, port);
    stream.write("past the agent");
    const [answer] = (await once(stream, "data")) as [Buffer];
    assert.equal(answer.toString(), "past the agent");
    process.kill(init.pid, "SIGCONT");
    const closed = once(stream, "close");
    await sandbox.destroy();
    await closed;
    await assert.rejects(dial(sandbox, port), { code: "unavailable" });
    assert.deepEqual(await opened.leaks(), []);
  });

  it("to a program that takes none hold up nothing else", async () => {
    await using opened = await openTestBackend();
    const sandbox = await makeSandbox(opened.backend);
    const port = await listenIn(sandbox, "busy");
    const waiting = await Promise.all(Array.from({ length: 40 }, () => dial(sandbox, port)));
    const other = await makeSandbox(opened.backend);
    const stream = await dial(other, await listenIn(other, "echo"));
    stream.write("meanwhile");
    assert.equal(String((await once(stream, "data"))[0]), "meanwhile");
    for (const each of waiting) each.destroy();
    await Promise.all([sandbox.destroy(), other.destroy()]);
  });
});
