import type { EgressRules, NetworkPolicy } from "@coppice/core/backend";
import { z } from "zod";

/**
 * A field that may only ask for the default behaviour. Ignoring other values would leave a sandbox less confined, or
 * shorter lived, than its creator believes.
 */
export function nothing(what: string) {
  return z.unknown().optional().refine(asksForNothing, `this server does not support ${what}`);
}

function asksForNothing(value: unknown): boolean {
  if (value === undefined || value === null || value === false) return true;
  return typeof value === "object" && Object.values(value).every(asksForNothing);
}

export interface NetworkBodyOptions {
  /** Limit of the entries of `allowOut` and of `denyOut`, each. */
  readonly networkRuleLimit: number;
}

/** Rules in the bodies of creations and updates. The domain validates destinations. */
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

/** The body of `PUT /sandboxes/:id/network`. Settings that only a creation can have are refused, not ignored. */
export function networkBody(options: NetworkBodyOptions) {
  const atCreation = nothing("an update of what is set when a sandbox is created");
  return z.object({
    ...networkRuleFields(options),
    allow_internet_access: z.boolean().nullish(),
    allowPublicTraffic: atCreation,
    maskRequestHost: atCreation,
  });
}

/** Translates the rules of a body; undefined without any. */
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

/** Translates an update: omitted rules are cleared. */
export function toNetworkPolicy(body: z.infer<ReturnType<typeof networkBody>>): NetworkPolicy {
  return { allowInternetAccess: body.allow_internet_access ?? true, egress: toEgressRules(body) };
}
