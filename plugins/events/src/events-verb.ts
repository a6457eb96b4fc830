import { SandboxError, type VerbAction } from "@coppice/core";
import type { EventsConfig } from "./events-config.js";
import { EventsStore } from "./store/events-store.js";

const HEADING = ["AT", "TENANT", "SANDBOX", "TEMPLATE", "EVENT", "DETAILS"];

/** Prints events of sandboxes of all tenants, the newest first: also how one ended whose tenant asks for it. */
export const eventsList: VerbAction<EventsConfig> = (command, { config, dataDir, print, printTable }) =>
  command
    .description("prints events of sandboxes of all tenants, the newest first")
    .option("--sandbox <id>", "only its events")
    .option("--tenant <name>", "only its events")
    .option("--limit <number>", "how many", "100")
    .option("--json", "prints a JSON line for each event")
    .addHelpText("after", "\nExample:\n  coppice events list coppice.yaml --sandbox i1a2b3c4d5")
    .action(({ sandbox, tenant, limit, json }) => {
      if (!/^[1-9]\d{0,8}$/.test(limit))
        throw new SandboxError("usage_invalid", "--limit is a number of events");
      using store = new EventsStore(dataDir(), config);
      const page = { types: [], limit: Number(limit), offset: 0, oldestFirst: false };
      const found = store.events.list({ tenant, sandbox, ...page });
      if (json) for (const event of found) print(JSON.stringify(event));
      else
        printTable(
          HEADING,
          found.map(({ timestamp, sandboxTeamId, sandboxId, sandboxTemplateId, type, eventData }) => [
            timestamp,
            sandboxTeamId,
            sandboxId,
            sandboxTemplateId,
            type,
            eventData === null ? "" : JSON.stringify(eventData),
          ]),
        );
    });
