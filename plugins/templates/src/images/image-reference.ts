import { BuildFailure } from "../model/build-record.js";

/** Parts of `[registry/]repository[:tag][@digest]`, as Docker reads it. */
export interface ImageReference {
  /** As it was written. */
  readonly text: string;
  /** `docker.io`, or a host with an optional port. */
  readonly registry: string;
  /** `library/debian` */
  readonly repository: string;
  /** Digest, or else the tag: `latest` when there is neither. */
  readonly version: string;
}

const LONGEST_NAME = 255;
const HOST = /^(?:[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?|\[[0-9a-f:]+\])(?::\d{1,5})?$/;
const COMPONENT = /^[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*$/;
const TAG = /^\w[\w.-]{0,127}$/;
const DIGEST = /^sha256:[0-9a-f]{64}$/;

/** @throws BuildFailure `invalid image reference '…': …` */
export function parseImageReference(text: string): ImageReference {
  const refuse = (reason: string): never => {
    const shown = text.length > LONGEST_NAME ? `${text.slice(0, LONGEST_NAME)}…` : text;
    throw new BuildFailure(`invalid image reference '${shown}': ${reason}`, "base");
  };
  const [tagged = "", digest, ...moreDigests] = text.split("@");
  if (moreDigests.length > 0) refuse("more than one '@'");
  if (digest !== undefined && !DIGEST.test(digest)) refuse("a digest is 'sha256:' and 64 hexadecimal digits");
  // A colon before the last slash belongs to a port.
  const [, name = "", tag] = /^(.*?)(?::([^/:]*))?$/s.exec(tagged) ?? [];
  if (tag !== undefined && !TAG.test(tag))
    refuse("a tag consists of at most 128 letters, digits, '_', '.' and '-'");
  if (name.length > LONGEST_NAME) refuse(`its name is longer than ${LONGEST_NAME} characters`);
  const [registry, path] = splitRegistry(name);
  if (!HOST.test(registry) || !URL.canParse(`https://${registry}`)) refuse(`'${registry}' is no registry`);
  if (!path.split("/").every((component) => COMPONENT.test(component)))
    refuse(
      "a name consists of lower-case letters and digits, with single '.', '_', '-' and '/' between them",
    );
  const isOfficial = registry === "docker.io" && !path.includes("/");
  return {
    text,
    registry,
    repository: isOfficial ? `library/${path}` : path,
    version: digest ?? tag ?? "latest",
  };
}

/** The first component is a registry when it cannot be a part of a name of Docker Hub. */
function splitRegistry(name: string): readonly [registry: string, path: string] {
  const slash = name.indexOf("/");
  const first = name.slice(0, Math.max(slash, 0)).toLowerCase();
  if (first !== "localhost" && !/[.:]/.test(first)) return ["docker.io", name];
  const registry = first === "index.docker.io" ? "docker.io" : first;
  return [registry, name.slice(slash + 1)];
}

/** True for a version that is a digest. */
export function isDigest(version: string): boolean {
  return DIGEST.test(version);
}
