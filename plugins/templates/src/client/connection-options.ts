/** Options of every verb that speaks to a server. */
export const CONNECTION = { url: { type: "string" }, key: { type: "string" } } as const;

/** As the usage shows them. */
export const CONNECTION_USAGE = "[--url http://127.0.0.1:3000] [--key <API key or JWT>]";
