import { z } from "zod";

const build = z.object({
  /** Of its image in the registry; absent until it is there. */
  digest: z
    .string()
    .regex(/^sha256:[0-9a-f]{64}$/)
    .optional(),
  backend: z.string(),
  limits: z.object({
    cpuCount: z.int().positive(),
    memoryMiB: z.int().positive(),
    diskMiB: z.int().positive().optional(),
  }),
});

const record = z.object({
  /** Of the data directory that has it: a server whose directory is another one has it no longer. */
  store: z.string(),
  /** For a snapshot that is lent: the template of its sandbox. */
  snapshotOf: z.string().optional(),
  owner: z.string(),
  namespace: z.string(),
  alias: z.string(),
  isPublic: z.boolean(),
  createdAtMs: z.number(),
  /** UUIDs of builds by tag. */
  tags: z.record(z.string(), z.string()),
  /** Those that a tag leads to, by UUID. */
  builds: z.record(z.string(), build),
});

/** A template as its server tells the others of it. */
export type SharedRecord = z.infer<typeof record>;
export type SharedBuild = z.infer<typeof build>;

/** Undefined for text that a newer version may have written. */
export function sharedRecordOf(value: string): SharedRecord | undefined {
  try {
    return record.parse(JSON.parse(value));
  } catch {
    return undefined;
  }
}

export function sharedText(shared: SharedRecord): string {
  return JSON.stringify(record.parse(shared));
}
