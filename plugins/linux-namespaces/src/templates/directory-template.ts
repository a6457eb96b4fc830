import { createHash, randomBytes } from "node:crypto";
import { chmod, copyFile, lstat, mkdir, readFile, rename, stat, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { messageOf } from "@coppice/core";
import type { PreparedTemplate } from "../launcher/sandbox-record.js";
import type { TemplateOwners } from "../launcher/user-namespace.js";

interface DirectoryTemplateOptions {
  readonly name: string;
  /** A root file system on the host: `/etc/passwd`, `/usr` and the rest. Never changed. */
  readonly directory: string;
  readonly parent: string;
  readonly user: string;
  readonly owners: TemplateOwners;
}

const USER_ID = 1000;
const DIRECTORIES = [
  ["dev", 0o755],
  ["etc", 0o755],
  ["proc", 0o555],
  ["root", 0o700],
  ["tmp", 0o1777],
] as const;

/**
 * Builds a template from any root file system. A missing account and missing directories are added in a layer.
 * @throws Error when the directory is no root file system.
 */
export async function prepareDirectoryTemplate(options: DirectoryTemplateOptions): Promise<PreparedTemplate> {
  const { name, directory, owners, parent, user } = options;
  const passwd = await readAccounts(name, directory);
  const digest = createHash("sha256")
    .update(JSON.stringify([directory, user, passwd, owners.description]))
    .digest("hex");
  const path = join(parent, `${name}-${digest.slice(0, 16)}`);
  if ((await stat(path).catch(() => undefined)) === undefined) {
    const making = `${path}.making-${randomBytes(4).toString("hex")}`;
    await mkdir(making, { recursive: true, mode: 0o700 });
    await makeOverlay(join(making, "root"), passwd, options);
    await rename(making, path);
  }
  return { name, lowers: [join(path, "root"), directory], binds: [], overlays: [] };
}

/** Reads the `/etc/passwd` of a root file system. @throws Error when the directory is none. */
export async function readAccounts(template: string, directory: string): Promise<string> {
  return readFile(join(directory, "etc/passwd"), "utf8").catch((error: unknown) => {
    throw new Error(`template '${template}': ${directory} is no root file system: ${messageOf(error)}`);
  });
}

async function makeOverlay(root: string, passwd: string, options: DirectoryTemplateOptions): Promise<void> {
  const { directory, owners, user } = options;
  await makeDirectory(root, 0o755);
  for (const [each, mode] of DIRECTORIES) {
    const found = await lstat(join(directory, each)).catch(() => undefined);
    if (found === undefined) await makeDirectory(join(root, each), mode);
  }
  if (passwd.split("\n").some((line) => line.startsWith(`${user}:`))) return;
  const hasBash = (await lstat(join(directory, "bin/bash")).catch(() => undefined)) !== undefined;
  await mkdir(join(root, "etc"), { recursive: true });
  await appendTo(
    "passwd",
    `${user}:x:${USER_ID}:${USER_ID}::/home/${user}:/bin/${hasBash ? "bash" : "sh"}\n`,
  );
  await appendTo("group", `${user}:x:${USER_ID}:\n`);
  await makeDirectory(join(root, "home"), 0o755);
  await makeDirectory(join(root, "home", user), 0o755);
  await owners.giveToUser(join(root, "home", user), USER_ID);

  async function appendTo(file: string, line: string): Promise<void> {
    const target = join(root, "etc", file);
    await copyFile(join(directory, "etc", file), target).catch(() => undefined);
    const text = await readFile(target, "utf8").catch(() => "");
    await writeFile(target, text === "" || text.endsWith("\n") ? text + line : `${text}\n${line}`);
    await chmod(target, 0o644);
  }
}

async function makeDirectory(path: string, mode: number): Promise<void> {
  await mkdir(path, { recursive: true });
  await chmod(path, mode);
}
