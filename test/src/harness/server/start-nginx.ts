import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { eventually, freePort } from "@coppice/core/testing";

const NGINX = "/usr/sbin/nginx";
const CONFIGURATION = new URL("../../../../config/nginx.conf", import.meta.url);
const TEMPORARY = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];

/** The reason why nginx cannot be started here; undefined when it can. */
export const reasonWithoutNginx: string | undefined = existsSync(NGINX)
  ? undefined
  : "it needs nginx (Debian: nginx-light)";

export interface ReverseProxy extends AsyncDisposable {
  readonly url: string;
}

/** A certificate and its key: paths of PEM files. */
export interface Certificate {
  readonly cert: string;
  readonly key: string;
}

/**
 * Starts nginx with the shipped `config/nginx.conf` in front of a server, with one worker and one kept connection;
 * without TLS where no certificate is given.
 */
export async function startNginx(upstream: string, certificate?: Certificate): Promise<ReverseProxy> {
  const shipped = await readFile(CONFIGURATION, "utf8");
  const siteOf = (port: number): string =>
    shipped
      .replace("server 127.0.0.1:3000;", `server ${new URL(upstream).host};`)
      .replace("keepalive 64;", "keepalive 1;")
      .replace(
        /listen 443( ssl[^;]*);/,
        (_, tls: string) => `listen 127.0.0.1:${port}${certificate ? tls : ""};`,
      )
      .replace(/^ +ssl_certificate .*$/m, certificate ? `ssl_certificate ${certificate.cert};` : "")
      .replace(/^ +ssl_certificate_key .*$/m, certificate ? `ssl_certificate_key ${certificate.key};` : "");
  return serveByNginx(siteOf, certificate ? "https" : "http");
}

/** Text of a configuration with one worker, whose files are in a directory that has `logs`. */
export function nginxConfiguration(site: string, directory: string): string {
  const paths = TEMPORARY.map((name) => `  ${name}_temp_path ${join(directory, name)};\n`).join("");
  const user = process.getuid?.() === 0 ? "user root;\n" : "";
  return (
    `${user}daemon off;\nworker_processes 1;\npid ${join(directory, "pid")};\nerror_log ${join(directory, "error.log")};\n` +
    `events { worker_connections 256; }\nhttp {\n  access_log off;\n${paths}${site}}\n`
  );
}

/** Starts nginx with a site on a free port. */
export async function serveByNginx(
  siteOf: (port: number) => string,
  protocol: "http" | "https" = "http",
): Promise<ReverseProxy> {
  const directory = await mkdtemp(join(tmpdir(), "coppice-nginx-"));
  const port = await freePort();
  const configuration = join(directory, "nginx.conf");
  await mkdir(join(directory, "logs"));
  await writeFile(configuration, nginxConfiguration(siteOf(port), directory));
  const child = spawn(NGINX, ["-p", directory, "-c", configuration], { stdio: "ignore" });
  return listening(child, { directory, url: `${protocol}://127.0.0.1:${port}` });
}

/** A proxy, once it listens. Its folder is removed with it. */
export async function listening(
  child: ChildProcess,
  { directory, url }: { readonly directory: string; readonly url: string },
): Promise<ReverseProxy> {
  const ended = once(child, "exit");
  const stop = async (): Promise<void> => {
    if (child.exitCode === null) child.kill("SIGTERM");
    await ended;
    await rm(directory, { recursive: true, force: true });
  };
  try {
    await eventually("the proxy listens", async () => {
      const socket = connect(Number(new URL(url).port), "127.0.0.1");
      return await once(socket, "connect").then(
        () => (socket.destroy(), true),
        () => false,
      );
    });
  } catch (error) {
    await stop();
    throw error;
  }
  return { url, [Symbol.asyncDispose]: stop };
}
