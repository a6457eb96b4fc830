// A reporter for node:test: the files that were run and in which a test failed, one a line.
export default async function* failures(source) {
  const told = new Set();
  for await (const { type, data } of source) {
    if (type !== "test:fail") continue;
    // A test may be declared in another file than the one that runs it.
    const file = data.entryFile ?? data.file;
    if (file === undefined || told.has(file)) continue;
    told.add(file);
    yield `${file}\n`;
  }
}
