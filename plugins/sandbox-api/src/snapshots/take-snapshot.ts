import { z } from "zod";

/** The body of `POST /sandboxes/:id/snapshots`. */
export const takeSnapshotBody = z.object({ name: z.string().min(1).max(256).nullish() });
