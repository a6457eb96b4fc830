import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer, type RequestListener } from "node:http";
import type { AddressInfo } from "node:net";
import { it } from "node:test";
import { z } from "zod";
import { StoreUnavailable } from "../fleet-store.js";
import { EtcdClient } from "./etcd-client.js";

/** @returns why a client of this member fails. */
async function failureAt(member: RequestListener, timeoutMs = 200): Promise<string> {
  const server = createServer(member).listen(0, "127.0.0.1");
  await once(server, "listening");
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const client = new EtcdClient({ endpoints: [url], login: undefined, tls: {}, timeoutMs });
  try {
    const error: unknown = await client
      .call("kv/range", {}, { schema: z.unknown(), canRepeat: true })
      .catch((thrown: unknown) => thrown);
    assert.ok(error instanceof StoreUnavailable);
    return String((error.cause as Error).message);
  } finally {
    client.close();
    server.closeAllConnections();
    server.close();
  }
}

it("a member that refuses in plain text is quoted, as the gateway does before it asks etcd", async () => {
  const failure = await failureAt((_, response) => {
    response.writeHead(400).end("CommonName of client will be ignored\n");
  });
  assert.match(failure, /^http\S+ answered 400: CommonName of client will be ignored$/);
});

it("a member that is silent is named", async () => {
  assert.match(await failureAt(() => undefined), /^http\S+ has not answered in time$/);
});

it("a member that answers without an end is not read to the end of this server's memory", async () => {
  const block = Buffer.alloc(2 ** 20, " ");
  let sent = 0;
  const failure = await failureAt((_, response) => {
    const fill = (): void => {
      while (!response.destroyed) {
        sent += block.length;
        if (!response.write(block)) break;
      }
    };
    response.on("drain", fill);
    fill();
  }, 60_000);
  assert.match(failure, /^its answer has more than 4194304 bytes$/);
  assert.ok(sent < 2 ** 25, `${sent} bytes`);
});
