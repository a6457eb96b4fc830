import { SandboxError } from "../../kernel/errors.js";
import { currentOwner } from "../../kernel/owner.js";
import type { Backends, SandboxBackend } from "../contract/backend.js";

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
