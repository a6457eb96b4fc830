import type { EgressRules, NetworkPolicy } from "@coppice/core";
import { z } from "zod";
import { nothing } from "./nothing.js";

export interface NetworkBodyOptions {
  /** Most entries of `allowOut` and of `denyOut`. */
  readonly networkRuleLimit: number;
}

/** Rules that a create body and the body of an update have in common. The domain validates destinations. */
export function networkRuleFields({ networkRuleLimit }: NetworkBodyOptions) {
  const destinations = z.array(z.string().max(255)).max(networkRuleLimit);
  return {
    allowOut: destinations.nullish(),
    denyOut: destinations.nullish(),
    httpsPorts: nothing("network.httpsPorts"),
    egressProxy: nothing("network.egressProxy"),
    rules: nothing("network.rules (transforms of requests)"),
  };
}

/** The body of `PUT /sandboxes/:id/network`. What is set once, at creation, is refused rather than ignored. */
export function networkBody(options: NetworkBodyOptions) {
  const atCreation = nothing("an update of what is set when a sandbox is created");
  return z.object({
    ...networkRuleFields(options),
    allow_internet_access: z.boolean().nullish(),
    allowPublicTraffic: atCreation,
    maskRequestHost: atCreation,
  });
}

/** The rules of a body in the words of the domain; undefined where there are none. */
export function toEgressRules({
  allowOut,
  denyOut,
}: {
  readonly allowOut?: readonly string[] | null | undefined;
  readonly denyOut?: readonly string[] | null | undefined;
}): EgressRules | undefined {
  const rules = { allowOut: allowOut ?? [], denyOut: denyOut ?? [] };
  return rules.allowOut.length + rules.denyOut.length === 0 ? undefined : rules;
}

/** An update in the words of the domain: what it leaves out is cleared. */
export function toNetworkPolicy(body: z.infer<ReturnType<typeof networkBody>>): NetworkPolicy {
  return { allowInternetAccess: body.allow_internet_access ?? true, egress: toEgressRules(body) };
}
