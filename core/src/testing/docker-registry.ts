// Tests alone start it.
// eslint-disable-next-line no-restricted-imports
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { freePort } from "./free-ports.js";

/** Settings of a registry of the tests. */
export interface DockerRegistryOptions {
  /** Account without which nothing is given out or taken: `name:bcrypt`. */
  readonly htpasswd?: string;
}

/** Debian's `docker-registry` on loopback, in plain HTTP. */
export interface DockerRegistry extends AsyncDisposable {
  /** `127.0.0.1:<port>` */
  readonly address: string;
  /** Directory with its blobs. */
  readonly directory: string;
}

/** Starts Debian's registry on a free port, with an empty store. */
export async function openDockerRegistry({ htpasswd }: DockerRegistryOptions = {}): Promise<DockerRegistry> {
  const directory = await mkdtemp(join(tmpdir(), "coppice-registry-"));
  const address = `127.0.0.1:${await freePort()}`;
  const accounts = join(directory, "htpasswd");
  if (htpasswd !== undefined) await writeFile(accounts, `${htpasswd}\n`);
  await writeFile(
    join(directory, "config.yml"),
    JSON.stringify({
      version: 0.1,
      storage: { filesystem: { rootdirectory: join(directory, "storage") } },
      http: { addr: address },
      ...(htpasswd !== undefined && { auth: { htpasswd: { realm: "test", path: accounts } } }),
    }),
  );
  const server = spawn("docker-registry", ["serve", join(directory, "config.yml")], { stdio: "ignore" });
  const exit = once(server, "exit");
  for (let tries = 0; tries < 500; tries += 1) {
    const isUp = await fetch(`http://${address}/v2/`).catch(() => undefined);
    if (isUp !== undefined) break;
    await delay(20);
  }
  return {
    address,
    directory,
    async [Symbol.asyncDispose]() {
      server.kill();
      await exit;
      await rm(directory, { recursive: true });
    },
  };
}
