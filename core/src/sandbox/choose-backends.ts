import { BootError, type BootProblem, messageOf } from "../kernel/errors.js";
import type { Logger } from "../observe/logger.js";
import type { BackendRegistry } from "./backend-registry.js";
import type { SandboxesConfig } from "./sandboxes-config.js";

/**
 * Checks every backend on this host and settles which one is the default. Of a list of defaults those that
 * the host cannot run are left out, as long as one remains; any other backend that cannot run is a problem.
 * @throws BootError with every reason why this cannot work.
 */
export async function chooseBackends(
  backends: BackendRegistry,
  settings: SandboxesConfig,
  log: Logger,
): Promise<void> {
  const names = backends.all().map(({ name }) => name);
  const preferred = [settings.defaultBackend ?? []].flat();
  const problems = unknownBackends(names, preferred, settings);
  const failures = await failedChecks(backends);
  const usable = preferred.filter((name) => names.includes(name) && !failures.has(name));
  const pinned = Object.values(settings.templates).map(({ backend }) => backend);
  for (const [name, reason] of failures) {
    if (usable.length > 0 && preferred.includes(name) && !pinned.includes(name)) {
      backends.leaveOut(name);
      log.warn({ backend: name, reason }, "this host cannot run a backend; the next one of the list is used");
    } else problems.push({ message: `backend '${name}': ${reason}` });
  }
  if (problems.length > 0) throw new BootError(problems);
  backends.setDefault(usable[0] ?? (names.length === 1 ? names[0] : undefined));
}

function unknownBackends(
  names: readonly string[],
  preferred: readonly string[],
  { templates }: SandboxesConfig,
): BootProblem[] {
  const known = names.length === 0 ? "none is enabled" : `enabled are ${names.join(", ")}`;
  const problems: BootProblem[] = [];
  const note = (key: string, name: string): void => {
    if (names.includes(name)) return;
    problems.push({ message: `sandboxes.${key}: there is no backend '${name}'; ${known}` });
  };
  for (const name of preferred) note("defaultBackend", name);
  const isChoiceOpen = Object.values(templates).some(({ backend }) => backend === undefined);
  if (preferred.length === 0 && names.length > 1 && isChoiceOpen) {
    problems.push({ message: `sandboxes.defaultBackend: choose one of the backends; ${known}` });
  }
  for (const [name, { backend }] of Object.entries(templates)) {
    if (backend !== undefined) note(`templates.${name}.backend`, backend);
  }
  return problems;
}

/** Why this host cannot run which backends. */
async function failedChecks(backends: BackendRegistry): Promise<ReadonlyMap<string, string>> {
  const failures = new Map<string, string>();
  await Promise.all(
    backends.all().map(async (backend) => {
      try {
        await backend.check();
      } catch (error) {
        failures.set(backend.name, messageOf(error));
      }
    }),
  );
  return failures;
}
