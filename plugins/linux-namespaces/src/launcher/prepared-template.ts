/** A directory of the host that a sandbox sees read-only. */
export interface Bind {
  /** Path inside the sandbox of an existing directory or file to mount over. */
  readonly target: string;
  /** Path on the host. */
  readonly source: string;
}

/** A writable directory layered over directories of the host. */
export interface Overlay {
  readonly target: string;
  /** Host paths, topmost first. */
  readonly lowers: readonly string[];
}

/** Layers and mounts of a template, read-only and shared by its sandboxes. */
export interface PreparedTemplate {
  readonly name: string;
  /** Host paths of the root's layers, topmost first. */
  readonly lowers: readonly string[];
  readonly binds: readonly Bind[];
  readonly overlays: readonly Overlay[];
}
