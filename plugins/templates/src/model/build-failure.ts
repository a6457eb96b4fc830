/** A build failed for a reason that its client is told. */
export class BuildFailure extends Error {
  override readonly name = "BuildFailure";
  /** As `LogEntry.step`: clients show the line of their code that made the step. */
  readonly step: string | undefined;

  constructor(message: string, step: string | undefined, options?: ErrorOptions) {
    super(message, options);
    this.step = step;
  }
}
