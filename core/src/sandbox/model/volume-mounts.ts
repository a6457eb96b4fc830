import { posix } from "node:path";
import { SandboxError } from "../../kernel/errors.js";
import type { Mount } from "../contract/backend.js";
import type { RecordedMount } from "./live-sandbox.js";
import type { TenantVolumes } from "./volumes.js";

export interface RequestedMount {
  /** Id or name of a volume of the sandbox's owner. */
  readonly volume: string;
  /** Absolute path inside. */
  readonly path: string;
  /** False when absent. */
  readonly readOnly?: boolean | undefined;
}

const MAX_PATH = 1024;
/** Directories that a sandbox needs: nothing may be mounted over them. */
const RESERVED = ["/proc", "/dev", "/sys", "/etc", "/run/e2b"];

/**
 * Finds the requested volumes. @param backend of the sandbox.
 * @throws SandboxError invalid_argument with the problem of each mount.
 */
export function resolveMounts(
  requested: readonly RequestedMount[],
  volumes: TenantVolumes,
  backend: string,
): readonly RecordedMount[] {
  const problems: string[] = [];
  const mounts: RecordedMount[] = [];
  for (const [index, { volume: reference, path, readOnly = false }] of requested.entries()) {
    const volume = volumes.find(reference);
    const problem = reasonAgainstPath(path, mounts);
    if (volume === undefined) problems.push(`volume mount #${index}: volume '${reference}' not found`);
    else if (problem !== undefined) problems.push(`volume mount #${index}: ${problem}`);
    else if (volume.backend !== backend) {
      const text = `volume '${volume.name}' is kept by backend '${volume.backend}', the sandbox is made by '${backend}'`;
      problems.push(`volume mount #${index}: ${text}`);
    } else mounts.push({ volume: volume.id, name: volume.name, path, readOnly });
  }
  if (problems.length === 0) return mounts;
  throw new SandboxError("mounts_invalid", `invalid mounts: ${problems.join("; ")}`);
}

function reasonAgainstPath(path: string, taken: readonly Mount[]): string | undefined {
  if (path === "") return "path cannot be empty";
  if (!path.startsWith("/")) return "path must be absolute";
  if (path.length > MAX_PATH || /\p{Cc}/u.test(path)) {
    return `path must be at most ${MAX_PATH} characters, none of them a control character`;
  }
  // Backends walk it name by name; a trailing slash would be an empty one.
  if (posix.normalize(path) !== path || (path !== "/" && path.endsWith("/"))) {
    return "path must not contain any '.', '..' or empty components";
  }
  if (path === "/" || RESERVED.some((reserved) => isWithin(path, reserved) || isWithin(reserved, path))) {
    return `path '${path}' is the system's`;
  }
  const other = taken.find((mount) => isWithin(path, mount.path) || isWithin(mount.path, path));
  if (other?.path === path) return `path '${path}' is already used`;
  return other && `path '${path}' and '${other.path}' lie in each other`;
}

function isWithin(path: string, directory: string): boolean {
  return path === directory || path.startsWith(`${directory}/`);
}
