import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdtemp, readFile, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { freePort } from "@coppice/core/testing";
import { type Certificate, listening, type ReverseProxy } from "./start-nginx.js";

const CADDY = "/usr/bin/caddy";
const CONFIGURATION = new URL("../../../../config/caddy.conf", import.meta.url);

/** The reason why Caddy cannot be started here; undefined when it can. */
export const reasonWithoutCaddy: string | undefined = existsSync(CADDY)
  ? undefined
  : "it needs caddy (Debian: caddy)";

/** Starts Caddy with the shipped `config/caddy.conf` in front of a server; without TLS where no certificate is given. */
export async function startCaddy(upstream: string, certificate?: Certificate): Promise<ReverseProxy> {
  const directory = await mkdtemp(join(tmpdir(), "coppice-caddy-"));
  const port = await freePort();
  const url = `${certificate ? "https" : "http"}://127.0.0.1:${port}`;
  const shipped = await readFile(CONFIGURATION, "utf8");
  const site = shipped
    .replace("sandboxes.example.com, *.sandboxes.example.com {", `${certificate ? "" : "http://"}:${port} {`)
    .replace(/tls \/etc.*/, certificate ? `tls ${certificate.cert} ${certificate.key}` : "")
    .replace("127.0.0.1:3000", new URL(upstream).host);
  const file = join(directory, "Caddyfile");
  // Without its ports for changes of the configuration and for redirects.
  await writeFile(file, site.replace("{\n", "{\n\tadmin off\n\tauto_https disable_redirects\n"));
  const child = spawn(CADDY, ["run", "--config", file, "--adapter", "caddyfile"], {
    stdio: "ignore",
    env: { HOME: directory },
  });
  return listening(child, { directory, url });
}
