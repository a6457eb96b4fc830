import { z } from "zod";

/** How far a transfer has come, in bytes. The total is undefined where it is unknown. */
export const transfer = z.object({
  phase: z.enum(["packing", "pulling", "pushing"]),
  done: z.number(),
  total: z.number().optional(),
});

export type Transfer = Readonly<z.infer<typeof transfer>>;

/** Takes reports while a transfer goes on. */
export type TransferReport = (transfer: Transfer) => void;
