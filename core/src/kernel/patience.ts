/** Waits for a plugin's step during the start. @throws Error `… did not end within … ms`, or what `run` throws. */
export type Patience = <T>(plugin: string, step: string, run: () => T | Promise<T>) => Promise<T>;
