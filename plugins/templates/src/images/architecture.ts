const NAMES: Readonly<Record<string, string>> = { x64: "amd64", ia32: "386" };

/** This host's, in the names of images. */
export const ARCHITECTURE: string = NAMES[process.arch] ?? process.arch;

/** System that images are made for. */
export const SYSTEM = process.platform === "freebsd" ? "freebsd" : "linux";
