import { execFileSync, spawn } from "node:child_process";
import { createSocket } from "node:dgram";
import { once } from "node:events";
import { realpathSync, writeFileSync } from "node:fs";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { setTimeout as pause } from "node:timers/promises";
import { answerIsolated } from "../../harness/host/isolated.js";
import { API_KEY } from "../../harness/server/api-key.js";
import { makeInstallation, namespacePlugins, ServerProcess } from "../../harness/server/server-process.js";

/** What happened to a server whose clients name hosts that change their addresses. Names are first labels. */
export interface ReboundNames {
  readonly webhooks: readonly string[];
  readonly registries: readonly string[];
  /** Connections to addresses that no client may reach by it. */
  readonly reached: readonly string[];
  /** Requests to the public address, by name. */
  readonly served: Readonly<Record<string, number>>;
  /** Rounds of look-ups, by name. */
  readonly rounds: Readonly<Record<string, number>>;
  /** Why builds failed, by their registry. */
  readonly reasons: Readonly<Record<string, string>>;
}

const ZONE = "rebind.test";
const PUBLIC = { A: "9.9.9.9", AAAA: "2620:fe::9" } as const;
/** Of the server's own host. */
const OWN = { A: "9.9.9.1", AAAA: "2620:fe::1" } as const;
const INNER = ["169.254.169.254", "10.66.0.5"] as const;
type Answers = { readonly A?: readonly string[]; readonly AAAA?: readonly string[] };

/** What a name is from its second look-up on. At the first it is public. */
const REBOUND: Readonly<Record<string, Answers>> = {
  loopback: { A: ["127.0.0.1"] },
  zero: { A: ["0.0.0.0"] },
  metadata: { A: ["169.254.169.254"] },
  lan: { A: ["10.66.0.5"] },
  own: { A: [OWN.A] },
  loopback6: { AAAA: ["::1"] },
  mapped: { AAAA: ["::ffff:127.0.0.1"] },
  own6: { AAAA: [OWN.AAAA] },
  mixed: { A: [PUBLIC.A, "127.0.0.1"] },
  both: { A: [PUBLIC.A], AAAA: ["::1"] },
};
const KINDS = Object.keys(REBOUND);
const WEBHOOKS = [...KINDS, ...KINDS.map((kind) => `cname-${kind}`)];
const REGISTRIES = ["registry", "redirect", "realm"].flatMap((how) => KINDS.map((kind) => `${how}-${kind}`));
const ATTEMPTS = 3;
const TRIES = 400;
const POLL_MS = 50;
const LISTENING = "listening";
/** Tells each connection to the server's own host. */
const CANARY = `require("node:net").createServer((socket) => {
  console.log(socket.localAddress);
  socket.destroy();
}).listen(80, "::", () => console.log("${LISTENING}"));`;

// The process that the test starts: it is the internet, and the server is on another machine.
answerIsolated(rebind);

