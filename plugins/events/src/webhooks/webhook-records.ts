import { parseJson, type TenantRecords } from "@coppice/core";
import { type Webhook, webhook as webhookRecord, type WebhookTable } from "../store/delivery-table.js";

type CommonRecords = Awaited<ReturnType<NonNullable<TenantRecords["used"]>>>;
type TenantRecord = Awaited<ReturnType<CommonRecords["list"]>>[number];

/** What decides of the webhooks of a tenant; this server's own copy says what is delivered to which. */
export interface WebhookRecords {
  /** Oldest first. */
  list(tenant: string): Promise<readonly Webhook[]>;
  /** Puts a webhook, or removes it where `decide` returns undefined. @throws what `decide` throws; nothing has changed then */
  change(tenant: string, id: string, decide: (all: readonly Webhook[]) => Webhook | undefined): Promise<void>;
}

export interface SharedWebhooksOptions {
  readonly records: Pick<TenantRecords, "used">;
  readonly store: WebhookTable;
  /** Called when a delivery may be due. */
  readonly onDue: (webhook: string) => void;
}

const KIND = "webhooks";

/** Those of a server of its own. */
export function ownWebhooks(store: WebhookTable): WebhookRecords {
  return {
    list: async (tenant) => store.list(tenant),
    async change(tenant, id, decide) {
      const webhook = decide(store.list(tenant));
      if (webhook === undefined) store.remove({ id });
      else store.put({ ...webhook, isShared: false });
    },
  };
}

/**
 * Those of several servers, of which this one keeps a copy; those that it has alone become everybody's. Undefined on a
 * server of its own. @throws SandboxError
 */
export async function sharedWebhooks({ records, store, onDue }: SharedWebhooksOptions) {
  const put = ({ text }: Pick<TenantRecord, "text">): void => {
    const webhook = webhookOf(text);
    if (webhook !== undefined) store.put({ ...webhook, isShared: true });
  };
  const common = await records.used?.(KIND, {
    began(all) {
      const ids = new Set(all.map(({ id }) => id));
      for (const { id } of store.all({ isShared: true })) if (!ids.has(id)) store.remove({ id });
      all.forEach(put);
    },
    changed(id, text) {
      if (text === undefined) store.remove({ id });
      else put({ text });
      onDue(id);
    },
  });
  if (common === undefined) return undefined;
  for (const webhook of store.all({ isShared: false }))
    await common.change(webhook.tenant, webhook.id, () => JSON.stringify(webhookRecord.parse(webhook)));
  return { ...recordsOf(common), stop: () => common.stop() };
}

function recordsOf(common: CommonRecords): WebhookRecords {
  return {
    list: async (tenant) => parsed(await common.list(tenant)),
    change: (tenant, id, decide) =>
      common.change(tenant, id, (all) => {
        const webhook = decide(parsed(all));
        return webhook && JSON.stringify(webhookRecord.parse(webhook));
      }),
  };
}

function parsed(records: readonly TenantRecord[]): readonly Webhook[] {
  return records
    .flatMap(({ text }) => webhookOf(text) ?? [])
    .toSorted((a, b) => a.createdAtMs - b.createdAtMs || (a.id < b.id ? -1 : 1));
}

/** Undefined for a text that a newer version may have written. */
function webhookOf(text: string): Webhook | undefined {
  try {
    return webhookRecord.parse(parseJson(Buffer.from(text)));
  } catch {
    return undefined;
  }
}
