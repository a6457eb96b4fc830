import type { StartCommand } from "../contract/commands.js";

/** The kept part of a running command's request: all of it, or only the first arguments when it is long. */
export function retainedRequest(request: StartCommand, mostBytes: number): StartCommand {
  const { args = [], environment = {} } = request;
  let bytes = Buffer.byteLength(request.path);
  for (const text of [...args, ...Object.entries(environment).flat()]) bytes += Buffer.byteLength(text);
  if (bytes <= mostBytes) return request;
  const kept: string[] = [];
  let left = mostBytes;
  for (const argument of args) {
    left -= Buffer.byteLength(argument);
    if (left < 0) break;
    kept.push(argument);
  }
  // A copy: a slice of a string keeps all of it in memory.
  const path = Buffer.from(request.path).subarray(0, mostBytes).toString();
  return { ...request, path, args: kept, environment: undefined };
}
