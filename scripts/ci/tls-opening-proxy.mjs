// An HTTP proxy that opens TLS, as those of companies do, for tests: it answers CONNECT for every host with a certificate
// of its own authority, and passes the requests on. Needs Node 18 and openssl.
//
// usage: node tls-opening-proxy.mjs FOLDER ADDRESS PORT [SERVER]
//
// Writes FOLDER/ca.crt, then prints the port, and ends with its input. All requests go to SERVER, an HTTP URL, where one is
// named.
import { execFile } from "node:child_process";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { createServer, request as requestHttp } from "node:http";
import { request as requestHttps } from "node:https";
import { isIP } from "node:net";
import { join } from "node:path";
import { pipeline } from "node:stream";
import { createSecureContext, TLSSocket } from "node:tls";
import { promisify } from "node:util";

const openssl = promisify(execFile).bind(undefined, "openssl");
const KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
const HOP_BY_HOP = ["connection", "proxy-connection", "keep-alive", "proxy-authorization", "te", "upgrade"];

const [folder, address, port, only] = process.argv.slice(2);

async function makeAuthority() {
  await mkdir(folder, { recursive: true });
  const [key, certificate] = [join(folder, "ca.key"), join(folder, "ca.crt")];
  const subject = ["-subj", "/CN=Coppice test proxy", "-days", "30"];
  const extensions = ["-addext", "keyUsage=critical,keyCertSign,cRLSign"];
  await openssl(["req", "-x509", ...KEY, "-keyout", key, "-out", certificate, ...subject, ...extensions]);
}

const contexts = new Map();

/** The certificate for a host, made at its first request. */
function contextOf(host) {
  if (!contexts.has(host)) contexts.set(host, makeContext(host, join(folder, `host-${contexts.size}`)));
  return contexts.get(host);
}

async function makeContext(host, base) {
  const name = isIP(host) ? `IP:${host}` : `DNS:${host}`;
  await writeFile(`${base}.ext`, `subjectAltName=${name}\nextendedKeyUsage=serverAuth\n`);
  const files = ["-keyout", `${base}.key`, "-out", `${base}.csr`];
  await openssl(["req", "-new", ...KEY, ...files, "-subj", "/CN=opened"]);
  const authority = ["-CA", join(folder, "ca.crt"), "-CAkey", join(folder, "ca.key")];
  const signed = ["-out", `${base}.crt`, "-days", "30", "-extfile", `${base}.ext`];
  const serial = ["-set_serial", `0x${Math.random().toString(16).slice(2, 14).padEnd(12, "1")}`];
  await openssl(["x509", "-req", "-in", `${base}.csr`, ...authority, ...serial, ...signed]);
  const [key, cert] = await Promise.all([readFile(`${base}.key`), readFile(`${base}.crt`)]);
  return createSecureContext({ key, cert });
}

/** Passes a request on, and its answer back. */
function passOn(request, response, url) {
  const headers = { ...request.headers };
  for (const name of HOP_BY_HOP) delete headers[name];
  const target = only === undefined ? url : new URL(url.pathname + url.search, only);
  const send = target.protocol === "https:" ? requestHttps : requestHttp;
  const onward = send(target, { method: request.method, headers: { ...headers, host: url.host } });
  onward.on("response", (answer) => {
    response.writeHead(answer.statusCode, answer.headers);
    pipeline(answer, response, () => undefined);
  });
  onward.on("error", (error) => {
    console.error(`proxy: ${url.host}: ${error.message}`);
    if (response.headersSent) response.destroy();
    else response.writeHead(502).end();
  });
  response.on("close", () => onward.destroy());
  pipeline(request, onward, () => undefined);
}

/** Of requests in opened connections. */
const inner = createServer((request, response) => {
  passOn(request, response, new URL(request.url, `https://${request.socket.opened}`));
});

const server = createServer((request, response) => {
  if (!URL.canParse?.(request.url) && !request.url.startsWith("http://")) response.writeHead(400).end();
  else passOn(request, response, new URL(request.url));
});

server.on("connect", (request, socket, head) => void open(request, socket, head));

/** Stands in for the server that a client wants a connection to. */
async function open(request, socket, head) {
  const host = request.url.replace(/:\d+$/, "").replace(/^\[(.*)\]$/, "$1");
  socket.on("error", () => socket.destroy());
  try {
    const secureContext = await contextOf(host);
    socket.write("HTTP/1.1 200 Connection established\r\n\r\n");
    if (head.length > 0) socket.unshift(head);
    const opened = new TLSSocket(socket, { isServer: true, secureContext, ALPNProtocols: ["http/1.1"] });
    opened.opened = request.url.replace(/:443$/, "");
    opened.on("error", () => opened.destroy());
    inner.emit("connection", opened);
  } catch (error) {
    console.error(`proxy: ${host}: ${error.message}`);
    socket.destroy();
  }
}

await makeAuthority();
server.listen(Number(port), address, () => console.log(server.address().port));
process.stdin.on("end", () => process.exit()).resume();
