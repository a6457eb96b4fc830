import { createHash } from "node:crypto";
import { mkdir, rmdir } from "node:fs/promises";
import { dirname, join } from "node:path";
import { SandboxError } from "@coppice/core";
import type { BuiltTemplates } from "./built-templates.js";
import type { Host, HostProgram } from "../host/host.js";
import type { TemplateRecipe } from "./template-file.js";

export interface BuildTemplateOptions {
  readonly host: Host;
  readonly templates: BuiltTemplates;
  /** Directory on the host, accessible only to root, where templates are mounted while they are built. */
  readonly directory: string;
  /** Mount point of the agent in every template. */
  readonly agentInside: string;
  /** Timeout of each program. */
  readonly timeoutMs: number;
  /** Called at every step. */
  readonly onStep: (step: string) => void;
}

/**
 * Builds a template if needed, and makes it current for new sandboxes. A failed build leaves nothing; the next build of
 * the same template replaces an interrupted one.
 * @returns true when it was built. @throws SandboxError, HostCommandError with the output of a program.
 */
export async function buildTemplate(
  recipe: TemplateRecipe,
  { host, templates, directory, agentInside, timeoutMs, onStep }: BuildTemplateOptions,
): Promise<boolean> {
  const { name, digest } = recipe;
  if (await templates.isWhole(name, digest)) {
    await templates.choose(name, digest);
    return false;
  }
  await mkdir(directory, { recursive: true, mode: 0o700 });
  const root = join(directory, `${name}-${digest}`);
  const path = await templates.begin({ name, digest, mountPoint: root });
  const run = async (program: HostProgram, ...args: readonly string[]) => {
    onStep(`${program} ${args.join(" ")}`);
    return host.run(program, args, { timeoutMs });
  };
  /** A symbolic link from a package could lead to files of the host. */
  const inside = async (target: string): Promise<string> => {
    const parent = dirname(target) === "/" ? root : root + dirname(target);
    if ((await host.run("realpath", [parent])).trim() !== parent) {
      throw new SandboxError("template_unusable", `${target}: a symbolic link is on the way to it`);
    }
    return root + target;
  };
  try {
    const { base, packages, users, directories, files, links } = recipe;
    if ("sets" in base) for (const set of base.sets) await run("tar", "-xpf", set, "-C", root);
    else await run("pkg", "-r", root, "install", "-y", ...base.packages);
    if (packages.length > 0) await run("pkg", "-r", root, "install", "-y", ...packages);
    for (const { name: account, uid, shell } of users) {
      const number = uid === undefined ? [] : ["-u", String(uid)];
      await run("pw", "-R", root, "useradd", account, ...number, "-m", "-s", shell);
    }
    for (const point of ["/dev", agentInside]) await run("install", "-d", "-m", "0755", await inside(point));
    for (const { path: target, mode, owner } of directories) {
      await run("install", "-d", "-m", mode, await inside(target));
      await run("chown", "-h", await idsOf(host, root, owner), await inside(target));
    }
    for (const { source, path: target, mode, owner } of files) {
      await run("install", "-m", mode, source, await inside(target));
      await run("chown", "-h", await idsOf(host, root, owner), await inside(target));
    }
    for (const { path: target, to } of links) await run("ln", "-s", to, await inside(target));
    const installed = "sets" in base && packages.length === 0 ? [] : await packagesIn(host, root);
    if (installed.length > 0) onStep(`packages: ${installed.join(" ")}`);
    await templates.finish(name, digest, installed.length > 0 ? digestOf(installed) : undefined);
  } catch (error) {
    // The next build or `jail-template gc` removes the remains.
    await templates.remove(path.slice(path.lastIndexOf("/") + 1)).catch(() => undefined);
    throw error;
  } finally {
    await rmdir(root).catch(() => undefined);
  }
  await templates.choose(name, digest);
  return true;
}

/** Packages that pkg(8) has installed, with dependencies: names with versions, sorted. */
async function packagesIn(host: Host, root: string): Promise<readonly string[]> {
  const names = (await host.run("pkg", ["-r", root, "query", "%n-%v"])).split("\n");
  return names.filter((name) => name !== "").toSorted();
}

function digestOf(packages: readonly string[]): string {
  return createHash("sha256").update(packages.join("\n")).digest("hex").slice(0, 16);
}

/** Uid and gid of an account of the template; the host's accounts differ. @throws SandboxError failed_precondition */
async function idsOf(host: Host, root: string, account: string): Promise<string> {
  const accounts = await host.run("pw", ["-R", root, "usershow", account]).catch(() => "");
  const [, , uid, gid] = accounts.split(":");
  if (uid === undefined || gid === undefined) {
    throw new SandboxError("account_missing", `the template has no account '${account}'`);
  }
  return `${uid}:${gid}`;
}
