/** The interpreter with ipykernel, numpy, pandas and matplotlib: set-up passes it on in `COPPICE_PYTHON`. */
export const PYTHON = process.env["COPPICE_PYTHON"] ?? "python3";
