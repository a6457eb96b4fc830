/** Does something again and again for that long, at least once. @returns how long each took, in milliseconds. */
export async function repeated(once: () => Promise<unknown>, seconds: number): Promise<readonly number[]> {
  const tookMs: number[] = [];
  const endMs = performance.now() + seconds * 1000;
  do {
    const startMs = performance.now();
    await once();
    tookMs.push(performance.now() - startMs);
  } while (performance.now() < endMs);
  return tookMs;
}

/** As `repeated`, several beside each other. @returns how many of all ended each second. */
export async function ratePerSecond(
  beside: readonly (() => Promise<unknown>)[],
  seconds: number,
): Promise<number> {
  const startMs = performance.now();
  const tookMs = await Promise.all(beside.map((once) => repeated(once, seconds)));
  return (tookMs.flat().length * 1000) / (performance.now() - startMs);
}
