import type { CreationContext } from "../creations/client-creations.js";
import type { Gathered, Peers } from "./peers.js";

/** What all other servers answer to a request of a list. Its client is told of those that did not. */
export async function gatherAnswers(
  ctx: CreationContext,
  peers: Pick<Peers, "gather">,
): Promise<Gathered["answers"]> {
  const { answers, unreached } = await peers.gather(ctx);
  if (unreached.length > 0) ctx.res.setHeader("X-Unreached-Servers", unreached.join(", "));
  return answers;
}
