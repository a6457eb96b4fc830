import { access, constants, mkdir, readdir, realpath } from "node:fs/promises";
import { basename, dirname, isAbsolute, join } from "node:path";
import { SandboxError, messageOf } from "@coppice/core";
import { isInSystem, prepareBaseTemplate } from "./base-template.js";
import { prepareDirectoryTemplate, readAccounts } from "./directory-template.js";
import { type HostPython, inspectPython } from "./host-python.js";
import type { Launcher } from "../launcher/launcher.js";
import type { LinuxNamespacesSettings } from "../linux-namespaces-config.js";
import type { PreparedTemplate } from "../launcher/sandbox-record.js";
import { type TemplateOwners, templateOwners, type UserNamespace } from "../launcher/user-namespace.js";

type TemplateSettings = LinuxNamespacesSettings["templates"][string];

interface TemplatesOptions {
  readonly parent: string;
  readonly settings: LinuxNamespacesSettings;
  readonly launcher: Launcher;
  readonly users: UserNamespace | undefined;
}

const BASE_USER = "user";
/** Name of a template and a digest of its sources. */
const DIRECTORY = /^(.+)-[0-9a-f]{16}$/;

export function templateSettings({
  python,
  node,
  templates,
}: LinuxNamespacesSettings): Readonly<Record<string, TemplateSettings>> {
  return {
    "base": { kind: "base", node },
    "code-interpreter-v1": { kind: "base", python, node },
    ...templates,
  };
}

export async function wrongDirectories(templates: LinuxNamespacesSettings["templates"]): Promise<string[]> {
  const wrong: string[] = [];
  for (const [name, settings] of Object.entries(templates)) {
    if (settings.kind !== "directory") continue;
    await readAccounts(name, settings.path).catch((error: unknown) => wrong.push(messageOf(error)));
  }
  return wrong;
}

export class Templates {
  readonly #options: TemplatesOptions;
  readonly #settings: ReadonlyMap<string, TemplateSettings>;
  readonly #owners: TemplateOwners;
  readonly #prepared = new Map<string, Promise<PreparedTemplate>>();

  constructor(options: TemplatesOptions) {
    this.#options = options;
    this.#owners = templateOwners(options.launcher, options.users);
    this.#settings = new Map(Object.entries(templateSettings(options.settings)));
  }

  /** Builds those templates that fail only if this host lacks something. */
  async prepare(): Promise<void> {
    await mkdir(this.#options.parent, { recursive: true, mode: 0o700 });
    await this.get("base");
  }

  /** @throws SandboxError not_found, failed_precondition when this host lacks something that it needs. */
  async get(name: string): Promise<PreparedTemplate> {
    const settings = this.#settings.get(name);
    if (settings === undefined)
      throw new SandboxError("template_not_found", `linux-namespaces has no template '${name}'`);
    const preparing = this.#prepared.get(name) ?? this.#make(name, settings);
    this.#prepared.set(name, preparing);
    try {
      return await preparing;
    } catch (error) {
      this.#prepared.delete(name);
      throw new SandboxError("template_unusable", messageOf(error), { cause: error });
    }
  }

  userOf(name: string): string {
    const settings = this.#settings.get(name);
    return settings?.kind === "directory" ? settings.user : BASE_USER;
  }

  /**
   * Removes templates of earlier states of this host that no sandbox uses. A template that is not known to be outdated
   * stays: to find out, every template would have to be built.
   */
  async removeUnused(lowersInUse: ReadonlySet<string>): Promise<void> {
    const { parent, launcher } = this.#options;
    const prepared = new Map<string, PreparedTemplate>();
    for (const [name, preparing] of this.#prepared) {
      const template = await preparing.catch(() => undefined);
      if (template !== undefined) prepared.set(directoryName(name), template);
    }
    const lowers = [...prepared.values()].flatMap((template) => template.lowers);
    const used = new Set([...lowersInUse, ...lowers].map((lower) => basename(dirname(lower))));
    const configured = new Set([...this.#settings.keys()].map(directoryName));
    const unused = (await readdir(parent)).filter((entry) => {
      const name = DIRECTORY.exec(entry)?.[1];
      const isUnknown = name !== undefined && configured.has(name) && !prepared.has(name);
      return !used.has(entry) && !isUnknown;
    });
    if (unused.length > 0) await launcher.remove(...unused.map((entry) => join(parent, entry)));
  }

  async #make(name: string, settings: TemplateSettings): Promise<PreparedTemplate> {
    const { parent, launcher } = this.#options;
    if (settings.kind === "directory") {
      return prepareDirectoryTemplate({
        name: directoryName(name),
        parent,
        directory: settings.path,
        user: settings.user,
        owners: this.#owners,
      });
    }
    const { python, node } = settings;
    return prepareBaseTemplate({
      name: directoryName(name),
      parent,
      python: python === undefined ? undefined : await describePython(name, python, launcher),
      node: await findNode(node).catch((error: unknown) => {
        throw new Error(`template '${name}': its Node.js cannot be used: ${messageOf(error)}`);
      }),
      owners: this.#owners,
    });
  }
}

function directoryName(template: string): string {
  return template.replaceAll("/", "_");
}

async function describePython(
  template: string,
  interpreter: string,
  launcher: Launcher,
): Promise<HostPython> {
  return inspectPython(interpreter, launcher).catch((error: unknown) => {
    const advice = "install python3-ipykernel, or name another interpreter as `python`";
    throw new Error(`template '${template}': ${interpreter} fails: ${messageOf(error)}; ${advice}`);
  });
}

/**
 * Resolves the configured program.
 * @returns its path without links; undefined for one that sandboxes find themselves: a plain name, or a path in /usr.
 * @throws Error when it is no program.
 */
async function findNode(program: string | undefined): Promise<string | undefined> {
  if (program === undefined || !isAbsolute(program)) return undefined;
  await access(program, constants.X_OK);
  const path = await realpath(program);
  return isInSystem(path) ? undefined : path;
}
