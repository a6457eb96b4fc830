import { z } from "zod";

/** The body of `POST /sandboxes/:id/pause`. */
export const pauseBody = z.object({
  // What is paused keeps its processes: to end them would lose what the client has not saved.
  memory: z.literal(true, "this server does not support pausing without memory").nullish(),
});
