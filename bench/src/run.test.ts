import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { describe, it } from "node:test";
import { reasonWithoutEtcd } from "@coppice/plugin-fleet/testing";
import { parseAsked } from "./asked.js";
import { PROGRAM, run, SMALL, testTables } from "./report/test-tables.js";
import { reasonWithoutNginx } from "@coppice/test/harness/server/start-nginx.js";

const ROWS = ["exec", "stdout", "burst", "files", ...(reasonWithoutNginx === undefined ? ["proxy"] : [])];

describe("the benchmarks", { timeout: 400_000 }, () => {
  testTables(["burst", "exec", "files", "proxy", "stdout"]);

  it(
    "of images print how far unpacking is from umoci alone",
    { skip: process.getuid?.() === 0 ? false : "it needs root" },
    async () => {
      const { stdout } = await run(process.execPath, [PROGRAM, "images", ...SMALL]);
      assert.match(stdout, /^images: unpack 2 MiB\n.*\nfloor: umoci raw unpack .*\nimages\.unpack .*x$/m);
      assert.match(stdout, /^commit of 64 MiB .*x$/m);
    },
  );

  it(
    "of the proxy beside nginx print how far both are from the direct connection",
    { skip: reasonWithoutNginx ?? false },
    async () => {
      const { stdout } = await run(process.execPath, [PROGRAM, "proxy-nginx", ...SMALL]);
      for (const atOnce of [1, 16])
        assert.match(
          stdout,
          new RegExp(
            `^proxy-nginx: ${atOnce} .*\\n.*\\nfloor: .* 1\\.00x\\nthrough nginx.*x\\nthrough the server.*x$`,
            "m",
          ),
        );
    },
  );

  it("of idle sandboxes tells what each of them costs", async () => {
    const { stdout } = await run(process.execPath, [PROGRAM, "idle", ...SMALL]);
    const tables = stdout.trim().split("\n\n");
    const [commands = "", ofCommands = "", ofTime = "", ofMemory = "", memory = ""] = tables;
    assert.match(ofCommands, /^beside one alive\n.*\nStart of true with 3 sandboxes alive, p99 .*x$/);
    assert.match(ofTime, /^beside its limit\n.*\nprocessor time of the server with 3 idle sandboxes .*x$/);
    assert.match(ofMemory, /^beside its limit\n.*\nmemory of each of 3 idle sandboxes .*x$/);
    assert.match(
      commands,
      /^idle: Start of true in one of them\n.*\nfloor: one alive .* 1\.00x\n3 alive .*x$/,
    );
    const [title = "", ...rows] = memory.split("\n");
    assert.equal(title, "idle: memory of 3 sandboxes that do nothing");
    assert.equal(rows.length, 5);
    assert.match(rows.pop() ?? "", /^ {2}server \(processor time\): \d+\.\d ms each second$/);
    for (const row of rows) assert.match(row, /^ {2}\w.*: -?\d+ KiB each, -?\d+\.\d MiB$/);
  });

  it(
    "of a simulated fleet tell how even it is, and what it costs etcd",
    { skip: reasonWithoutEtcd() },
    async () => {
      const { stdout } = await run(process.execPath, [
        PROGRAM,
        "fleet-simulation",
        ...SMALL,
        "--servers",
        "3",
      ]);
      const [spread = "", traffic = ""] = stdout.trim().split("\n\n");
      assert.equal(spread.match(/: fullest [\d.]+x, emptiest [\d.]+x, \d+ % stay/g)?.length, 6, stdout);
      assert.equal(traffic.match(/: [1-9]\d* bytes, -?\d+ µs of etcd$/gm)?.length, 3, stdout);
    },
  );

  it("of rows print the ratio of this server to a peer, which another checkout may serve", async () => {
    const peer = spawn(process.execPath, [PROGRAM, "serve"], { stdio: ["ignore", "pipe", "inherit"] });
    try {
      const [line] = (await once(createInterface({ input: peer.stdout }), "line")) as [string];
      const [url = ""] = line.split(" ");
      const { stdout } = await run(process.execPath, [
        PROGRAM,
        ...ROWS,
        "--peer",
        url,
        ...SMALL,
        "--seconds",
        "0.01",
      ]);
      const rows = stdout
        .split("\n")
        .filter((text) => /^\w.* [\d.]+ (ms|per s|MiB\/s) +[\d.]+ (ms|per s|MiB\/s) +[\d.]+x$/.test(text));
      assert.equal(rows.length, reasonWithoutNginx === undefined ? 10 : 8, stdout);
    } finally {
      peer.kill("SIGTERM");
      await once(peer, "exit");
    }
  });

  it("of memory print it beside a limit, or beside that before", async () => {
    const { stdout } = await run(process.execPath, [
      PROGRAM,
      "websockets",
      "transfers",
      ...SMALL,
      "--connections",
      "60",
    ]);
    const row = (what: string): RegExp => new RegExp(`^${what} +[\\d.]+ MiB +[\\d.]+ MiB +[\\d.]+x$`, "m");
    assert.match(stdout, row("memory of a server with 60 idle WebSockets"));
    assert.match(stdout, row("most memory during 100 transfers of 2 MiB at once"));
  });

  it("explain themselves to who asks for none of them", async () => {
    await assert.rejects(run(process.execPath, [PROGRAM, "nonsense"]), (error) => {
      const { code, stderr } = error as { readonly code: unknown; readonly stderr: string };
      assert.equal(code, 64);
      assert.match(
        stderr,
        /^usage: npm run bench -- create\|burst\|pool\|exec\|run-code\|code-output\|kernel-memory\|many-kernels\|files\|proxy\|proxy-nginx\|websockets\|transfers\|stdout\|fleet\|fleet-map\|fleet-simulation\|idle/,
      );
      return true;
    });
    const known = { benchmarks: ["exec", "files", "idle", "fleet-simulation", "websockets"], rows: ["exec"] };
    for (const args of [
      [],
      ["nonsense"],
      ["exec", "nonsense"],
      ["exec", "--seconds", "x"],
      ["exec", "--loud"],
      ["exec", "--backend", "none"],
      ["files", "--mib", "0"],
      ["idle", "--sandboxes", "none"],
      ["fleet-simulation", "--servers", "0"],
      ["websockets", "--connections", "0"],
      ["idle", "--record", "a peer that is not there"],
      ["exec", "--peer", "nowhere"],
      ["files", "--peer", "http://127.0.0.1"],
    ])
      assert.equal(parseAsked(args, known), undefined, args.join(" "));
    assert.deepEqual(parseAsked(["exec", "idle"], known)?.names, ["exec", "idle"]);
  });
});
