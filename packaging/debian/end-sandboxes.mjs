// Ends all sandboxes of the running server, before the package is removed.
import { readFileSync } from "node:fs";

const URL_OF_API = "http://127.0.0.1:3000";
const [, key = ""] = /^COPPICE_API_KEY=(.+)$/m.exec(readFileSync("/etc/coppice/environment", "utf8")) ?? [];
const headers = { "x-api-key": key };
const listed = await fetch(`${URL_OF_API}/v2/sandboxes?limit=100`, { headers });
for (const { sandboxID } of await listed.json())
  await fetch(`${URL_OF_API}/sandboxes/${sandboxID}`, { method: "DELETE", headers });