async function rebind(): Promise<ReboundNames> {
  openNetwork();
  const names = await openNameServer();
  const reached: string[] = [];
  const served: Record<string, number> = {};
  for (const address of [PUBLIC.A, PUBLIC.AAAA, ...INNER]) {
    const site = createServer((request, response) => {
      const [name = ""] = (request.headers.host ?? "").split(".");
      served[name] = (served[name] ?? 0) + 1;
      serve(request, response);
    });
    if (INNER.some((one) => one === address)) site.on("connection", () => reached.push(address));
    await once(site.listen(80, address), "listening");
  }
  const enter = ["nsenter", "--net=/run/netns/server"];
  const canary = spawn(enter[0] ?? "", [...enter.slice(1), process.execPath, "-e", CANARY]);
  const lines = createInterface({ input: canary.stdout });
  await once(lines, "line");
  lines.on("line", (line) => reached.push(line));

  const listener = { host: OWN.A, port: 3000, insecure: true };
  const installation = await makeInstallation({
    config: { listeners: { api: listener }, sandboxes: { defaultBackend: "linux-namespaces" } },
    plugins: (directory) => ({
      ...namespacePlugins(directory),
      events: {
        webhooks: { firstRetry: "50ms", longestRetry: "50ms", attempts: ATTEMPTS, maxWebhooks: 100 },
      },
      templates: { registries: { insecure: REGISTRIES.map((name) => `${name}.${ZONE}`) } },
    }),
  });
  const server = await ServerProcess.start(installation.configFile, {}, enter);
  const ask = async (method: string, path: string, body?: object) => {
    const headers = { "x-api-key": API_KEY, ...(body && { "content-type": "application/json" }) };
    const answer = await fetch(server.url + path, {
      method,
      headers,
      ...(body && { body: JSON.stringify(body) }),
    });
    const text = await answer.text();
    if (!answer.ok) throw new Error(`${method} ${path} ${answer.status} ${text}`);
    return JSON.parse(text || "{}") as Readonly<Record<string, string>> & {
      readonly reason?: { readonly message: string };
    };
  };
  for (const kind of [...WEBHOOKS, "redirect"])
    await ask("POST", "/events/webhooks", {
      name: kind,
      url: `http://${kind}.${ZONE}/hook`,
      enabled: true,
      events: ["sandbox.lifecycle.created"],
      signatureSecret: "s".repeat(32),
    });
  await ask("POST", "/sandboxes", { templateID: "base" });
  const reasons: Record<string, string> = {};
  for (const registry of REGISTRIES) {
    const { templateID, buildID } = await ask("POST", "/v3/templates", { name: registry });
    await ask("POST", `/v2/templates/${templateID}/builds/${buildID}`, {
      fromImage: `${registry}.${ZONE}/image:1`,
      steps: [],
    });
    for (let tries = 0; tries < TRIES; tries += 1) {
      const { status, reason } = await ask("GET", `/templates/${templateID}/builds/${buildID}/status`);
      reasons[registry] = reason?.message ?? status ?? "";
      if (status === "error" || status === "ready") break;
      await pause(POLL_MS);
    }
  }
  const isWaiting = (): boolean => WEBHOOKS.some((name) => (names.get(name) ?? 0) < ATTEMPTS);
  for (let tries = 0; tries < TRIES && isWaiting(); tries += 1) await pause(POLL_MS);
  await server.stop();
  await installation.remove();
  canary.kill();
  return {
    webhooks: WEBHOOKS,
    registries: REGISTRIES,
    reached,
    served,
    rounds: Object.fromEntries(names),
    reasons,
  };
}

/** A machine for the server, whose way out is this one. */
function openNetwork(): void {
  const ip = (...words: readonly string[]): unknown => execFileSync("ip", words);
  ip("netns", "add", "server");
  ip("link", "add", "outside", "type", "veth", "peer", "name", "eth0", "netns", "server");
  ip("link", "set", "outside", "up");
  for (const address of [`${PUBLIC.A}/24`, ...INNER.map((one) => `${one}/32`)])
    ip("addr", "add", address, "dev", "outside");
  ip("addr", "add", `${PUBLIC.AAAA}/64`, "dev", "outside", "nodad");
  const within = (...words: readonly string[]): unknown => ip("-n", "server", ...words);
  within("link", "set", "lo", "up");
  within("link", "set", "eth0", "up");
  within("addr", "add", `${OWN.A}/24`, "dev", "eth0");
  within("addr", "add", `${OWN.AAAA}/64`, "dev", "eth0", "nodad");
  within("route", "add", "default", "via", PUBLIC.A);
  const settings = join(tmpdir(), "resolv.conf");
  writeFileSync(settings, `nameserver ${PUBLIC.A}\n`);
  execFileSync("mount", ["--bind", settings, realpathSync("/etc/resolv.conf")]);
}

