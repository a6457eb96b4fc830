import assert from "node:assert/strict";
import { before, it } from "node:test";
import { gzipSync } from "node:zlib";
import { packFrame, unpackFrames } from "../../harness/clients/connect-frames.js";
import { type EnvdClient, envdClient } from "../../harness/clients/envd-client.js";
import { openProcess, shellRequest } from "../../harness/clients/process-stream.js";
import { onEachBackend } from "../../harness/server/on-each-backend.js";

/** Tables D.1 and D.2 of E2B's interface, the encoding of messages. docs/compatibility.md lists the rows. */
onEachBackend("messages of process.Process by their contract", ({ server, sandbox }) => {
  let envd: EnvdClient;
  before(() => {
    const { sandboxId } = sandbox();
    const token = server().sandboxes.get(sandboxId).record.accessToken;
    envd = envdClient({ url: server().url, sandboxId, token });
  });

  const call = (method: string, message: unknown) => envd.call(`process.Process/${method}`, message);

  it("D.1 both codecs, the same stream in binary protobuf", async () => {
    const script = "printf out; printf err >&2; exit 3";
    const field = (number: number, value: Buffer) =>
      Buffer.concat([Buffer.of(number * 8 + 2, value.length), value]);
    const config = [
      ["/bin/sh", 1],
      ["-c", 2],
      [script, 2],
    ] as const;
    const process = field(1, Buffer.concat(config.map(([text, number]) => field(number, Buffer.from(text)))));
    const head = Buffer.alloc(5);
    head.writeUInt32BE(process.length, 1);
    const answer = await envd.send("POST", "/process.Process/Start", {
      headers: { "content-type": "application/connect+proto", "connect-protocol-version": "1" },
      body: Buffer.concat([head, process]),
    });
    assert.equal(answer.status, 200);
    assert.equal(answer.headers["content-type"], "application/connect+proto");
    const messages: Buffer[] = [];
    for (let at = 0; at < answer.body.length; at += 5 + answer.body.readUInt32BE(at + 1)) {
      messages.push(answer.body.subarray(at, at + 5 + answer.body.readUInt32BE(at + 1)));
    }
    assert.equal(messages.at(-1)?.toString(), "\x02\0\0\0\x02{}", "the end of a stream is JSON in any codec");
    const status = field(3, Buffer.from("exit status 3"));
    const error = field(4, Buffer.from("exit status 3"));
    // exit_code is a sint32: 3 is 6 on the wire; exited is true.
    const end = field(1, field(3, Buffer.concat([Buffer.of(0x08, 6, 0x10, 1), status, error])));
    assert.deepEqual(messages.at(-2)?.subarray(5), end);
    const data = messages.slice(1, -2).map((message) => message.subarray(5).toString("hex"));
    const expected = [field(1, Buffer.from("out")), field(2, Buffer.from("err"))].map((output) =>
      field(1, field(2, output)).toString("hex"),
    );
    assert.deepEqual(data.toSorted(), expected.toSorted());

    const list = await envd.send("POST", "/process.Process/List", {
      headers: { "content-type": "application/proto" },
      body: new Uint8Array(),
    });
    assert.deepEqual([list.status, list.headers["content-type"]], [200, "application/proto"]);
  });

  it("D.1 a message that is none is the client's fault, in both codecs", async () => {
    for (const [codec, bytes] of [
      ["json", Buffer.from("{]}")],
      ["proto", Buffer.of(0x0a, 0xff)],
    ] as const) {
      const unary = await envd.send("POST", "/process.Process/SendSignal", {
        headers: { "content-type": `application/${codec}` },
        body: bytes,
      });
      const refusal = unary.json() as { readonly code: string };
      assert.deepEqual([unary.status, refusal.code], [400, "invalid_argument"], codec);
      for (const method of ["Start", "StreamInput"]) {
        const stream = await envd.send("POST", `/process.Process/${method}`, {
          headers: { "content-type": `application/connect+${codec}` },
          body: Buffer.concat([packFrame("", { lengthBytes: bytes.length }), bytes]),
        });
        const [only, ...more] = unpackFrames(stream.body);
        const { error } = (only?.message ?? {}) as { readonly error?: { readonly code: string } };
        assert.deepEqual([only?.flags, error?.code, more], [2, "invalid_argument", []], `${method} ${codec}`);
      }
    }
  });

  it("D.1 a message with very many values is refused before it is parsed, also a compressed one", async () => {
    const many = `{"a":[${"[],".repeat(100_000)}[]]}`;
    for (const [encoding, body] of [
      [{}, Buffer.from(many)],
      [{ "content-encoding": "gzip" }, gzipSync(many)],
    ] as const) {
      const headers = { "content-type": "application/json", ...encoding };
      const { status, text } = await envd.send("POST", "/process.Process/SendSignal", { headers, body });
      assert.equal(status, 400, text);
      assert.match(text, /"invalid_argument".*more than 5000 values/);
    }
    for (const [flags, payload] of [
      [0, Buffer.from(many)],
      [1, gzipSync(many)],
    ] as const)
      for (const method of ["Start", "StreamInput"]) {
        const { body } = await envd.send("POST", `/process.Process/${method}`, {
          headers: { "content-type": "application/connect+json", "connect-content-encoding": "gzip" },
          body: Buffer.concat([packFrame("", { flags, lengthBytes: payload.length }), payload]),
        });
        assert.match(body.toString(), /"invalid_argument".*more than 5000 values/, `${method} ${flags}`);
      }
  });

  it("D.1 gzip request bodies, unary and streaming", async () => {
    const list = await envd.send("POST", "/process.Process/List", {
      headers: { "content-type": "application/json", "content-encoding": "gzip" },
      body: gzipSync("{}"),
    });
    assert.equal(list.status, 200, list.text);
    const message = gzipSync(JSON.stringify(shellRequest("echo zipped")));
    const head = Buffer.alloc(5);
    head.writeUInt8(1, 0);
    head.writeUInt32BE(message.length, 1);
    const answer = await envd.send("POST", "/process.Process/Start", {
      headers: { "content-type": "application/connect+json", "connect-content-encoding": "gzip" },
      body: Buffer.concat([head, message]),
    });
    const frames = unpackFrames(answer.body);
    assert.deepEqual(frames.at(-1), { flags: 2, message: {} });
    assert.ok(
      frames.every(({ flags }) => (flags & 1) === 0),
      "streams are not compressed unasked",
    );
  });

  it("D.2 proto3 JSON, names and numbers of enums, both spellings of a field, fields nobody knows", async () => {
    for (const signal of [9, "SIGNAL_SIGKILL"]) {
      const sleeper = await openProcess(envd, shellRequest("exec sleep 300"));
      assert.equal((await call("SendSignal", { ...sleeper.selector, signal, unknown: 1 })).status, 200);
      await sleeper.rest();
    }
    assert.deepEqual(await call("List", {}), { status: 200, body: {} }, "defaults are left out");
  });
});
