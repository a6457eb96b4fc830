import { type Logger, type SharedTemplates } from "@coppice/core";
import { z } from "zod";
import type { Membership } from "../membership/membership.js";
import { NODES, type NodeRecord } from "../membership/node-record.js";
import { type Check, type Entry, type FleetStore, parsedText } from "../store/fleet-store.js";
import { KeyView } from "../store/key-view.js";
import { unavailable } from "../reasons.js";

type TemplateRecords = NonNullable<SharedTemplates["records"]>;
type SharedTemplate = NonNullable<ReturnType<TemplateRecords["get"]>>;

/** Keys of templates that servers other than their own can fetch, by id. */
const TEMPLATES = "templates/";

const record = z.object({
  node: z.string(),
  /** What that one tells of it; absent once it has been removed. */
  template: z.string().optional(),
});

type Known = z.infer<typeof record> & { readonly revision: number };

function knownOf({ value, modRevision }: Entry): Known | undefined {
  const known = parsedText(record, value);
  return known && { ...known, revision: modRevision };
}

interface FleetTemplatesOptions {
  readonly store: FleetStore;
  readonly membership: Pick<Membership, "check">;
  readonly node: string;
  readonly nodes: Pick<KeyView<NodeRecord>, "get">;
  /** How long a removal is told: a server that is back after it takes the template for its own again. */
  readonly keptMs: number;
  readonly log: Pick<Logger, "debug" | "error">;
}

export class FleetTemplates implements TemplateRecords {
  readonly #options: FleetTemplatesOptions;
  readonly #view: KeyView<Known>;

  constructor(options: FleetTemplatesOptions) {
    const { store, log } = options;
    this.#options = options;
    this.#view = new KeyView({ store, prefix: TEMPLATES, parse: knownOf, log });
  }

  start(): Promise<void> {
    return this.#view.start();
  }

  stop(): Promise<void> {
    return this.#view.stop();
  }

  *entries(): Iterable<readonly [string, SharedTemplate]> {
    for (const [id, known] of this.#view.entries()) yield [id, this.#toldOf(known)];
  }

  get(id: string): SharedTemplate | undefined {
    const known = this.#view.get(id);
    return known && this.#toldOf(known);
  }

  async read(id: string): Promise<SharedTemplate | undefined> {
    const entry = await this.#options.store.get(TEMPLATES + id);
    const known = entry && knownOf(entry);
    return known && this.#toldOf(known);
  }

  async put(id: string, template: string | undefined, known: SharedTemplate | undefined): Promise<void> {
    const { store, membership, node, keptMs } = this.#options;
    const key = TEMPLATES + id;
    const before = known && (await this.#nodeOf(key, known));
    const checks: Check[] = [membership.check, { key, modRevision: known?.revision ?? 0 }];
    // One that is only away comes back to it.
    if (before !== undefined && before !== node) checks.push({ key: NODES + before, createRevision: 0 });
    const value = JSON.stringify({ node, template } satisfies z.infer<typeof record>);
    const lease = template === undefined ? await store.grant(keptMs) : undefined;
    if ((await store.commit(checks, [{ put: key, value, lease }])) !== undefined) return;
    if (lease !== undefined) await store.revoke(lease);
    const text = "another server of the fleet keeps this template, or has changed it meanwhile, please retry";
    throw unavailable(text);
  }

  async #nodeOf(key: string, { revision }: SharedTemplate): Promise<string | undefined> {
    const entry = await this.#options.store.get(key);
    return entry?.modRevision === revision ? knownOf(entry)?.node : undefined;
  }

  #toldOf({ node, template, revision }: Known): SharedTemplate {
    const { node: own, nodes } = this.#options;
    const keeper = node === own ? "self" : nodes.get(node) === undefined ? "gone" : "other";
    return { value: template, revision, keeper };
  }
}
