// A reporter for node:test: the files in which a test failed, one a line.
export default async function* failures(source) {
  const told = new Set();
  for await (const { type, data } of source) {
    if (type !== "test:fail" || data.file === undefined || told.has(data.file)) continue;
    told.add(data.file);
    yield `${data.file}\n`;
  }
}
