import type { BuildStep } from "../model/build-request.js";

/** Steps of a Dockerfile from root's `/` on, as in Docker, to the user of sandboxes, as E2B's clients send them. */
export function asInDocker(steps: readonly BuildStep[]): readonly BuildStep[] {
  const step = (type: string, value: string): BuildStep => ({
    type,
    args: [value],
    filesHash: undefined,
    force: false,
  });
  const has = (type: string): boolean => steps.some((each) => each.type === type);
  return [
    step("USER", "root"),
    step("WORKDIR", "/"),
    ...steps,
    ...(has("USER") ? [] : [step("USER", "user")]),
    ...(has("WORKDIR") ? [] : [step("WORKDIR", "/home/user")]),
  ];
}
