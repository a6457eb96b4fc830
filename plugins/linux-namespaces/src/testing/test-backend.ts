import { execFileSync, spawnSync } from "node:child_process";
import { mkdtemp, readFile, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import type { Logger } from "@coppice/core";
import { agentBinary } from "@coppice/agent";
import type { z } from "zod";
import { installationDigest } from "../open-host.js";
import { LinuxNamespacesBackend } from "../linux-namespaces-backend.js";
import { linuxNamespacesConfig } from "../linux-namespaces-config.js";
import { readProcess } from "../launcher/sandbox-record.js";

/** A Python with ipykernel, the `python3` of the template code-interpreter-v1. */
export const PYTHON = process.env["COPPICE_PYTHON"] ?? "python3";

/** Reason why no sandbox can be created here; undefined when one can. */
export function reasonToSkip(): string | undefined {
  if (process.platform !== "linux") return "linux-namespaces needs Linux";
  if (agentBinary() === undefined) return "the agent has not been built: there is no C compiler";
  if (process.getuid?.() === 0) return undefined;
  const { status } = spawnSync("unshare", ["--user", "--map-root-user", "true"]);
  return status === 0 ? undefined : "linux-namespaces needs root, or user namespaces";
}

/** A backend in a temporary directory. */
export interface TestBackend extends AsyncDisposable {
  readonly backend: LinuxNamespacesBackend;
  readonly directory: string;
  /** Descriptions of remains on this host. */
  leaks(): Promise<readonly string[]>;
}

/** Limits that no program inside can exceed on this host. */
export async function wholeLimits(backend: LinuxNamespacesBackend): Promise<ReadonlySet<string>> {
  await backend.check();
  const found = await backend.found();
  return new Set(found?.limits.filter(({ reach }) => reach === "whole").map(({ name }) => name));
}

/** True when its sandboxes have a root and users. */
export async function hasAccounts(backend: LinuxNamespacesBackend): Promise<boolean> {
  await backend.check();
  return (await backend.found())?.users?.hasAccounts ?? true;
}

/** True when written files outlive the processes of a sandbox. */
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
      // Recovers all sandboxes, including those that a failed test did not destroy.
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

/** Interfaces and rules of an installation; none where the programs to list them are missing. */
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

/** One directory at a time: a recursive read fails when another test's group disappears meanwhile. */
async function groupsBelow(path: string, parent: string): Promise<string[]> {
  const entries = await readdir(path, { withFileTypes: true }).catch(() => []);
  const folders = entries.filter((entry) => entry.isDirectory()).map((entry) => join(path, entry.name));
  if (basename(path) === parent) return folders;
  return (await Promise.all(folders.map((folder) => groupsBelow(folder, parent)))).flat();
}
