import type { Limits } from "@coppice/core/backend";

/** Credentials of an image registry. They are kept in memory only. */
export type RegistryCredentials =
  | { readonly type: "registry"; readonly username: string; readonly password: string }
  | {
      readonly type: "aws";
      readonly awsAccessKeyId: string;
      readonly awsSecretAccessKey: string;
      readonly awsRegion: string;
    }
  | { readonly type: "gcp"; readonly serviceAccountJson: string };

/** One step, as E2B's clients send it. */
export interface BuildStep {
  /** `RUN`, `ENV`, `ARG`, `USER`, `WORKDIR`, `COPY` or `ADD` in any case; others fail the build. */
  readonly type: string;
  readonly args: readonly string[];
  /** Name of an uploaded archive: 64 hexadecimal digits. */
  readonly filesHash: string | undefined;
  /** True: the step runs even where its result is cached. */
  readonly force: boolean;
}

/** What a build starts from. */
export type BuildBase =
  | {
      readonly kind: "image";
      /** As the client wrote it, `debian:12`. */
      readonly reference: string;
      readonly credentials: RegistryCredentials | undefined;
    }
  | {
      /** A root of Debian packages, made by mmdebstrap. */
      readonly kind: "debian";
      /** `trixie` */
      readonly suite: string;
      readonly packages: readonly string[];
      /** Time whose packages are taken, `20261124T060000Z`; the newest when absent. */
      readonly snapshot?: string | undefined;
    }
  | {
      /** A root file system on this host, which is copied. */
      readonly kind: "directory";
      /** Absolute. */
      readonly path: string;
      /** Time of the directory itself, milliseconds since the Unix epoch: a later one is another base. */
      readonly modifiedAtMs: number;
    }
  | {
      /** An OCI image layout of one image on this host: a template that another server has built. */
      readonly kind: "layout";
      /** Absolute. */
      readonly path: string;
    }
  | {
      readonly kind: "template";
      /** `[namespace/]name[:tag]`. */
      readonly reference: string;
    };

/** Packages of an earlier build of the same recipe. */
export interface Lock {
  readonly contents: readonly string[];
  /** `error`: a difference fails the build. Otherwise the log has it, at this level. */
  readonly severity: "info" | "warn" | "error";
}

/** A build as it was asked for. */
export interface BuildRequest {
  readonly templateId: string;
  /** A UUID. */
  readonly buildId: string;
  readonly tenant: string;
  readonly backend: string;
  readonly limits: Limits;
  readonly base: BuildBase;
  readonly steps: readonly BuildStep[];
  /** True: the base is fetched anew, and no step is taken from the cache. */
  readonly force: boolean;
  /** True: its files do not tell when and where they were made, so that equal steps make equal archives of them. */
  readonly isReproducible: boolean;
  readonly startCommand: string | undefined;
  readonly readyCommand: string | undefined;
  /** Packages that the result is to have, as `listContents` lists them, and what happens where it has others. */
  readonly lock?: Lock | undefined;
  /** The image is one of a pushed template: its configuration is kept, its limits where this says so. */
  readonly restore?: { readonly limits: boolean } | undefined;
}
