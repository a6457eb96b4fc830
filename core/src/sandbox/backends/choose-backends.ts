import { BootError, SandboxError, messageOf } from "../../kernel/errors.js";
import type { Patience } from "../../kernel/time.js";
import type { Logger } from "../../observe/logger.js";
import type { Backends, SandboxBackend } from "../contract/backend.js";
import type { SandboxesConfig } from "../model/sandboxes-config.js";
import { currentOwner } from "../../kernel/owner.js";

/** The backends that plugins added, in that order. */
export class BackendRegistry implements Backends {
  readonly #added = new Map<string, { readonly backend: SandboxBackend; readonly owner: string }>();
  /** Backend of sandboxes whose template and creator choose none. */
  defaultName: string | undefined;

  add(backend: SandboxBackend): void {
    if (this.#added.has(backend.name)) {
      throw new SandboxError("backend_exists", `there are two backends named '${backend.name}'`);
    }
    this.#added.set(backend.name, { backend, owner: currentOwner() });
  }

  ownerOf(name: string): string {
    return this.#added.get(name)?.owner ?? "core";
  }

  get(name: string): SandboxBackend {
    const added = this.#added.get(name);
    if (added === undefined) throw new SandboxError("backend_not_found", `backend '${name}' not found`);
    return added.backend;
  }

  all(): readonly SandboxBackend[] {
    return Array.from(this.#added.values(), ({ backend }) => backend);
  }

  /** The default backend. @throws SandboxError failed_precondition */
  default(): SandboxBackend {
    if (this.defaultName !== undefined) return this.get(this.defaultName);
    throw new SandboxError("backend_missing", "the server has no default backend");
  }

  /** Removes a backend that this host cannot run. */
  leaveOut(name: string): void {
    this.#added.delete(name);
  }
}

interface BackendVerdict {
  readonly name: string;
  readonly reason: string | undefined;
  /** True when it cannot run, and another default is used in its place. */
  readonly isLeftOut: boolean;
}

/** What a configuration can name. */
interface KnownParts {
  readonly backends: Pick<Backends, "all">;
  /** True for a template that needs no backend with one of that name. */
  readonly templates: { isBuilt(name: string): boolean };
}

interface ChoosingServices extends Pick<KnownParts, "templates"> {
  readonly log: Logger;
  readonly patience: Patience;
}

/**
 * Checks every backend on this host and chooses the default. Defaults that the host cannot run are skipped, as long as
 * one remains. Any other backend that cannot run is a problem, and so is one that is busy or misconfigured: the next
 * default may isolate less.
 * @throws BootError with every problem.
 */
export async function chooseBackends(
  backends: BackendRegistry,
  settings: SandboxesConfig,
  { templates, log, patience }: ChoosingServices,
): Promise<void> {
  const { verdicts, problems, defaultBackend } = await assessBackends(
    { backends, templates },
    settings,
    (backend) =>
      patience(backends.ownerOf(backend.name), `the check of backend '${backend.name}'`, () =>
        backend.check(),
      ),
  );
  const refused = verdicts.filter(({ reason, isLeftOut }) => reason !== undefined && !isLeftOut);
  const failed = refused.map(({ name, reason }) => `backend '${name}': ${reason}`);
  if (problems.length + failed.length > 0) {
    throw new BootError([...problems, ...failed].map((message) => ({ message })));
  }
  for (const { name, reason, isLeftOut } of verdicts) {
    if (!isLeftOut) continue;
    backends.leaveOut(name);
    log.warn({ backend: name, reason }, "this host cannot run a backend; the next one of the list is used");
  }
  backends.defaultName = defaultBackend;
}

/**
 * Checks every backend on this host without side effects. @param check calls the backend's own check, for a limited
 * time.
 */
export async function assessBackends(
  { backends, templates }: KnownParts,
  settings: SandboxesConfig,
  check: (backend: SandboxBackend) => Promise<void>,
) {
  const names = backends.all().map(({ name }) => name);
  const preferred = [settings.defaultBackend ?? []].flat();
  const pinned = Object.values(settings.templates).map(({ backend }) => backend);
  const failures = new Map<string, { readonly reason: string; readonly isOfHost: boolean }>();
  await Promise.all(
    backends.all().map(async (backend) => {
      try {
        await check(backend);
      } catch (error) {
        const isOfHost = !(error instanceof SandboxError && NOT_OF_HOST.has(error.code));
        failures.set(backend.name, { reason: messageOf(error), isOfHost });
      }
    }),
  );
  const usable = preferred.filter((name) => names.includes(name) && !failures.has(name));
  const verdicts = names.map((name): BackendVerdict => {
    const { reason, isOfHost = false } = failures.get(name) ?? {};
    const isReplaceable = usable.length > 0 && preferred.includes(name) && !pinned.includes(name);
    return { name, reason, isLeftOut: isOfHost && isReplaceable };
  });
  return {
    verdicts,
    /** Problems of the choice itself. */
    problems: unknownNames({ backends, templates }, settings).map(({ message }) => message),
    defaultBackend: firstOrOnly(usable, names),
  };
}

/** The default backend: the first preferred one, or the only one. */
export function firstOrOnly(preferred: readonly string[], names: readonly string[]): string | undefined {
  return preferred[0] ?? (names.length === 1 ? names[0] : undefined);
}

/** Codes of check failures that the host did not cause. */
const NOT_OF_HOST: ReadonlySet<string> = new Set(["unavailable", "invalid_argument"]);

/** Backends and templates that the configuration names and that do not exist, each with its key. */
export function unknownNames(
  { backends, templates: built }: KnownParts,
  { defaultBackend, templates }: SandboxesConfig,
): readonly { readonly path: readonly string[]; readonly message: string }[] {
  const all = backends.all();
  const names = all.map(({ name }) => name);
  const known = names.length === 0 ? "none is enabled" : `enabled are ${names.join(", ")}`;
  const preferred = [defaultBackend ?? []].flat();
  const problems: { readonly path: readonly string[]; readonly message: string }[] = [];
  const note = (path: readonly string[], text: string): void => {
    const key = ["sandboxes", ...path];
    problems.push({ path: key, message: `${key.join(".")}: ${text}` });
  };
  const require = (path: readonly string[], name: string): void => {
    if (!names.includes(name)) note(path, `there is no backend '${name}'; ${known}`);
  };
  for (const name of preferred) require(["defaultBackend"], name);
  const isChoiceOpen = Object.values(templates).some(({ backend }) => backend === undefined);
  if (preferred.length === 0 && names.length > 1 && isChoiceOpen) {
    note(["defaultBackend"], `choose one of the backends; ${known}`);
  }
  const candidates = preferred.length === 0 ? names : preferred;
  for (const [template, { backend }] of Object.entries(templates)) {
    if (backend !== undefined) require(["templates", template, "backend"], backend);
    for (const { name, templates: its } of all) {
      if (its === undefined || its.includes(template) || built.isBuilt(template)) continue;
      if (backend === undefined ? !candidates.includes(name) : backend !== name) continue;
      note(["templates", template], `backend '${name}' has no such template; it has ${its.join(", ")}`);
    }
  }
  return problems;
}
