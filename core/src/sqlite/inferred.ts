import type { z } from "zod";

/** A value that its holder only reads. */
type Immutable<T> = T extends object ? { readonly [Key in keyof T]: Immutable<T[Key]> } : T;

/** What a schema describes. */
export type Inferred<Schema extends z.ZodType> = Immutable<z.output<Schema>>;

/** What a schema takes: fields with a default may be absent. */
export type InferredInput<Schema extends z.ZodType> = Immutable<z.input<Schema>>;
