/** For backends whose log is not checked. */
export const silentLog = { error: () => undefined };
