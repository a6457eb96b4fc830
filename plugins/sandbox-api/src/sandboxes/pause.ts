import { z } from "zod";

/** The body of `POST /sandboxes/:id/pause`: false ends its processes and keeps its files. */
export const pauseBody = z.object({ memory: z.boolean().nullish() });
