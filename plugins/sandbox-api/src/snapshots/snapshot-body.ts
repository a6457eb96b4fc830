import type { SnapshotRecord } from "@coppice/core";

/** A snapshot in answers. Its id is a template reference: sandboxes are created from it. */
export function snapshotBody({ id, name }: SnapshotRecord) {
  return {
    snapshotID: name ?? `${id}:default`,
    names: name === undefined ? [] : [name],
    // E2B's clients ask for that with `memory: false`: files are kept, processes are not.
    memory: false,
  };
}
