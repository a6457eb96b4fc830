/** The key that every server under test takes, in the form that the SDKs have always accepted. */
export const API_KEY = `e2b_${"5eed".repeat(10)}`;
