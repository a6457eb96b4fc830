import assert from "node:assert/strict";
import { it } from "node:test";
import { create, createFileRegistry, type DescMessage } from "@bufbuild/protobuf";
import type { GenService } from "@bufbuild/protobuf/codegenv2";
import { FileDescriptorProtoSchema } from "@bufbuild/protobuf/wkt";
import { createLogger } from "../../observe/logger.js";
import { definePlugin } from "../../plugin/plugin.js";
import { memoryBackend } from "../../testing/memory-backend.js";
import { startTestServer } from "../../testing/start-test-server.js";
import { requestOf } from "../surfaces/surface-request.js";

type Method<Kind extends string> = { methodKind: Kind; input: DescMessage; output: DescMessage };
type Waiting = GenService<{ once: Method<"unary">; stream: Method<"server_streaming"> }>;

/** A service with a unary RPC and a stream, whose messages have no fields. */
function waitingService(): Waiting {
  const method = { inputType: ".test.Nothing", outputType: ".test.Nothing" };
  const file = create(FileDescriptorProtoSchema, {
    name: "waiting.proto",
    package: "test",
    syntax: "proto3",
    messageType: [{ name: "Nothing" }],
    service: [
      {
        name: "Waiting",
        method: [
          { ...method, name: "Once" },
          { ...method, name: "Stream", serverStreaming: true },
        ],
      },
    ],
  });
  const service = createFileRegistry(file, () => undefined).getService("test.Waiting");
  assert.ok(service !== undefined);
  return service as Waiting;
}

it("a client that leaves is no error in the log, whatever waits for it", async () => {
  let isWaiting = Promise.withResolvers<void>();
  let hasLeft = Promise.withResolvers<void>();
  const untilGone = async (signal: AbortSignal): Promise<never> => {
    const gone = new Promise((resolve) => signal.addEventListener("abort", resolve, { once: true }));
    isWaiting.resolve();
    await gone;
    hasLeft.resolve();
    throw signal.reason;
  };
  const waiting = definePlugin({
    name: "waiting",
    setup(plugin) {
      plugin.http("api").get("/wait", (ctx) => untilGone(requestOf(ctx).signal));
      plugin.rpc("api").service(waitingService(), {
        once: (_, context) => untilGone(context.signal),
        async *stream(_, context) {
          yield {};
          await untilGone(context.signal);
        },
      });
    },
  });
  const lines: string[] = [];
  const log = createLogger("info", { write: (line) => void lines.push(line) });
  await using server = await startTestServer({ plugins: [[waiting], [memoryBackend()]], log });
  const rpc = (type: string, body: string | Buffer) => ({
    method: "POST",
    headers: { "content-type": type, "connect-protocol-version": "1" },
    body,
  });
  const requests: readonly (readonly [path: string, init: RequestInit])[] = [
    ["/wait", {}],
    ["/test.Waiting/Once", rpc("application/json", "{}")],
    ["/test.Waiting/Stream", rpc("application/connect+json", Buffer.from("\0\0\0\0\x02{}"))],
  ];
  for (const [path, init] of requests) {
    isWaiting = Promise.withResolvers();
    hasLeft = Promise.withResolvers();
    const client = new AbortController();
    const asked = fetch(server.url + path, { ...init, signal: client.signal }).then((answer) =>
      answer.text(),
    );
    const refused = assert.rejects(asked, { name: "AbortError" });
    await isWaiting.promise;
    client.abort();
    await refused;
    await hasLeft.promise;
  }
  // Answered after what the handlers threw has been translated.
  assert.equal((await fetch(`${server.url}/nowhere`)).status, 404);
  assert.deepEqual(
    lines.filter((line) => (JSON.parse(line) as { readonly level: number }).level >= 40),
    [],
  );
});