/** A site that never takes a webhook, and a registry that leads elsewhere. */
function serve({ headers: { host = "" }, url = "" }: IncomingMessage, response: ServerResponse): void {
  const [, how, kind] = /^(registry|redirect|realm)-(\w+)\./.exec(host) ?? [];
  const elsewhere = `http://first-${kind}.${ZONE}${url}`;
  response.setHeader("connection", "close");
  if (host.startsWith("redirect.")) response.writeHead(302, { location: "http://127.0.0.1/" });
  else if (how === "redirect") response.writeHead(307, { location: elsewhere });
  else if (how === "realm") response.writeHead(401, { "www-authenticate": `Bearer realm="${elsewhere}"` });
  else if (how === "registry" && url.includes("/manifests/")) {
    const digest = `sha256:${"0".repeat(64)}`;
    const config = { mediaType: "application/vnd.oci.image.config.v1+json", size: 2, digest };
    const mediaType = "application/vnd.oci.image.manifest.v1+json";
    response.setHeader("content-type", mediaType);
    response.end(JSON.stringify({ schemaVersion: 2, mediaType, config, layers: [] }));
    return;
  } else response.writeHead(500);
  response.end();
}

/** @returns look-ups of each name. `first-` is what another name is at the second time; `cname-` is an alias of it. */
async function openNameServer(): Promise<ReadonlyMap<string, number>> {
  const asked = new Map<string, number>();
  const rounds = new Map<string, number>();
  const socket = createSocket("udp4");
  socket.on("message", (query, { address, port }) => {
    const end = query.indexOf(0, 12) + 5;
    const labels: string[] = [];
    for (let at = 12; query[at] !== 0; at += 1 + (query[at] ?? 0))
      labels.push(query.toString("latin1", at + 1, at + 1 + (query[at] ?? 0)));
    const name = labels.join(".").toLowerCase();
    const first = labels[0] ?? "";
    const type = query.readUInt16BE(end - 4) === 1 ? "A" : "AAAA";
    const round = asked.get(`${name} ${type}`) ?? 0;
    asked.set(`${name} ${type}`, round + 1);
    if (name.endsWith(`.${ZONE}`)) rounds.set(first, Math.max(rounds.get(first) ?? 0, round + 1));
    const rebound = REBOUND[first.replace(/^\w+-/, "")] ?? { A: [PUBLIC.A] };
    const isRebound = round > 0 || first.startsWith("first-");
    const addresses = !name.endsWith(`.${ZONE}`) ? [] : isRebound ? (rebound[type] ?? []) : [PUBLIC[type]];
    const alias = first.startsWith("cname-")
      ? Buffer.from([0, 5, 0, 1, 0, 0, 0, 0, 0, 8, 5, ...Buffer.from("alias"), 0xc0, 12])
      : undefined;
    const owner = alias === undefined ? Buffer.from([0xc0, 12]) : Buffer.from([0xc0, end + 12]);
    const records = addresses.flatMap((one) => {
      const data = bytesOf(one);
      return [owner, Buffer.from([0, type === "A" ? 1 : 28, 0, 1, 0, 0, 0, 0, 0, data.length]), data];
    });
    const head = Buffer.alloc(12);
    query.copy(head, 0, 0, 2);
    head.writeUInt16BE(0x8180, 2);
    head.writeUInt16BE(1, 4);
    head.writeUInt16BE(addresses.length + (alias === undefined ? 0 : 1), 6);
    const chain = alias === undefined ? [] : [Buffer.from([0xc0, 12]), alias];
    socket.send(Buffer.concat([head, query.subarray(12, end), ...chain, ...records]), port, address);
  });
  socket.bind(53, PUBLIC.A);
  await once(socket, "listening");
  return rounds;
}

function bytesOf(address: string): Buffer {
  if (!address.includes(":")) return Buffer.from(address.split(".").map(Number));
  const host = new URL(`http://[${address}]`).hostname.slice(1, -1);
  const [before = "", after = ""] = host.split("::");
  const words = (text: string): number[] =>
    text === "" ? [] : text.split(":").map((word) => Number.parseInt(word, 16));
  const [head, tail] = [words(before), words(after)];
  const all = [...head, ...Array.from({ length: 8 - head.length - tail.length }, () => 0), ...tail];
  return Buffer.from(all.flatMap((word) => [word >> 8, word & 255]));
}
