import { execFileSync, spawnSync } from "node:child_process";
import { mkdtemp, readFile, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import type { Logger } from "@coppice/core";
import { agentBinary } from "@coppice/agent";
import type { z } from "zod";
import { installationDigest } from "../installation-digest.js";
import { LinuxNamespacesBackend } from "../linux-namespaces-backend.js";
import { linuxNamespacesConfig } from "../linux-namespaces-config.js";
import { readProcess } from "../storage/sandbox-record.js";

/** With ipykernel. Sandboxes of the template code-interpreter-v1 have it as `python3`, whatever is in the host's /usr. */
export const PYTHON = process.env["COPPICE_PYTHON"] ?? "python3";

/** Why no sandbox can be made here; undefined when one can. */
export function reasonToSkip(): string | undefined {
  if (process.platform !== "linux") return "linux-namespaces needs Linux";
  if (agentBinary() === undefined) return "the agent has not been built: there is no C compiler";
  if (process.getuid?.() === 0) return undefined;
  const { status } = spawnSync("unshare", ["--user", "--map-root-user", "true"]);
  return status === 0 ? undefined : "linux-namespaces needs root, or user namespaces";
}

/** A backend in a directory of its own, for tests. */
export interface TestBackend extends AsyncDisposable {
  readonly backend: LinuxNamespacesBackend;
  readonly directory: string;
  /** What of sandboxes is still on this host, in words. */
  leaks(): Promise<readonly string[]>;
}

/** The limits that nothing inside can pass on this host. */
export async function heldLimits(backend: LinuxNamespacesBackend): Promise<ReadonlySet<string>> {
  await backend.check();
  const found = await backend.found();
  return new Set(found?.limits.filter(({ reach }) => reach === "whole").map(({ name }) => name));
}

/** Whether its sandboxes have a root and users of their own. */
export async function hasAccounts(backend: LinuxNamespacesBackend): Promise<boolean> {
  await backend.check();
  return (await backend.found())?.users?.hasAccounts ?? true;
}

/** Whether what its sandboxes write outlives their processes. */
export async function isOnDisk(backend: LinuxNamespacesBackend): Promise<boolean> {
  const sandbox = await backend.provision(
    { id: "ondisk", template: "base", limits: {}, allowInternetAccess: false },
    new AbortController().signal,
  );
  await sandbox.destroy();
  return sandbox.stopping !== undefined;
}

const EGRESS_PROGRAM = process.env["COPPICE_TEST_EGRESS_PROGRAM"];
const silent = { info: () => undefined, warn: () => undefined } as unknown as Logger;

export async function openTestBackend(
  settings: Partial<z.input<typeof linuxNamespacesConfig>> = {},
): Promise<TestBackend> {
  const directory = await mkdtemp(join(tmpdir(), "coppice-namespaces-"));
  const backend = new LinuxNamespacesBackend(
    linuxNamespacesConfig.parse({ directory, python: PYTHON, egressProgram: EGRESS_PROGRAM, ...settings }),
    silent,
  );
  return {
    backend,
    directory,
    leaks: () => leaksOf(directory),
    async [Symbol.asyncDispose]() {
      // Left alone, all of them are found again: what a failed test did not destroy too.
      await backend.close();
      for (const sandbox of await backend.recover().catch(() => [])) await sandbox.destroy();
      await backend.close();
      await rm(directory, { recursive: true });
    },
  };
}

async function leaksOf(directory: string): Promise<string[]> {
  const names = await readdir(join(directory, "sandboxes"));
  const volumes = await readdir(join(directory, "volumes"));
  const mounts = (await readFile("/proc/self/mountinfo", "utf8")).split("\n");
  return [
    ...names.map((name) => `directory ${name}`),
    ...volumes.map((name) => `volume ${name}`),
    ...mounts.filter((line) => line.includes(directory)).map((line) => `mount ${line}`),
    ...(await groupsOf(directory)),
    ...(await networksOf(directory)),
  ];
}

/** Interfaces and rules, of which there can be none where the programs for them are missing. */
async function networksOf(directory: string): Promise<string[]> {
  const digest = installationDigest(directory);
  const holder = await readProcess(join(directory, "uplink", "init"));
  const enter = ["nsenter", "--user", "--preserve-credentials", "--net", `--target=${holder?.pid}`, "--"];
  const list = (...argv: readonly string[]): string => {
    const [program = "", ...words] = holder === undefined ? argv : [...enter, ...argv];
    try {
      return execFileSync(program, words, { encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] });
    } catch {
      return "";
    }
  };
  const links = list("ip", "-oneline", "link", "show").matchAll(
    new RegExp(`\\bcp${digest.slice(0, 6)}\\w+`, "g"),
  );
  const rules = list("nft", "list", "table", "inet", `coppice_${digest}`).matchAll(
    /(?:set|chain) \w+_\w+ |"cp\w+" : jump \w+/g,
  );
  return [...[...links].map(([link]) => `interface ${link}`), ...[...rules].map(([rule]) => `rule ${rule}`)];
}

/** Control groups of an installation's sandboxes, in every hierarchy. */
async function groupsOf(directory: string): Promise<string[]> {
  const text = await readFile("/proc/self/mountinfo", "utf8");
  const mounts = text.split("\n").filter((line) => / - cgroup2? /.test(line));
  const parent = `coppice-${installationDigest(directory)}`;
  const found = await Promise.all(mounts.map((line) => groupsBelow(line.split(" ")[4] ?? "", parent)));
  return found.flat().map((path) => `group ${path}`);
}

/** Walks folder by folder: a recursive read fails as a whole when another test's group goes meanwhile. */
async function groupsBelow(path: string, parent: string): Promise<string[]> {
  const entries = await readdir(path, { withFileTypes: true }).catch(() => []);
  const folders = entries.filter((entry) => entry.isDirectory()).map((entry) => join(path, entry.name));
  if (basename(path) === parent) return folders;
  return (await Promise.all(folders.map((folder) => groupsBelow(folder, parent)))).flat();
}
