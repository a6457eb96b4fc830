import assert from "node:assert/strict";
import { once } from "node:events";
import { readdirSync } from "node:fs";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { after, before, beforeEach, describe, it } from "node:test";
import { Sandbox } from "e2b";
import { Browser, type Page, WITHOUT_BROWSER } from "../../harness/clients/browser.js";
import { makeDevelopmentInstallation } from "../../harness/server/development-installation.js";
import { exchange } from "../../harness/clients/exchange.js";
import { ServerProcess } from "../../harness/server/server-process.js";

const PAGE = new URL("../../../fixtures/foreign-page.js", import.meta.url);
const FOREIGN = "evil.example";
const REBOUND = "rebound.example";

interface Try {
  readonly name: string;
  readonly status: number;
  readonly text?: string;
}

/** A program of this machine outside of any sandbox. It records its requests. */
async function serve(html = "<!doctype html><title>A page</title>") {
  const asked: string[] = [];
  const server: Server = createServer((request, response) => {
    asked.push(`${request.method} ${request.url}`);
    response.writeHead(200, { "content-type": "text/html" }).end(html);
  });
  server.on("upgrade", (request, socket) => {
    asked.push(`UPGRADE ${request.url}`);
    socket.end("HTTP/1.1 400 Bad Request\r\n\r\n");
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  const close = async (): Promise<void> => {
    server.closeAllConnections();
    server.close();
    await once(server, "close");
  };
  return { port, asked, close };
}

describe(
  "web pages in a browser on the machine of a development server",
  {
    timeout: 300_000,
    skip: WITHOUT_BROWSER,
  },
  () => {
    let installation: Awaited<ReturnType<typeof makeDevelopmentInstallation>>;
    let server: ServerProcess;
    let browser: Browser;
    let pages: Awaited<ReturnType<typeof serve>>;
    let service: Awaited<ReturnType<typeof serve>>;
    let sandbox: Sandbox;
    let key: string;
    let canaries: string;

    before(async () => {
      installation = await makeDevelopmentInstallation();
      server = await ServerProcess.start(installation.configFile, { COPPICE_API_KEY: undefined });
      key = (await readFile(installation.keyFile, "utf8")).trim();
      browser = await Browser.start([FOREIGN, REBOUND]);
      pages = await serve();
      service = await serve();
      sandbox = await Sandbox.create({ apiUrl: server.url, sandboxUrl: server.url, apiKey: key });
      // The debug sandbox is created first: a request must not be refused because it is missing.
      const made = await exchange(server.urls["envd"] ?? "", { path: "/health" });
      assert.equal(made.status, 204);
    });
    after(async () => {
      await browser?.[Symbol.asyncDispose]();
      await server?.stop();
      await pages?.close();
      await service?.close();
      await installation?.remove();
    });
    beforeEach(async (t) => {
      canaries = join(installation.directory, `canaries-${t.name.replaceAll(/\W+/g, "-").slice(0, 60)}`);
      await mkdir(canaries, { mode: 0o777 });
      // A script and an image: a page could load these from another origin.
      await writeFile(`${canaries}.js`, "globalThis.stolen = 'a script';");
      await writeFile(
        `${canaries}.svg`,
        '<svg xmlns="http://www.w3.org/2000/svg" width="7" height="7"></svg>',
      );
      service.asked.length = 0;
    });

    /** Results of all requests that a page can try. @param as host name that the page uses for this machine. */
    async function attack(page: Page, as?: string) {
      const urlOf = (listener: string): string => {
        const url = new URL(server.urls[listener] ?? "");
        if (as !== undefined) url.hostname = as;
        return url.origin;
      };
      const { port } = new URL(server.url);
      const known = {
        api: urlOf("api"),
        envd: urlOf("envd"),
        code: urlOf("code"),
        key,
        sandboxId: sandbox.sandboxId,
        canaries,
        service: service.port,
      };
      await page.run(await readFile(PAGE, "utf8"));
      // Names below localhost are this machine's, whatever a name server says; a rebound page has its own.
      const localhost =
        as === undefined
          ? `(port, id = "debug") => "http://" + port + "-" + id + ".localhost:${port}"`
          : "undefined";
      const tries = (await page.run(
        `attack({ ...${JSON.stringify(known)}, localhost: ${localhost} })`,
      )) as readonly Try[];
      return {
        ran: readdirSync(canaries).toSorted(),
        read: tries
          .filter(({ status }) => status < 400)
          .map(({ name, status, text }) => `${name}: ${status} ${text}`),
        asked: [...service.asked],
      };
    }

    const NOTHING = { ran: [], read: [], asked: [] };

    it("of a foreign origin read nothing, run nothing, and reach no program of the machine, even with the key", async () => {
      const page = await browser.open(`http://${FOREIGN}:${pages.port}/`);
      assert.deepEqual(await attack(page), NOTHING);
    });

    it("of a name that was made to resolve here do not, either", async () => {
      for (const listener of ["api", "envd", "code", "ops"]) {
        const { port } = new URL(server.urls[listener] ?? "");
        const page = await browser.open(`http://${REBOUND}:${port}/`);
        assert.deepEqual(await attack(page, REBOUND), NOTHING, listener);
      }
    });

    it("of a sandbox reach nothing but that sandbox, although its name is below localhost", async () => {
      // local-process has the ports of the host, so this is a program of the sandbox, too.
      const page = await browser.open(`http://${sandbox.getHost(pages.port)}/`);
      assert.deepEqual(await attack(page), NOTHING);
    });

    it("of a sandbox's file reach nothing, although its link is of the server's own address", async () => {
      const { envdAccessToken } = sandbox as unknown as { readonly envdAccessToken: string };
      const open = async (path: string): Promise<Page> => {
        await sandbox.files.write(path, '<svg xmlns="http://www.w3.org/2000/svg"></svg>');
        const made = await exchange(server.url, {
          method: "POST",
          path: "/files/download-url",
          headers: {
            "e2b-sandbox-id": sandbox.sandboxId,
            "e2b-sandbox-port": "49983",
            "x-access-token": envdAccessToken,
          },
          body: JSON.stringify({ path }),
        });
        const { url } = made.json() as { readonly url: string };
        assert.equal(new URL(url).origin, server.url, made.text);
        return browser.open(url);
      };
      const page = await open("/tmp/page.html");
      assert.deepEqual(await attack(page), NOTHING);
      for (const path of ["/tmp/page.html", "/tmp/page.svg", "/tmp/page.xhtml"])
        assert.equal(await (await open(path)).run("self.origin"), "null", path);
    });

    it("of this machine's own names are served: a page beside the server, and one of a sandbox", async () => {
      const own = await browser.open(`${server.url.replace("127.0.0.1", "localhost")}/health`);
      const headers = JSON.stringify({ headers: { "x-api-key": key } });
      assert.equal(await own.run(`fetch("/sandboxes", ${headers}).then(({ status }) => status)`), 200);

      // local-process has the ports of the host, so this is a program of the sandbox, too.
      const page = await browser.open(`http://${sandbox.getHost(pages.port)}/page`);
      assert.equal(
        await page.run(`fetch("/data", { method: "POST", body: "{}" }).then(({ status }) => status)`),
        200,
      );
      assert.ok(pages.asked.includes("POST /data"));

      const local = await browser.open(`http://localhost:${pages.port}/`);
      // And none of the tries would pass unnoticed if it got through.
      const { ran, read, asked } = await attack(local);
      for (const way of ["fetch-none", "blind", "form"])
        assert.ok(ran.includes(`envd--commands-${way}`), `${way}: ${ran.join(" ")}`);
      assert.ok(
        read.some((text) => text.startsWith("envd--commands-fetch-none: 200")),
        read.join("\n"),
      );
      assert.ok(asked.includes("PUT /fetch"), asked.join(" "));
    });
  },
);
