import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer as createHttpServer } from "node:http";
import { type AddressInfo, createServer, type Server } from "node:net";
import { describe, it, type TestContext } from "node:test";
import { ArchiveProbe } from "./debian-archives.js";

async function listen(server: Server, context: TestContext): Promise<string> {
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  context.after(() => server.close());
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}/debian/`;
}

describe("the archive of earlier packages", () => {
  it("that does not answer costs its time once for all builds", async (context) => {
    let connections = 0;
    const url = await listen(
      createServer((socket) => {
        connections++;
        context.after(() => socket.destroy());
      }),
      context,
    );
    const probe = new ArchiveProbe(100);
    const reasons = await Promise.all([probe.whyUnreachable(url), probe.whyUnreachable(url)]);
    reasons.push(await probe.whyUnreachable(url));
    assert.deepEqual(reasons, Array(3).fill("no answer within 0.5 s"));
    assert.equal(connections, 1);
  });

  it("that refuses is told with its reason, and one that is there is asked each time", async (context) => {
    let requests = 0;
    const server = createHttpServer((request, response) => {
      requests++;
      response.writeHead(request.url === "/debian/" ? 200 : 404).end();
    });
    const url = await listen(server, context);
    const probe = new ArchiveProbe(1_000);
    assert.deepEqual(
      [
        await probe.whyUnreachable(url),
        await probe.whyUnreachable(url),
        await probe.whyUnreachable(`${url}x`),
      ],
      [undefined, undefined, "it answers 404"],
    );
    assert.equal(requests, 3);
    server.close();
    server.closeAllConnections();
    await once(server, "close");
    assert.match((await probe.whyUnreachable(url)) ?? "", /ECONNREFUSED/);
  });
});
