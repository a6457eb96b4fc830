import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer, get } from "node:http";
import type { AddressInfo } from "node:net";
import { describe, it } from "node:test";
import { sendAnswer } from "./send-answer.js";

describe("the answer of an RPC", () => {
  it("is released when its socket was destroyed and has not closed yet", async () => {
    const isLetGo = Promise.withResolvers<void>();
    async function* messages(): AsyncGenerator<Uint8Array> {
      try {
        for (;;) yield Buffer.from("message");
      } finally {
        isLetGo.resolve();
      }
    }
    const server = createServer((message, response) => {
      message.socket.destroy();
      void sendAnswer({ status: 200, header: new Headers({ "x-a": "1" }), body: messages() }, response);
    });
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    try {
      const [refusal] = await once(
        get({ port: (server.address() as AddressInfo).port, agent: false }),
        "error",
      );
      assert.equal((refusal as NodeJS.ErrnoException).code, "ECONNRESET");
      await isLetGo.promise;
    } finally {
      server.close();
    }
  });
});
