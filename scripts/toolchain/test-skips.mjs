// A reporter for node:test: what did not run, and why. Written beside the ordinary report, because a
// suite that skips its hard half looks just as green.
export default async function* skips(source) {
  for await (const { type, data } of source) {
    if (type !== "test:pass" && type !== "test:fail") continue;
    const kind = data.skip !== undefined ? "skipped" : data.todo !== undefined ? "todo" : undefined;
    if (kind === undefined) continue;
    const reason = data.skip ?? data.todo;
    yield `${kind}: ${data.name}${typeof reason === "string" && reason !== "" ? ` (${reason})` : " (no reason given)"}\n`;
  }
}
