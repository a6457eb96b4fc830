/** Time of a deadline, in milliseconds since the Unix epoch. */
export interface Deadline {
  readonly id: string;
  readonly atMs: number;
}

/** Deadlines by id, the earliest first. Setting, moving and removing one costs O(log n). */
export class DeadlineHeap {
  readonly #heap: Deadline[] = [];
  readonly #positions = new Map<string, number>();

  get size(): number {
    return this.#heap.length;
  }

  /** The earliest, which stays in the heap. */
  peek(): Deadline | undefined {
    return this.#heap[0];
  }

  /** Adds a deadline, or moves the one of the same id. */
  set(id: string, atMs: number): void {
    const position = this.#positions.get(id) ?? this.#heap.length;
    this.#place({ id, atMs }, position);
    this.#settle(position);
  }

  delete(id: string): boolean {
    const position = this.#positions.get(id);
    if (position === undefined) return false;
    this.#positions.delete(id);
    const last = this.#heap.pop();
    if (last !== undefined && last.id !== id) {
      this.#place(last, position);
      this.#settle(position);
    }
    return true;
  }

  clear(): void {
    this.#heap.length = 0;
    this.#positions.clear();
  }

  #place(deadline: Deadline, position: number): void {
    this.#heap[position] = deadline;
    this.#positions.set(deadline.id, position);
  }

  #at(position: number): Deadline {
    return this.#heap[position] as Deadline;
  }

  #settle(position: number): void {
    const moved = this.#at(position);
    let hole = position;
    while (hole > 0) {
      const parent = (hole - 1) >> 1;
      if (this.#at(parent).atMs <= moved.atMs) break;
      this.#place(this.#at(parent), hole);
      hole = parent;
    }
    for (;;) {
      let child = 2 * hole + 1;
      if (child >= this.#heap.length) break;
      if (child + 1 < this.#heap.length && this.#at(child + 1).atMs < this.#at(child).atMs) child += 1;
      if (this.#at(child).atMs >= moved.atMs) break;
      this.#place(this.#at(child), hole);
      hole = child;
    }
    this.#place(moved, hole);
  }
}
