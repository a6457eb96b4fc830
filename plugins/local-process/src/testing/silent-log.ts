/** For backends whose log nobody reads. */
export const silentLog = { error: () => undefined };
