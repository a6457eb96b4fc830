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
