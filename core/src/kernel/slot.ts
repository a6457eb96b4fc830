/** A place that one plugin may fill, once. */
export interface Slot<T> {
  /** @throws Error when another plugin has filled it. */
  use(value: T): void;
  /** Undefined while nobody has filled it. */
  readonly used: T | undefined;
}

/** @param taken why a second plugin cannot fill it. */
export function createSlot<T>(taken: string): Slot<T> {
  let used: T | undefined;
  return {
    use(value) {
      if (used !== undefined) throw new Error(taken);
      used = value;
    },
    get used() {
      return used;
    },
  };
}
