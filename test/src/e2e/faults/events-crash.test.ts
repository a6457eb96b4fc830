import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { after, before, describe, it } from "node:test";
import { eventually } from "@coppice/core/testing";
import { API_KEY } from "../../harness/server/api-key.js";
import { exchange } from "../../harness/clients/exchange.js";
import { type Installation, makeInstallation, ServerProcess } from "../../harness/server/server-process.js";

interface Event {
  readonly id: string;
  readonly type: string;
  readonly sandboxId: string;
  readonly eventData: { readonly reason?: string } | null;
}

const KILLS = 3;

describe("events of a server that is killed", { timeout: 240_000 }, () => {
  const received: { readonly delivery: string; readonly event: Event }[] = [];
  let installation: Installation;
  let receiver: Server;
  /** While true, deliveries are received and never answered. */
  let isSilent = false;

  before(async () => {
    receiver = createServer((request, response) => {
      const chunks: Buffer[] = [];
      request.on("data", (chunk: Buffer) => chunks.push(chunk));
      request.on("end", () => {
        const event = JSON.parse(Buffer.concat(chunks).toString()) as Event;
        received.push({ delivery: String(request.headers["e2b-delivery-id"]), event });
        if (!isSilent) response.writeHead(204).end();
      });
    });
    receiver.listen(0, "127.0.0.1");
    await once(receiver, "listening");
    installation = await makeInstallation({
      plugins: () => ({ events: { webhooks: { privateTargets: ["127.0.0.1"], firstRetry: "100ms" } } }),
    });
  });

  after(async () => {
    receiver.closeAllConnections();
    receiver.close();
    await installation.remove();
  });

  const ask = async (server: ServerProcess, method: string, path: string, body?: object) => {
    const answer = await exchange(server.url, {
      method,
      path,
      headers: { "x-api-key": API_KEY },
      ...(body && { body: JSON.stringify(body) }),
    });
    assert.ok(answer.status < 300, answer.text);
    return answer;
  };
  const list = async (server: ServerProcess): Promise<readonly Event[]> =>
    (await ask(server, "GET", "/events/sandboxes?limit=100&orderAsc=true")).json() as Event[];

  it("are all told, in order, and what was being delivered is delivered again with the same id", async () => {
    const sandboxes: string[] = [];
    for (let kill = 0; kill < KILLS; kill += 1) {
      isSilent = false;
      await using server = await ServerProcess.start(installation.configFile);
      const newest = sandboxes.at(-1);
      if (newest === undefined) {
        const { port } = receiver.address() as AddressInfo;
        const events = ["created", "updated", "killed"].map((type) => `sandbox.lifecycle.${type}`);
        await ask(server, "POST", "/events/webhooks", { url: `http://127.0.0.1:${port}/`, events });
      } else {
        await eventually("what the last server left to tell", () =>
          received.some(
            ({ event }) => event.sandboxId === newest && event.type === "sandbox.lifecycle.killed",
          ),
        );
      }
      const before = received.length;
      isSilent = true;
      const made = await ask(server, "POST", "/v2/sandboxes", { templateID: "base" });
      const { sandboxID } = made.json() as { readonly sandboxID: string };
      sandboxes.push(sandboxID);
      // The server is killed right after the answer: by then each event is stored.
      await ask(server, "POST", `/sandboxes/${sandboxID}/timeout`, { timeout: 600 });
      await eventually("a delivery under way", () => received.length > before);
      server.signal("SIGKILL");
      await server.ended;
    }
    isSilent = false;
    await using last = await ServerProcess.start(installation.configFile);
    const all = await eventually("every event", async () => {
      const events = await list(last);
      return events.length >= 3 * KILLS ? events : undefined;
    });
    for (const id of sandboxes) {
      const own = all.filter(({ sandboxId }) => sandboxId === id);
      const types = own.map(({ type }) => type.replace("sandbox.lifecycle.", ""));
      assert.deepEqual(types, ["created", "updated", "killed"]);
      assert.equal(own[2]?.eventData?.reason, "backend lost");
    }
    await eventually("the last delivery", () => received.at(-1)?.event.id === all.at(-1)?.id);
    // Only the interrupted delivery is repeated.
    const first = received.filter(
      ({ event }, index) => received.findIndex((one) => one.event.id === event.id) === index,
    );
    assert.deepEqual(
      first.map(({ event }) => event),
      all,
    );
    assert.ok(received.length >= all.length + KILLS, "nothing was delivered again");
    assert.equal(
      new Set(received.map(({ delivery }) => delivery)).size,
      all.length,
      "a repetition has a new id",
    );
  });
});
